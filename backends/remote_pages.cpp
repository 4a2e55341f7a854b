#include "backends/remote_pages.hpp"

#include "backends/ask.hpp"
#include "backends/object_parts.hpp"
#include "base/limits.hpp"
#include "base/page_checksum.hpp"
#include "base/try.hpp"

#include <caf/actor_cast.hpp>
#include <caf/scoped_actor.hpp>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

namespace hicache {

namespace {

/// Requests to a node in flight, in order.
template <class Answer, class Verb, class Request>
class request_line {
public:
  request_line(caf::actor_system& system, const clock_source& clock, page_carrier_actor node,
               time_point deadline)
    : self_(system), clock_(clock), node_(std::move(node)), deadline_(deadline) {}

  bool is_full() const noexcept { return open_.size() == limits::transfers_in_flight; }

  bool is_empty() const noexcept { return open_.empty(); }

  void send(Request request) {
    open_.push_back(self_->request(node_, caf::infinite, Verb::value, std::move(request)));
  }

  /// Waits for the oldest answer.
  /// @pre not empty
  result<Answer> receive() {
    auto answer = result<Answer>{};
    receive_within(
      self_, open_.front(), time_left(clock_, deadline_),
      [&answer](Answer& x) { answer = std::move(x); },
      [&answer](caf::error& err) { answer = tl::unexpected{from_caf(err)}; });
    open_.pop_front();
    return answer;
  }

private:
  using response = decltype(std::declval<caf::scoped_actor&>()->request(
    std::declval<const page_carrier_actor&>(), caf::infinite, Verb::value,
    std::declval<Request>()));

  caf::scoped_actor self_;
  const clock_source& clock_;
  page_carrier_actor node_;
  time_point deadline_;
  std::deque<response> open_;
};

bool is_full(const page_upload& upload) {
  return upload.pieces.size() == limits::transfer_ranges
         || upload.bytes.size() == limits::transfer_bytes;
}

/// The ranges read by one message.
struct planned_read {
  page_ranges ranges;
  /// The page of each range.
  std::vector<size_t> pages;
  size_t bytes = 0;
};

std::vector<planned_read> plan(std::span<const remote_read> pages) {
  auto messages = std::vector<planned_read>{};
  for (auto i = size_t{0}; i < pages.size(); ++i)
    for (auto offset = uint32_t{0}; offset < pages[i].from.length;) {
      if (messages.empty() || messages.back().bytes == limits::transfer_bytes
          || messages.back().ranges.size() == limits::transfer_ranges)
        messages.emplace_back();
      auto& message = messages.back();
      const auto length = static_cast<uint32_t>(
        std::min<size_t>(pages[i].from.length - offset, limits::transfer_bytes - message.bytes));
      message.ranges.push_back(
        {pages[i].key, pages[i].from.offset, pages[i].from.generation, offset, length});
      message.pages.push_back(i);
      message.bytes += length;
      offset += length;
    }
  return messages;
}

/// A page being received.
struct arriving_page {
  explicit arriving_page(const remote_read& wanted) : page(wanted) {}

  /// @returns empty while more is to come
  std::optional<result<void>> take(const range_origin& origin, std::span<const std::byte> bytes,
                                   uint64_t fingerprint) {
    if (origin.status == range_status::gone)
      return fail(ec::not_found, "it was removed meanwhile");
    if (origin.status != range_status::there || origin.fingerprint != fingerprint)
      return fail(ec::corrupt_page, "another page is there");
    sum.copy(bytes, part_of(page.parts, done, bytes.size()));
    done += bytes.size();
    if (done < page.from.length)
      return std::nullopt;
    return sum.value() == origin.checksum ? result<void>{} : fail(ec::corrupt_page);
  }

  const remote_read& page;
  running_checksum sum;
  size_t done = 0;
};

} // namespace

remote_pages::remote_pages(caf::actor_system& system, const clock_source& clock,
                           const node_actor& node)
  : system_(&system), clock_(&clock),
    node_(caf::actor_cast<page_carrier_actor>(caf::actor_cast<caf::strong_actor_ptr>(node))) {}

result<std::vector<uint64_t>> remote_pages::write(uint64_t reservation,
                                                  std::span<const page_write* const> pages,
                                                  time_point deadline) const {
  auto line
    = request_line<atom::ok, atom::set, page_upload_ptr>{*system_, *clock_, node_, deadline};
  auto next = page_upload{reservation, {}, {}};
  const auto send = [&]() -> result<void> {
    if (line.is_full())
      HICACHE_TRY(line.receive());
    line.send(std::make_shared<const page_upload>(std::exchange(next, {reservation, {}, {}})));
    return {};
  };
  auto checksums = std::vector<uint64_t>{};
  for (const auto* page : pages) {
    auto sum = running_checksum{};
    const auto length = total_bytes(page->parts);
    for (auto offset = size_t{0}; offset < length;) {
      next.bytes.reserve(limits::transfer_bytes);
      const auto begin = next.bytes.size();
      const auto count = std::min(length - offset, limits::transfer_bytes - begin);
      for (const auto& part : part_of<const std::byte>(page->parts, offset, count))
        next.bytes.insert(next.bytes.end(), part.begin(), part.end());
      sum.add(std::span{next.bytes}.subspan(begin));
      next.pieces.push_back(
        {page->key, static_cast<uint32_t>(offset), static_cast<uint32_t>(count)});
      offset += count;
      if (is_full(next))
        HICACHE_TRY(send());
    }
    checksums.push_back(sum.value());
  }
  if (!next.pieces.empty())
    HICACHE_TRY(send());
  while (!line.is_empty())
    HICACHE_TRY(line.receive());
  return checksums;
}

std::vector<result<void>> remote_pages::read(std::span<const remote_read> pages,
                                             uint64_t fingerprint, time_point deadline) const {
  auto line = request_line<page_download_ptr, atom::get, page_ranges_ptr>{*system_, *clock_, node_,
                                                                          deadline};
  const auto messages = plan(pages);
  auto arriving = std::vector<std::optional<arriving_page>>(pages.size());
  auto outcome = std::vector<std::optional<result<void>>>(pages.size());
  auto sent = size_t{0};
  auto failure = error{ec::malformed_message, "a page has no bytes"};
  for (const auto& message : messages) {
    for (; sent < messages.size() && !line.is_full(); ++sent)
      line.send(std::make_shared<const page_ranges>(messages[sent].ranges));
    const auto got = line.receive();
    if (!got) {
      failure = got.error();
      break;
    }
    auto bytes = std::span<const std::byte>{(*got)->bytes};
    for (auto i = size_t{0}; i < message.ranges.size(); ++i) {
      const auto page = message.pages[i];
      if (!arriving[page])
        arriving[page].emplace(pages[page]);
      if (!outcome[page])
        outcome[page] = arriving[page]->take((*got)->origins[i],
                                             bytes.first(message.ranges[i].length), fingerprint);
      if (outcome[page])
        arriving[page].reset();
      bytes = bytes.subspan(message.ranges[i].length);
    }
  }
  auto all = std::vector<result<void>>{};
  for (auto& one : outcome)
    all.push_back(one ? std::move(*one) : tl::unexpected{failure});
  return all;
}

} // namespace hicache
