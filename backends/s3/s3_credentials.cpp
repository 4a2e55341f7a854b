#include "backends/s3/s3_credentials.hpp"

#include "base/system_message.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

namespace hicache {

namespace {

std::string variable(const char* name) {
  const auto* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string_view trimmed(std::string_view text) {
  constexpr auto blanks = " \t\r";
  const auto first = std::min(text.find_first_not_of(blanks), text.size());
  return text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

bool is_complete(const s3_credentials& x) {
  return !x.access_key.empty() && !x.secret_key.empty();
}

} // namespace

result<s3_credentials> parse_s3_credentials(std::string_view text, std::string_view profile) {
  auto found = s3_credentials{};
  auto has_profile = false;
  auto is_in_profile = false;
  auto lines = std::istringstream{std::string{text}};
  for (auto line = std::string{}; std::getline(lines, line);) {
    const auto entry = trimmed(line);
    if (entry.starts_with('[')) {
      is_in_profile = entry.ends_with(']') && trimmed(entry.substr(1, entry.size() - 2)) == profile;
      has_profile |= is_in_profile;
      continue;
    }
    const auto sign = entry.find('=');
    if (!is_in_profile || sign == std::string_view::npos)
      continue;
    const auto name = trimmed(entry.substr(0, sign));
    const auto value = trimmed(entry.substr(sign + 1));
    if (name == "aws_access_key_id")
      found.access_key = value;
    else if (name == "aws_secret_access_key")
      found.secret_key = value;
    else if (name == "aws_session_token")
      found.session_token = value;
  }
  if (!has_profile)
    return fail(ec::invalid_argument, "there is no profile [" + std::string{profile} + "]");
  if (!is_complete(found))
    return fail(ec::invalid_argument,
                "profile [" + std::string{profile}
                  + "] is incomplete; expected aws_access_key_id and aws_secret_access_key");
  return found;
}

result<s3_credentials> load_s3_credentials(const s3_credential_source& source) {
  if (source.file.empty()) {
    auto found = s3_credentials{variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"),
                                variable("AWS_SESSION_TOKEN")};
    if (!is_complete(found))
      return fail(ec::invalid_argument, "there are no credentials for S3; expected a "
                                        "credentials_file, or the environment variables "
                                        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    return found;
  }
  auto file = std::ifstream{source.file};
  const auto text
    = std::string{std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{}};
  if (!file.is_open() || file.bad())
    return fail(ec::io_failure,
                "cannot read credentials_file '" + source.file + "': " + system_message(errno));
  auto found = parse_s3_credentials(text, source.profile);
  if (!found)
    return fail(found.error().code,
                "credentials_file '" + source.file + "': " + found.error().detail);
  return found;
}

} // namespace hicache
