#include "transport/page_demand.hpp"

#include "base/limits.hpp"

#include <utility>

namespace hicache {

span_state page_demand::admit(const page_span& wanted, time_point now) {
  if (const auto age = now - begin_; age >= limits::demand_moment) {
    last_ = std::exchange(current_, {});
    if (age >= 2 * limits::demand_moment)
      last_.clear();
    begin_ = now;
  }
  const auto before = last_.find(wanted.offset);
  auto& [sent, is_lent] = current_[wanted.offset];
  const auto times = sent + (before == last_.end() ? 0 : before->second.sent);
  const auto has_lender = is_lent || (before != last_.end() && before->second.is_lent);
  if (times >= limits::demand_serves && has_lender && (wanted.flags & page_span::insists) == 0)
    return span_state::refused;
  ++sent;
  if (times == 0)
    return span_state::sent;
  is_lent = is_lent || (wanted.flags & page_span::lends) != 0;
  return span_state::in_demand;
}

} // namespace hicache
