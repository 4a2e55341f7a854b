#include "launch/replay_workload.hpp"

#include "base/about.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <utility>

namespace hicache {

namespace {

using json = nlohmann::json;

/// Vocabulary size of the synthetic tokens, typical of current models.
constexpr uint64_t vocabulary = 128'000;

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): distributes consecutive numbers over 64 bits.
constexpr uint64_t spread(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr token_id token_of(uint64_t block, uint64_t i) {
  return static_cast<token_id>(spread(spread(block) + i) % vocabulary);
}

/// Block ids outside those of traces, so that synthetic blocks never collide with a trace's.
constexpr uint64_t own_block(uint64_t kind, uint64_t a, uint64_t b) {
  return (uint64_t{1} << 63) | spread(spread(spread(kind) + a) + b) >> 1;
}

/// @returns the request, or an error
result<replay_request> parse_request(const json& row) {
  const auto number = [&](const char* key) -> result<uint64_t> {
    const auto i = row.find(key);
    if (i == row.end() || !i->is_number_unsigned())
      return fail(ec::invalid_argument, std::string{"expected a whole number under '"} + key + "'");
    return i->get<uint64_t>();
  };
  if (!row.is_object())
    return fail(ec::invalid_argument, "expected an object");
  auto request = replay_request{};
  const auto stamp = row.find("timestamp");
  if (stamp == row.end() || !stamp->is_number() || stamp->get<double>() < 0)
    return fail(ec::invalid_argument, "expected milliseconds under 'timestamp'");
  request.arrival_ms = stamp->get<double>();
  request.input_length = HICACHE_TRY(number("input_length"));
  request.output_length = HICACHE_TRY(number("output_length"));
  if (request.input_length == 0 || request.input_length > limits::request_tokens
      || request.output_length > limits::request_tokens)
    return fail(ec::invalid_argument,
                "expected an 'input_length' from 1 to " + std::to_string(limits::request_tokens));
  const auto ids = row.find("hash_ids");
  if (ids == row.end() || !ids->is_array())
    return fail(ec::invalid_argument, "expected a list under 'hash_ids'");
  for (const auto& id : *ids) {
    if (!id.is_number_unsigned())
      return fail(ec::invalid_argument, "expected whole numbers in 'hash_ids'");
    request.blocks.push_back(id.get<uint64_t>());
  }
  const auto needed = (request.input_length + trace_block_tokens - 1) / trace_block_tokens;
  if (request.blocks.size() != needed)
    return fail(ec::invalid_argument, "expected " + std::to_string(needed) + " 'hash_ids' for "
                                        + std::to_string(request.input_length) + " tokens, found "
                                        + std::to_string(request.blocks.size()));
  return request;
}

std::vector<token_id> tokens_of(const replay_request& request) {
  auto tokens = std::vector<token_id>(request.input_length);
  for (auto i = uint64_t{0}; i < tokens.size(); ++i)
    tokens[i] = token_of(request.blocks[i / trace_block_tokens], i % trace_block_tokens);
  return tokens;
}

} // namespace

result<std::vector<replay_request>> read_trace(const std::string& path, uint64_t limit) {
  auto file = std::ifstream{path};
  if (!file)
    return fail(ec::invalid_argument, "--trace: cannot read the file " + path);
  auto requests = std::vector<replay_request>{};
  auto text = std::string{};
  for (auto line = uint64_t{1}; std::getline(file, text); ++line) {
    if (limit != 0 && requests.size() >= limit)
      break;
    if (text.find_first_not_of(" \t\r") == std::string::npos)
      continue;
    const auto row = json::parse(text, nullptr, false);
    auto request = HICACHE_TRY(
      about_input("--trace: " + path + ":" + std::to_string(line),
                  row.is_discarded() ? fail(ec::invalid_argument, "expected one JSON object a line")
                                     : parse_request(row)));
    request.line = line;
    requests.push_back(std::move(request));
  }
  if (requests.empty())
    return fail(ec::invalid_argument, "--trace: " + path + " holds no request");
  return requests;
}

std::vector<replay_request> make_multi_turn(const multi_turn_workload& workload) {
  auto requests = std::vector<replay_request>{};
  for (auto round = uint64_t{1}; round <= workload.rounds; ++round)
    for (auto client = uint64_t{0}; client < workload.clients; ++client) {
      auto request = replay_request{};
      request.input_length = round * workload.turn_tokens;
      const auto blocks = (request.input_length + trace_block_tokens - 1) / trace_block_tokens;
      const auto shared = workload.turn_tokens / 2 / trace_block_tokens;
      for (auto block = uint64_t{0}; block < blocks; ++block)
        request.blocks.push_back(block < shared ? own_block(0, 0, block)
                                                : own_block(1, client, block));
      request.line = requests.size() + 1;
      request.session = client + 1;
      request.ends_session = round == workload.rounds;
      requests.push_back(std::move(request));
    }
  return requests;
}

token_buffer prompt_tokens(const replay_request& request) {
  return std::make_shared<const std::vector<token_id>>(tokens_of(request));
}

token_buffer prompt_and_output_tokens(const replay_request& request, uint64_t position) {
  auto tokens = tokens_of(request);
  for (auto i = uint64_t{0}; i < request.output_length; ++i)
    tokens.push_back(token_of(own_block(2, position, 0), i));
  return std::make_shared<const std::vector<token_id>>(std::move(tokens));
}

} // namespace hicache
