#include "runtime/handoff_messages.hpp"

#include "base/overloaded.hpp"
#include "hicache/handoff.hpp"

#include <nlohmann/json.hpp>

namespace hicache {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(handoff_endpoint, address, memory, nonce)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(handoff_offer, handoff, generation, offset, first_page, tokens,
                                   receiver_ranks, fingerprint, senders)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(handoff_progress, layer, pages)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(handoff_last, token)

std::string to_line(const handoff_message& message) {
  const auto json = std::visit(overloaded{[](const error& why) {
                                            return nlohmann::json{{"error", why.detail}};
                                          },
                                          [](const auto& other) { return nlohmann::json(other); }},
                               message);
  // Sentences may quote bytes of others.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool is_last(std::string_view line) noexcept {
  return line.starts_with(R"({"token":)");
}

result<handoff_message> parse_handoff_message(std::string_view line) {
  try {
    // The library would convert other numbers than ours, some of them with undefined behaviour.
    const auto is_ours = [](int, nlohmann::json::parse_event_t, const nlohmann::json& part) {
      return !part.is_number() || part.is_number_unsigned();
    };
    const auto json = nlohmann::json::parse(line, is_ours);
    if (json.contains("error"))
      return error{ec::peer_unreachable, json.at("error").get<std::string>()};
    if (json.contains("token"))
      return json.get<handoff_last>();
    if (json.contains("layer"))
      return json.get<handoff_progress>();
    return json.get<handoff_offer>();
  } catch (const nlohmann::json::exception& failure) {
    return fail(ec::malformed_message,
                std::string{"the sender sent no message of a handoff: "} + failure.what());
  }
}

std::string handoff_end(token_id first) {
  return to_line(handoff_last{first});
}

std::string handoff_failure(const std::string& why) {
  return to_line(error{ec::peer_unreachable, why});
}

} // namespace hicache
