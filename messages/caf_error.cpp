#include "hicache/caf_error.hpp"

#include <caf/atom.hpp>
#include <caf/deep_to_string.hpp>
#include <caf/exit_reason.hpp>
#include <caf/message.hpp>
#include <caf/sec.hpp>

namespace hicache {

namespace {

/// The detail that to_caf() stored in the context, or CAF's own rendering of another context.
std::string context_of(const caf::error& err) {
  if (err.context().match_elements<std::string>())
    return err.context().get_as<std::string>(0);
  return err.context().empty() ? std::string{} : caf::deep_to_string(err.context());
}

} // namespace

caf::error to_caf(const error& err) {
  return caf::make_error(err.code, err.detail);
}

error from_caf(const caf::error& err) {
  if (!err)
    return {};
  if (err.category() == caf::atom("hicache"))
    return {static_cast<ec>(err.code()), context_of(err)};
  if (err.category() == caf::atom("system")) {
    const auto code = static_cast<caf::sec>(err.code());
    if (code == caf::sec::request_timeout)
      return {ec::deadline_exceeded, "no answer in time"};
    return {ec::peer_unreachable, caf::to_string(code) + context_of(err)};
  }
  if (err.category() == caf::atom("exit"))
    return {ec::peer_unreachable, caf::to_string(static_cast<caf::exit_reason>(err.code()))};
  return {ec::peer_unreachable, "error " + std::to_string(err.code())};
}

} // namespace hicache
