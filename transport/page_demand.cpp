#include "transport/page_demand.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

span_state page_demand::admit(uint64_t reader, const page_span& wanted, time_point now) {
  if (const auto age = now - begin_; age >= limits::demand_moment) {
    last_ = std::exchange(current_, {});
    if (age >= 2 * limits::demand_moment)
      last_.clear();
    begin_ = now;
  }
  const auto at = last_.find(wanted.offset);
  const auto before = at == last_.end() ? count{} : at->second;
  auto& here = current_[wanted.offset];
  const auto knows
    = [reader](const count& x) { return std::ranges::find(x.readers, reader) != x.readers.end(); };
  const auto is_known = knows(here) || knows(before);
  const auto readers = here.readers.size() + before.readers.size();
  const auto insists = (wanted.flags & page_span::insists) != 0;
  if (!is_known && !insists && readers >= limits::demand_serves
      && (here.is_exported || before.is_exported))
    return span_state::refused;
  if (!is_known && readers < limits::demand_serves)
    here.readers.push_back(reader);
  if (readers == 0 || (is_known && readers == 1))
    return span_state::sent;
  here.is_exported = here.is_exported || (wanted.flags & page_span::exports) != 0;
  return span_state::in_demand;
}

} // namespace hicache
