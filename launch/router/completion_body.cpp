#include "launch/router/completion_body.hpp"

#include "base/json_fields.hpp"
#include "runtime/completions_api.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

/// Deeper bodies are refused: copying and writing them takes as much stack.
constexpr auto levels_max = 64;

constexpr auto event_bytes_max = size_t{16} << 20;

constexpr auto prefill_key = "prefill";

} // namespace

result<completion_body> completion_body::parse(std::string text) {
  auto body = parse_object(text, text.size(), levels_max);
  if (!body)
    return fail(ec::invalid_argument,
                "expected a JSON object of " + std::to_string(levels_max) + " levels at most");
  auto parsed = completion_body{};
  parsed.text_ = std::move(text);
  parsed.body_ = std::move(*body);
  return parsed;
}

std::vector<token_id> completion_body::tokens() const {
  const auto prompt = body_.find("prompt");
  return prompt == body_.end() ? std::vector<token_id>{} : prompt_tokens(*prompt);
}

std::string completion_body::salt() const {
  const auto salt = body_.find("cache_salt");
  return salt != body_.end() && salt->is_string() ? salt->get<std::string>() : "";
}

std::string completion_body::for_instance(const std::vector<std::string>& prefill) const {
  if (prefill.empty() && !body_.contains(prefill_key))
    return text_;
  auto body = body_;
  body.erase(prefill_key);
  if (!prefill.empty())
    body[prefill_key] = prefill;
  return body.dump();
}

std::string event_gate::pass(std::string_view bytes) {
  rest_ += bytes;
  auto end = size_t{0};
  for (const auto* const mark : {"\n\n", "\r\n\r\n"})
    if (const auto found = rest_.rfind(mark); found != std::string::npos)
      end = std::max(end, found + std::string_view{mark}.size());
  auto whole = rest_.substr(0, end);
  rest_.erase(0, end);
  return whole;
}

bool event_gate::is_overfull() const noexcept {
  return rest_.size() > event_bytes_max;
}

} // namespace hicache
