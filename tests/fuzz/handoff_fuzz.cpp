// What a prefill instance says to a decode instance about a handoff.

#include "base/check.hpp"
#include "runtime/handoff_messages.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

using namespace hicache;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto message
    = parse_handoff_message(std::string_view{reinterpret_cast<const char*>(data), size});
  if (!message) {
    HICACHE_CHECK(message.error().code == ec::malformed_message);
    return 0;
  }
  const auto line = to_line(*message);
  const auto again = parse_handoff_message(line);
  HICACHE_CHECK(again && *again == *message);
  HICACHE_CHECK(is_last(line) == std::holds_alternative<handoff_last>(*message));
  return 0;
}
