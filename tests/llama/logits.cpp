// llama-logits MODEL_FOLDER JOB_FILE: the model by itself, without hicache's actors. The job is a
// JSON object: "prompts" (lists of tokens), "chunk" (tokens of a prompt computed at once), "dtype"
// and "page_size" of the KV, "steps" (tokens to add to each prompt, each the likeliest), and maybe
// "flip": a layer, a part (0: K, 1: V), a page and a byte of its rows there, whose second highest
// bit is wrong once the prompts are computed. Prints, for each prompt, the scores after its last
// token and the added tokens. All prompts are computed side by side. Rank 0 prints.

#include "examples/llama/peers.hpp"
#include "examples/llama/transformer.hpp"

#include <mpi.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <utility>

namespace {

using namespace llama;
using nlohmann::json;

struct sequence {
  std::vector<hicache::token_id> tokens;
  std::vector<hicache::page_index> pages;
  uint64_t computed = 0;
  /// Tokens at the end.
  size_t wanted = 0;
  json scores;
};

/// Memory for one page after the other, as a pool of hicache's.
struct pool {
  pool(const hicache::pool_shape& shape, uint32_t pages)
    : geometry(shape, hicache::host_layout::layer_first, pages),
      memory(geometry.total_bytes() / sizeof(uint64_t) + 1) {}

  hicache::device_layers layers() {
    return hicache::device_layers::of(geometry, std::bit_cast<uint64_t>(memory.data()));
  }

  hicache::pool_geometry geometry;
  void flip(const std::vector<uint32_t>& where) {
    const auto part = where[1] == 0 ? hicache::kv_part::key : hicache::kv_part::value;
    const auto rows = geometry.rows(where[0], part, where[2]);
    reinterpret_cast<uint8_t*>(memory.data())[rows.offset + where[3]] ^= 64;
  }

  std::vector<uint64_t> memory;
};

/// Computes the next part of every sequence that has one. Appends the likeliest token to those that
/// are complete.
void advance(transformer& model, std::vector<sequence>& all, const json& job) {
  const auto vocabulary = size_t{model.config().vocabulary};
  auto slices = std::vector<slice>{};
  auto whose = std::vector<sequence*>{};
  for (auto& each : all) {
    if (each.tokens.size() == each.wanted)
      continue;
    const auto count
      = std::min<uint64_t>(each.tokens.size() - each.computed, job["chunk"].get<uint64_t>());
    slices.push_back({std::span{each.tokens}.subspan(each.computed, count), each.computed,
                      each.pages, nullptr, each.computed + count == each.tokens.size()});
    each.computed += count;
    if (slices.back().wants_scores)
      whose.push_back(&each);
  }
  const auto done = model.compute(slices).value();
  for (auto i = size_t{0}; i < whose.size(); ++i) {
    const auto scores = std::span{done.scores}.subspan(i * vocabulary, vocabulary);
    if (whose[i]->scores.is_null())
      whose[i]->scores = scores;
    const auto best = std::ranges::max_element(scores) - scores.begin();
    whose[i]->tokens.push_back(static_cast<hicache::token_id>(best));
  }
}

int run(const char* folder, const char* job_file) {
  const auto ranks = peers{MPI_COMM_WORLD};
  const auto job = json::parse(std::ifstream{job_file});
  const auto types = std::map<std::string, element_type>{
    {"fp32", element_type::fp32}, {"fp16", element_type::fp16}, {"bf16", element_type::bf16}};
  const auto type = types.at(job["dtype"].get<std::string>());
  const auto config = read_model_config(folder);
  auto weights = config ? load_weights(*config, folder, static_cast<uint32_t>(ranks.rank()),
                                       static_cast<uint32_t>(ranks.size()))
                        : tl::unexpected{config.error()};
  if (!weights) {
    std::fprintf(stderr, "%s\n", weights.error().detail.c_str());
    return 2;
  }
  const auto shape = hicache::pool_shape{hicache::attention_kind::mha,
                                         config->layers,
                                         weights->kv_heads,
                                         config->head_dim,
                                         config->head_dim,
                                         size_of(type),
                                         job["page_size"].get<uint32_t>()};
  auto all = std::vector<sequence>{};
  const auto steps = job["steps"].get<uint64_t>();
  auto next_page = hicache::page_index{1};
  for (const auto& prompt : job["prompts"]) {
    all.emplace_back().tokens = prompt.get<std::vector<hicache::token_id>>();
    all.back().wanted = all.back().tokens.size() + steps;
    const auto pages = all.back().wanted / shape.page_size + 1;
    for (auto i = uint64_t{0}; i < pages; ++i)
      all.back().pages.push_back(next_page++);
  }
  auto memory = pool{shape, next_page};
  auto model = transformer{
    *config, std::move(*weights),  memory.layers(),
    type,    make_cpu_processor(), [&](std::span<float> values) { ranks.sum(values); }};
  auto answer = json::array();
  auto flip = job.value("flip", std::vector<uint32_t>{});
  while (std::ranges::any_of(all, [](const auto& x) { return x.tokens.size() < x.wanted; })) {
    advance(model, all, job);
    if (!flip.empty()
        && std::ranges::none_of(all, [](const auto& x) { return x.scores.is_null(); }))
      memory.flip(std::exchange(flip, {}));
  }
  for (const auto& each : all)
    answer.push_back(
      {{"scores", each.scores},
       {"tokens", std::vector(each.tokens.end() - static_cast<long>(steps), each.tokens.end())}});
  if (ranks.rank() == 0)
    std::printf("%s\n", answer.dump().c_str());
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: llama-logits MODEL_FOLDER JOB_FILE\n");
    return 2;
  }
  MPI_Init(&argc, &argv);
  const auto code = run(argv[1], argv[2]);
  MPI_Finalize();
  return code;
}
