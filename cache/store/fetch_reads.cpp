#include "cache/store/fetch_reads.hpp"

#include "base/check.hpp"

#include <utility>

namespace hicache {

miss_reason reason_of(ec code) {
  switch (code) {
    case ec::not_found:
      return miss_reason::gone;
    case ec::corrupt_page:
      return miss_reason::corrupt;
    case ec::deadline_exceeded:
      return miss_reason::late;
    case ec::store_unavailable:
      return miss_reason::unavailable;
    default:
      return miss_reason::failed;
  }
}

bool is_failed_read(ec code) {
  return code != ec::not_found && code != ec::store_unavailable;
}

void fetch_reads::begin(std::vector<page_index> pages) {
  HICACHE_CHECK(pages_->empty() && !is_ended_);
  states_.resize(pages.size(), page_state::pending);
  marks_ = std::make_shared<read_marks>(pages.size());
  pages_ = std::make_shared<const std::vector<page_index>>(std::move(pages));
}

std::optional<fetch_reads::part> fetch_reads::next(const storage_traffic& traffic) {
  if (is_ended_ || asked_ == pages_->size() || reads_in_flight_ >= traffic.batches_in_flight
      || why_ <= miss_reason::gone)
    return std::nullopt;
  const auto first = asked_;
  const auto count = std::min<uint64_t>(pages_->size() - first, traffic.batch_pages);
  asked_ += count;
  ++reads_in_flight_;
  return part{first, count};
}

fetch_reads::outcome fetch_reads::finish(const part& sent, const storage_outcome& result) {
  HICACHE_CHECK(reads_in_flight_ > 0 && result.pages.size() == sent.count);
  --reads_in_flight_;
  auto ends = outcome{};
  for (auto i = sent.first; i < sent.first + sent.count; ++i) {
    auto& state = states_[i];
    if (state != page_state::pending)
      continue;
    const auto is_marked = marks_->has(i);
    const auto code = is_marked ? ec::none : result.pages[i - sent.first];
    ends.read += code == ec::none ? 1 : 0;
    if (code != ec::none) {
      stop(reason_of(code));
      ends.failures += is_failed_read(code) ? 1 : 0;
    }
    if (result.ticket != 0 && !is_marked) {
      state = page_state::quarantined;
      ends.quarantined.push_back((*pages_)[i]);
      continue;
    }
    state = code == ec::none ? page_state::read : page_state::failed;
    if (is_ended_)
      ends.free.push_back((*pages_)[i]);
  }
  return ends;
}

fetch_reads::answer fetch_reads::end() {
  HICACHE_CHECK(!std::exchange(is_ended_, true));
  auto result = answer{};
  for (auto i = uint64_t{0}; i < asked_; ++i)
    if (states_[i] == page_state::pending && marks_->has(i)) {
      states_[i] = page_state::read;
      ++result.read;
    }
  const auto gap
    = std::ranges::find_if(states_, [](page_state state) { return state != page_state::read; });
  const auto arrived = gap - states_.begin();
  result.arrived
    = std::make_shared<const std::vector<page_index>>(pages_->begin(), pages_->begin() + arrived);
  for (auto i = static_cast<size_t>(arrived); i < pages_->size(); ++i)
    if (i >= asked_ || states_[i] == page_state::read || states_[i] == page_state::failed)
      result.free.push_back((*pages_)[i]);
  return result;
}

} // namespace hicache
