// hicache-replay with faults. HICACHE_FAULTS holds the plan, as JSON: the names of fault_plan's
// fields, for a store in which things go wrong; or damaged_rank and damaged_after, for a rank that
// differs from the others after so many steps.

#include "backends/storage_queue.hpp"
#include "hicache/rank_reducer.hpp"
#include "launch/replay_program.hpp"
#include "tests/backends/waiting_store.hpp"
#include "tests/faults/faulty_backend.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace hicache;

/// A rank whose tree differs from the others' as far as they can tell: the digests that it offers
/// are wrong after so many steps.
class damaged_reducer final : public rank_reducer {
public:
  damaged_reducer(std::unique_ptr<rank_reducer> inner, uint64_t after)
    : inner_(std::move(inner)), left_(after) {}

  uint32_t rank() const noexcept override { return inner_->rank(); }

  uint32_t size() const noexcept override { return inner_->size(); }

  void reduce_min(reduction_channel channel, std::vector<int64_t> values, callback done) override {
    if (channel == reduction_channel::step && (left_ == 0 || --left_ == 0))
      --values.front(); // The digest; its complement stays.
    inner_->reduce_min(channel, std::move(values), std::move(done));
  }

  bool progress() override { return inner_->progress(); }

  void on_notify(notify_callback news) override { inner_->on_notify(std::move(news)); }

  std::string missing(reduction_channel channel) override { return inner_->missing(channel); }

private:
  const std::unique_ptr<rank_reducer> inner_;
  uint64_t left_;
};

struct replay_plan {
  test::fault_plan store;
  std::optional<uint32_t> damaged_rank;
  uint64_t damaged_after = 0;
};

replay_plan read_plan() {
  const auto* text = std::getenv("HICACHE_FAULTS");
  const auto fields = nlohmann::json::parse(text == nullptr ? "{}" : text);
  auto read = replay_plan{};
  if (fields.contains("damaged_rank")) {
    read.damaged_rank = fields.at("damaged_rank").get<uint32_t>();
    read.damaged_after = fields.at("damaged_after");
    return read;
  }
  auto& plan = read.store;
  plan.seed = fields.at("seed");
  plan.folder = fields.at("folder");
  plan.delay = fields.value("delay", plan.delay);
  plan.delay_ms_max = fields.value("delay_ms_max", plan.delay_ms_max);
  plan.stick = fields.value("stick", plan.stick);
  plan.fail = fields.value("fail", plan.fail);
  plan.cut = fields.value("cut", plan.cut);
  plan.flip = fields.value("flip", plan.flip);
  plan.lose = fields.value("lose", plan.lose);
  plan.lie = fields.value("lie", plan.lie);
  return read;
}

} // namespace

int main(int argc, char** argv) {
  auto plan = replay_plan{};
  try {
    plan = read_plan();
  } catch (const std::exception& ex) {
    std::fprintf(stderr,
                 "HICACHE_FAULTS: %s; expected JSON with a seed and a folder, or with damaged_rank "
                 "and damaged_after\n",
                 ex.what());
    return 2;
  }
  return run_replay(argc, argv, [&plan](rank_session& session) {
    auto extensions = rank_extensions{};
    if (plan.damaged_rank == session.rank)
      session.peers
        = std::make_unique<damaged_reducer>(std::move(session.peers), plan.damaged_after);
    if (plan.store.folder.empty())
      return extensions;
    plan.store.rank = session.rank;
    extensions.wrap = [&plan](std::unique_ptr<storage_backend> inner) {
      auto folder = page_folder::open(plan.store.folder);
      if (!folder) {
        std::fprintf(stderr, "HICACHE_FAULTS: %s\n", folder.error().detail.c_str());
        std::exit(2);
      }
      constexpr auto threads = 2; // storage_config::threads
      return std::make_unique<storage_queue>(
        std::make_unique<test::faulty_backend>(
          std::make_unique<test::waiting_store>(std::move(inner)), std::move(*folder), plan.store),
        threads);
    };
    return extensions;
  });
}
