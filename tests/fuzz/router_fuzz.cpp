// What the router reads: messages of an instance's events, bodies of clients, and streams of an
// instance in pieces.

#include "base/check.hpp"
#include "launch/router/completion_body.hpp"
#include "launch/router/prefix_index.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace {

using namespace hicache;

constexpr auto pages_max = size_t{64};

void apply(std::string_view message) {
  auto index = prefix_index{true, pages_max};
  // Twice: what is stored and removed twice counts once.
  for (auto i = 0; i < 2; ++i)
    if (const auto applied = index.apply(7, message); !applied)
      HICACHE_CHECK(applied.error().code == ec::malformed_message);
  HICACHE_CHECK(index.pages(7) <= index.size() && index.size() <= pages_max);
  const auto prompt = name_prompt({1, 2, 3, 4, 5}, "salt", index.shapes());
  HICACHE_CHECK(index.find(7, prompt).l1 <= 5);
  index.forget(7);
  HICACHE_CHECK(index.pages(7) == 0);
}

void read_body(std::string text) {
  const auto body = completion_body::parse(std::move(text));
  if (!body)
    return;
  static_cast<void>(body->tokens());
  static_cast<void>(body->salt());
  const auto changed = completion_body::parse(body->for_instance({"host:1"}));
  HICACHE_CHECK(changed && changed->tokens() == body->tokens());
}

void pass(std::string_view stream, size_t step) {
  auto gate = event_gate{};
  auto passed = std::string{};
  for (auto at = size_t{0}; at < stream.size(); at += step)
    passed += gate.pass(stream.substr(at, step));
  HICACHE_CHECK(passed + gate.rest() == stream);
  HICACHE_CHECK(gate.rest().find("\n\n") == std::string::npos);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  const auto input = std::string_view{reinterpret_cast<const char*>(data), size}.substr(1);
  switch (data[0] % 3) {
    case 0:
      apply(input);
      break;
    case 1:
      read_body(std::string{input});
      break;
    default:
      pass(input, size_t{1} + data[0] / 3);
  }
  return 0;
}
