// hicache-replay on a store in which things go wrong. HICACHE_FAULTS holds the plan, as JSON with
// the names of fault_plan's fields.

#include "launch/replay_program.hpp"
#include "tests/faults/faulty_backend.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

namespace {

using namespace hicache;

test::fault_plan read_plan() {
  const auto* text = std::getenv("HICACHE_FAULTS");
  const auto fields = nlohmann::json::parse(text == nullptr ? "{}" : text);
  const auto* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  auto plan = test::fault_plan{};
  plan.seed = fields.at("seed");
  plan.folder = fields.at("folder");
  plan.rank = rank == nullptr ? 0 : static_cast<uint32_t>(std::stoul(rank));
  plan.delay = fields.value("delay", plan.delay);
  plan.delay_ms_max = fields.value("delay_ms_max", plan.delay_ms_max);
  plan.stick = fields.value("stick", plan.stick);
  plan.fail = fields.value("fail", plan.fail);
  plan.cut = fields.value("cut", plan.cut);
  plan.flip = fields.value("flip", plan.flip);
  plan.lose = fields.value("lose", plan.lose);
  plan.lie = fields.value("lie", plan.lie);
  return plan;
}

} // namespace

int main(int argc, char** argv) {
  auto plan = test::fault_plan{};
  try {
    plan = read_plan();
  } catch (const std::exception& ex) {
    std::fprintf(stderr, "HICACHE_FAULTS: %s; expected JSON with at least a seed and a folder\n",
                 ex.what());
    return 2;
  }
  return run_replay(argc, argv, [&plan](std::unique_ptr<storage_backend> inner) {
    auto folder = page_folder::open(plan.folder);
    if (!folder) {
      std::fprintf(stderr, "HICACHE_FAULTS: %s\n", folder.error().detail.c_str());
      std::exit(2);
    }
    return std::make_unique<test::faulty_backend>(std::move(inner), std::move(*folder), plan);
  });
}
