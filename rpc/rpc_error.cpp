#include "rpc/rpc_error.hpp"

#include "hicache/caf_error.hpp"

#include <charconv>
#include <string_view>

namespace hicache {

namespace {

constexpr auto prefix = std::string_view{"hicache error "};

/// Maximum length of a peer's text; the rest is cut.
constexpr auto detail_max = size_t{512};

} // namespace

kj::Exception to_exception(const error& why) {
  auto text = std::string{prefix} + std::to_string(static_cast<int>(why.code)) + ": " + why.detail;
  return {kj::Exception::Type::FAILED, __FILE__, __LINE__, kj::str(text.c_str())};
}

error from_exception(const kj::Exception& ex) {
  const auto text = std::string_view{ex.getDescription().begin(), ex.getDescription().size()};
  if (const auto at = text.find(prefix); at != text.npos) {
    const auto* begin = text.data() + at + prefix.size();
    const auto* end = text.data() + text.size();
    auto code = 0U;
    const auto [rest, status] = std::from_chars(begin, end, code);
    if (status == std::errc{} && code > 0 && code < ec_count && end - rest >= 2)
      return {static_cast<ec>(code), std::string{rest + 2, end}.substr(0, detail_max)};
  }
  switch (ex.getType()) {
    case kj::Exception::Type::OVERLOADED:
      return {ec::deadline_exceeded, "no answer in time"};
    case kj::Exception::Type::UNIMPLEMENTED:
      return {ec::unsupported, "the peer's version does not know this request"};
    case kj::Exception::Type::DISCONNECTED:
      return {ec::peer_unreachable, "connection closed"};
    default:
      return {ec::peer_unreachable, std::string{text.substr(0, detail_max)}};
  }
}

caf::message to_answer(const error& why) {
  return caf::make_message(to_caf(why));
}

} // namespace hicache
