#pragma once

#include "hicache/ids.hpp"

#include <nlohmann/json.hpp>

#include <httplib.h>

#include <string>
#include <vector>

/// What programs that speak OpenAI's completions API share.
namespace hicache {

/// JSON as text. Bytes that are not UTF-8, as quotes of what others sent may have, are replaced.
std::string json_text(const nlohmann::json& value);

/// The same as an event of a stream (Server-Sent Events).
std::string json_event(const nlohmann::json& value);

/// The tokens of a completion's prompt: those of a list, or the bytes of a text.
/// @returns nothing if it is neither
std::vector<token_id> prompt_tokens(const nlohmann::json& prompt);

/// The body of an answer, or an event, about an error.
nlohmann::json completion_error(int status, const std::string& sentence);

/// Answers with an error.
void answer_error(httplib::Response& answer, int status, const std::string& sentence);

} // namespace hicache
