#include "runtime/completions_api.hpp"

namespace hicache {

using nlohmann::json;

std::string json_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string json_event(const json& value) {
  return "data: " + json_text(value) + "\n\n";
}

std::vector<token_id> prompt_tokens(const json& prompt) {
  auto tokens = std::vector<token_id>{};
  if (prompt.is_string())
    for (const auto byte : prompt.get_ref<const std::string&>())
      tokens.push_back(static_cast<uint8_t>(byte));
  if (!prompt.is_array())
    return tokens;
  for (const auto& each : prompt) {
    if (!each.is_number_unsigned() || each.get<uint64_t>() > UINT32_MAX)
      return {};
    tokens.push_back(each.get<token_id>());
  }
  return tokens;
}

json completion_error(int status, const std::string& sentence) {
  return {{"error",
           {{"message", sentence},
            {"type", status < 500 ? "invalid_request_error" : "server_error"},
            {"code", status}}}};
}

void answer_error(httplib::Response& answer, int status, const std::string& sentence) {
  answer.status = status;
  answer.set_content(json_text(completion_error(status, sentence)), "application/json");
}

} // namespace hicache
