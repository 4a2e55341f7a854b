// serde_bench MODEL_FOLDER TEXT_FILE OUTPUT.json: what each chain of codecs keeps of KV, and how
// fast it is beside memcpy, as rows of the table printed by run.sh.
//
// The KV is computed: the model of examples/llama reads the text, a token per word, and writes K
// and V in bf16 to a pool. An object is one KV head of a page of 64 tokens, all layers, in the
// order of page_head. One thread; medians of rounds that have every measurement once.

#include "backends/serde/object_codec.hpp"
#include "base/try.hpp"
#include "examples/llama/transformer.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace hicache;
using nlohmann::json;

constexpr auto page_tokens = uint32_t{64};
constexpr auto pages = uint32_t{32};
constexpr auto rounds = 9;

using object_list = std::vector<std::vector<std::byte>>;

pool_shape shape_of(const llama::model_config& config) {
  return {attention_kind::mha, config.layers,
          config.kv_heads,     config.head_dim,
          config.head_dim,     2,
          page_tokens,         0};
}

/// A token per word, as far as the pages reach. Equal words are equal tokens.
std::vector<token_id> tokens_of(const std::string& text, uint32_t vocabulary) {
  auto tokens = std::vector<token_id>{};
  auto words = std::istringstream{text};
  for (auto word = std::string{}; tokens.size() < size_t{pages} * page_tokens && words >> word;)
    tokens.push_back(static_cast<token_id>(std::hash<std::string>{}(word) % vocabulary));
  return tokens;
}

/// Runs the model over the text.
/// @returns the pool's memory, laid out as layer_first, with page 0 for padding
result<std::vector<uint64_t>> compute_kv(const char* folder, const std::string& text,
                                         pool_shape& shape) {
  const auto config = HICACHE_TRY(llama::read_model_config(folder));
  auto weights = HICACHE_TRY(llama::load_weights(config, folder, 0, 1));
  shape = shape_of(config);
  const auto geometry = pool_geometry{shape, host_layout::layer_first, pages + 1};
  auto memory = std::vector<uint64_t>(geometry.total_bytes() / sizeof(uint64_t) + 1);
  const auto layers = device_layers::of(geometry, std::bit_cast<uint64_t>(memory.data()));
  auto model = llama::transformer{
    config, std::move(weights), layers, element_type::bf16, llama::make_cpu_processor(), {}};
  const auto tokens = tokens_of(text, config.vocabulary);
  auto numbers = std::vector<page_index>{};
  for (auto page = page_index{1}; page <= pages; ++page)
    numbers.push_back(page);
  constexpr auto step = size_t{256};
  for (auto first = size_t{0}; first < tokens.size(); first += step) {
    const auto count = std::min(step, tokens.size() - first);
    const auto part = llama::slice{std::span{tokens}.subspan(first, count), first, numbers};
    HICACHE_TRY(model.compute(std::span{&part, 1}));
  }
  return memory;
}

/// The objects of the pages: one head each, in the order of page_head.
object_list objects_of(const std::vector<uint64_t>& memory, const pool_shape& shape) {
  const auto geometry = pool_geometry{shape, host_layout::layer_first, pages + 1};
  const auto bytes = std::as_bytes(std::span{memory});
  auto objects = object_list{};
  for (auto page = page_index{1}; page <= pages; ++page)
    for (auto head = uint32_t{0}; head < shape.kv_heads; ++head) {
      auto& object = objects.emplace_back();
      // A single head has the same order under layer_first and page_head.
      for (const auto& run : geometry.object_runs(page, {head, 1})) {
        const auto part = bytes.subspan(run.offset, run.length);
        object.insert(object.end(), part.begin(), part.end());
      }
    }
  return objects;
}

/// A key for AES-256-GCM that protects nothing.
constexpr auto keys = "* bench 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

struct measured_chain {
  std::string name;
  std::unique_ptr<serde::object_codec> codec;
  std::unique_ptr<serde::codec_scratch> scratch;
  object_list encoded;
  std::vector<double> encode_seconds;
  std::vector<double> decode_seconds;
};

measured_chain open_chain(const std::string& name, int level, const pool_shape& shape) {
  auto options = serde::object_codec_options{};
  options.chain = serde::parse_codec_chain(name).value();
  options.zstd_level = level;
  options.objects
    = serde::kv_object_shape{shape, host_layout::page_head, 1, serde::element_type::bf16};
  auto chain = measured_chain{};
  chain.name = level == 1 ? name : name + ", level " + std::to_string(level);
  chain.scratch = std::make_unique<serde::codec_scratch>(options);
  chain.codec
    = std::move(serde::object_codec::make(options, serde::key_ring::parse(keys).value()).value());
  return chain;
}

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

page_key key_of(size_t number) {
  auto key = page_key{};
  std::memcpy(key.bytes.data(), &number, sizeof number);
  return key;
}

/// Encodes all objects and decodes them into `back`, once.
/// @returns false if an object does not come back, or not as it was although nothing is quantised
bool run_round(measured_chain& chain, const object_list& objects, object_list& back) {
  auto is_good = true;
  chain.encoded.resize(objects.size());
  for (auto i = size_t{0}; i < objects.size(); ++i)
    chain.encoded[i].resize(chain.codec->encoded_bytes_max(objects[i].size()));
  chain.encode_seconds.push_back(seconds_of([&] {
    for (auto i = size_t{0}; i < objects.size(); ++i) {
      const auto whole = std::span<const std::byte>{objects[i]};
      const auto length
        = chain.codec->encode(key_of(i), 0, {&whole, 1}, chain.encoded[i], *chain.scratch);
      is_good &= length.has_value();
      chain.encoded[i].resize(length.value_or(0));
    }
  }));
  // Decoding decrypts in place.
  auto copies = chain.encoded;
  chain.decode_seconds.push_back(seconds_of([&] {
    for (auto i = size_t{0}; i < objects.size(); ++i) {
      const auto whole = std::span{back[i]};
      is_good &= chain.codec->decode(key_of(i), copies[i], {&whole, 1}, *chain.scratch).has_value();
    }
  }));
  return is_good && (chain.name.starts_with("fp8") || back == objects);
}

uint64_t total_of(const object_list& objects) {
  auto bytes = uint64_t{0};
  for (const auto& object : objects)
    bytes += object.size();
  return bytes;
}

json row_of(const std::string& name, double value, const char* unit,
            std::optional<double> baseline = {}) {
  return {{"name", name},
          {"value", value},
          {"unit", unit},
          {"baseline", baseline ? json(*baseline) : json()},
          {"ratio", baseline ? json(value / *baseline) : json()},
          {"target", nullptr},
          {"holds", nullptr}};
}

json rows_of(const std::vector<measured_chain>& chains, uint64_t bytes, double copy_seconds) {
  const auto gib = static_cast<double>(bytes) / (uint64_t{1} << 30);
  auto rows = json::array();
  for (const auto& chain : chains)
    rows.push_back(row_of("KV kept by " + chain.name,
                          static_cast<double>(total_of(chain.encoded)) / (1 << 20), "MiB",
                          static_cast<double>(bytes) / (1 << 20)));
  for (const auto& chain : chains) {
    rows.push_back(row_of("encode KV, " + chain.name, gib / median(chain.encode_seconds), "GiB/s",
                          gib / copy_seconds));
    rows.push_back(row_of("decode KV, " + chain.name, gib / median(chain.decode_seconds), "GiB/s",
                          gib / copy_seconds));
  }
  return {{"rows", rows}};
}

int run(const char* folder, const char* text_file, const char* output) {
  auto file = std::ifstream{text_file};
  const auto text = std::string{std::istreambuf_iterator{file}, {}};
  if (tokens_of(text, 1).size() < size_t{pages} * page_tokens) {
    std::fprintf(stderr, "serde_bench: '%s' has less than %u words\n", text_file,
                 pages * page_tokens);
    return 2;
  }
  auto shape = pool_shape{};
  const auto memory = compute_kv(folder, text, shape);
  if (!memory) {
    std::fprintf(stderr, "serde_bench: %s\n", to_string(memory.error()).c_str());
    return 2;
  }
  const auto objects = objects_of(*memory, shape);
  auto chains = std::vector<measured_chain>{};
  for (const auto* name : {"lz4", "zstd", "fp8", "fp8+zstd", "aes-256-gcm", "zstd+aes-256-gcm",
                           "fp8+zstd+aes-256-gcm"})
    chains.push_back(open_chain(name, 1, shape));
  chains.push_back(open_chain("zstd", 9, shape));
  auto back = objects;
  auto copies = std::vector<double>{};
  for (auto round = 0; round < rounds; ++round) {
    copies.push_back(seconds_of([&] {
      for (auto i = size_t{0}; i < objects.size(); ++i)
        std::memcpy(back[i].data(), objects[i].data(), objects[i].size());
    }));
    for (auto& chain : chains)
      if (!run_round(chain, objects, back)) {
        std::fprintf(stderr, "serde_bench: an object did not pass %s\n", chain.name.c_str());
        return 2;
      }
  }
  std::ofstream{output} << rows_of(chains, total_of(objects), median(copies)).dump(2) << "\n";
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: serde_bench MODEL_FOLDER TEXT_FILE OUTPUT.json\n");
    return 2;
  }
  return run(argv[1], argv[2], argv[3]);
}
