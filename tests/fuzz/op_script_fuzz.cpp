// Op scripts from bytes. An input that begins with a brace is text, for the script interpreter and
// for the player of op logs; others are chance for the generator, whose sequences the models
// follow.

#include "cache/oplog/op_log.hpp"
#include "cache/oplog/op_script.hpp"
#include "tests/model/operation_generator.hpp"
#include "tests/model/sequence.hpp"

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string_view>

namespace {

using namespace hicache;
using namespace hicache::test;

/// Sizes of five digits and more only cost memory.
bool is_small(std::string_view line) {
  if (line.find("config") == line.npos && line.find("options") == line.npos)
    return true;
  auto digits = 0;
  for (const auto each : line) {
    digits = std::isdigit(static_cast<unsigned char>(each)) != 0 ? digits + 1 : 0;
    if (digits > 4 || each == 'E')
      return false;
  }
  return true;
}

void run_text(std::string_view text) {
  auto script = op_script{};
  auto player = op_log_player{};
  auto is_log = true;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const auto line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (!is_small(line))
      return;
    if (script.run(line) && script.cache() != nullptr)
      script.cache()->check_invariants();
    const auto entry = parse_op_log_entry(line);
    is_log = is_log && entry && player.play(*entry);
    if (is_log)
      player.cache()->check_invariants();
  }
}

void run_sequence(std::span<const uint8_t> bytes) {
  const auto played = generate_from(bytes);
  const auto wrong = play(played);
  if (!wrong)
    return;
  play_alone(played, &std::cerr);
  std::fprintf(stderr, "action %zu: %s\n", wrong->action, wrong->what.c_str());
  std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0 && data[0] == '{')
    run_text({reinterpret_cast<const char*>(data), size});
  else
    run_sequence({data, size});
  return 0;
}
