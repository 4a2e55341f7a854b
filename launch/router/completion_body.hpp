#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace hicache {

/// A POST /v1/completions on its way through the router: what the choice needs of it. All else is
/// for the instance to judge.
class completion_body {
public:
  /// @returns invalid_argument with a sentence if it is no JSON object
  static result<completion_body> parse(std::string text);

  /// The prompt's tokens, the bytes of a text; none if it is several prompts, or no prompt.
  std::vector<token_id> tokens() const;

  /// The namespace's salt; empty without one.
  std::string salt() const;

  /// The body for an instance. Whom to ask for a prompt's KV is the router's to say: what a client
  /// says of it is left out.
  /// @param prefill HOST:PORT of instances to ask, in this order; empty: the instance decides.
  std::string for_instance(const std::vector<std::string>& prefill) const;

private:
  std::string text_;
  nlohmann::json body_;
};

/// Passes a stream of events on, whole ones only: what breaks off is left out.
class event_gate {
public:
  /// @returns the whole events that are there by now
  std::string pass(std::string_view bytes);

  /// What follows the last whole event.
  const std::string& rest() const noexcept { return rest_; }

  /// Whether that is more than an event can be.
  bool is_overfull() const noexcept;

private:
  std::string rest_;
};

} // namespace hicache
