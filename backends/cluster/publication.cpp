#include "backends/cluster/publication.hpp"

#include "backends/ask.hpp"
#include "base/limits.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace hicache {

void publication::add(size_t position, const page_write& page, const segment_slot& slot) {
  next_.positions.push_back(position);
  next_.slots.list.push_back(slot);
  next_.copies.push_back({.page = {slot.key, slot.offset, slot.generation, slot.length},
                          .parent = page.parent,
                          .fingerprint = options_.fingerprint,
                          .tenant = page.tenant,
                          .copies = static_cast<uint8_t>(options_.copies)});
  bytes_ += slot.length;
  if (bytes_ >= limits::put_part_bytes || next_.positions.size() == limits::storage_batch_pages)
    send();
  take_answers([] { return caf::timespan{0}; });
}

void publication::send() {
  if (next_.positions.empty())
    return;
  auto& part = sent_.emplace_back(std::exchange(next_, {}));
  part.slots.only_new = true;
  publishing_.push_back(
    self_->request(options_.segment, caf::infinite, atom::publish_v, part.slots));
  bytes_ = 0;
}

void publication::finish(std::vector<result<void>>& outcome) {
  send();
  const auto left = [this] { return time_left(*options_.clock, options_.deadline); };
  take_answers(left);
  auto unwanted = segment_slots{};
  for (auto i = size_t{0}; i < sent_.size(); ++i) {
    auto& part = sent_[i];
    if (i >= answered_)
      part.end = fail(ec::deadline_exceeded);
    if (part.end)
      continue;
    for (const auto position : part.positions)
      outcome[position] = part.end;
    unwanted.list.insert(unwanted.list.end(), part.slots.list.begin(), part.slots.list.end());
  }
  if (!unwanted.list.empty())
    self_->send(options_.segment, atom::abort_v, std::move(unwanted));
  auto copied = uint64_t{0};
  for (auto& answer : copying_)
    receive_within(
      self_, answer, left(), [&copied](const page_totals& done) { copied += done.pages; },
      [](const caf::error&) {});
  if (copied < copies_wanted_)
    spdlog::warn("{} of {} copies of pages for other hosts are missing", copies_wanted_ - copied,
                 copies_wanted_);
}

void publication::take_answers(const std::function<caf::timespan()>& patience) {
  for (; answered_ < sent_.size(); ++answered_) {
    auto refused = std::vector<page_key>{};
    auto end = result<void>{};
    receive_within(
      self_, publishing_[answered_], patience(),
      [&refused](key_batch& answer) { refused = std::move(answer.keys); },
      [&end](const caf::error& err) { end = tl::unexpected{from_caf(err)}; });
    if (!end && end.error().code == ec::deadline_exceeded)
      return;
    auto& part = sent_[answered_];
    if (end)
      request_copies(std::move(part.copies), refused);
    part.end = std::move(end);
  }
}

void publication::request_copies(std::vector<copied_page> pages,
                                 const std::vector<page_key>& refused) {
  std::erase_if(pages, [&refused](const copied_page& x) {
    return std::ranges::find(refused, x.page.key) != refused.end();
  });
  if (options_.copies == 1 || pages.empty())
    return;
  if (!targets_)
    targets_ = options_.choose_targets(pages.front().page.key);
  copies_wanted_ += pages.size() * (options_.copies - uint64_t{1});
  const auto request = page_copies{options_.member, std::move(pages)};
  for (const auto& target : *targets_)
    copying_.push_back(self_->request(target, caf::infinite, atom::copy_v, request));
}

} // namespace hicache
