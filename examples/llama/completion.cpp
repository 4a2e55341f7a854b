#include "examples/llama/completion.hpp"

#include <nlohmann/json.hpp>

#include <span>

namespace llama {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(completion_request, id, prompt, max_tokens, priority,
                                   ignores_end, salt, session, ends_session, prefill,
                                   receiver_ranks, receiver_pages)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(handoff_event, id, attempt, message)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(turn_input, added, aborted, handoffs, is_last)

std::vector<std::byte> encode(const turn_input& input) {
  const auto message = nlohmann::json::to_cbor(nlohmann::json(input));
  const auto bytes = std::as_bytes(std::span{message});
  return {bytes.begin(), bytes.end()};
}

turn_input decode(const std::vector<std::byte>& bytes) {
  const auto* const first = reinterpret_cast<const uint8_t*>(bytes.data());
  return nlohmann::json::from_cbor(first, first + bytes.size()).get<turn_input>();
}

} // namespace llama
