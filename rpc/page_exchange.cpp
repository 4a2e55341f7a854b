#include "rpc/page_exchange.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"
#include "messages/page_header.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string>

namespace hicache {

namespace {

tl::unexpected<error> no_reservation(uint64_t number) {
  return fail(ec::unknown_id, "no reservation " + std::to_string(number) + " of this client");
}

} // namespace

void page_exchange::reserved(std::span<const page_key> keys, const reserved_pages& got) {
  if (got.reservation == 0)
    return;
  HICACHE_CHECK(keys.size() == got.places.size());
  auto& pages = reservations_[got.reservation];
  for (auto i = size_t{0}; i < keys.size(); ++i) {
    const auto& place = got.places[i];
    if (place.status != place_status::writable)
      continue;
    HICACHE_CHECK(place.offset + slot_object_offset + place.length <= memory_.size());
    pages[keys[i]].object = memory_.subspan(place.offset + slot_object_offset, place.length);
  }
}

result<void> page_exchange::write(uint64_t reservation, std::span<const page_piece> pieces,
                                  std::span<const std::byte> bytes) {
  const auto at = reservations_.find(reservation);
  if (at == reservations_.end())
    return no_reservation(reservation);
  for (const auto& piece : pieces) {
    if (piece.length > bytes.size())
      return fail(ec::invalid_argument, "fewer bytes than the pieces have");
    HICACHE_TRY(append(at->second, piece, bytes.first(piece.length)));
    bytes = bytes.subspan(piece.length);
  }
  if (!bytes.empty())
    return fail(ec::invalid_argument, "more bytes than the pieces have");
  return {};
}

result<void> page_exchange::append(arrivals& pages, const page_piece& piece,
                                   std::span<const std::byte> bytes) {
  const auto refuse = [&piece](const std::string& why) {
    return fail(ec::invalid_argument, "page " + to_string(piece.key) + ": " + why);
  };
  const auto at = pages.find(piece.key);
  if (at == pages.end())
    return refuse("it is not reserved");
  auto& page = at->second;
  if (piece.offset != page.written || bytes.empty())
    return refuse("expected bytes from " + std::to_string(page.written) + " on");
  if (bytes.size() > page.object.size() - page.written)
    return refuse("more than the " + std::to_string(page.object.size())
                  + " bytes that are reserved");
  if (!page.sum) {
    if (begun_ == limits::node_client_requests)
      return fail(ec::limit_reached, "too many pages are written at a time");
    ++begun_;
    page.sum.emplace();
  }
  page.sum->copy(bytes, std::array{page.object.subspan(page.written)});
  page.written += bytes.size();
  if (page.written == page.object.size()) {
    page.checksum = page.sum->value();
    page.sum.reset();
    --begun_;
  }
  return {};
}

result<void> page_exchange::check(const complete_pages& complete) const {
  const auto at = reservations_.find(complete.reservation);
  if (at == reservations_.end())
    return no_reservation(complete.reservation);
  for (const auto& page : complete.pages) {
    const auto found = at->second.find(page.key);
    if (found == at->second.end())
      return fail(ec::invalid_argument, "page " + to_string(page.key) + " is not reserved");
    const auto& [key, arrived] = *found;
    if (arrived.written != arrived.object.size())
      return fail(ec::invalid_argument, "page " + to_string(key) + " has "
                                          + std::to_string(arrived.written) + " of "
                                          + std::to_string(arrived.object.size()) + " bytes");
    if (arrived.checksum != page.checksum)
      return fail(ec::corrupt_page, "page " + to_string(key) + " does not fit its checksum");
  }
  return {};
}

void page_exchange::end(uint64_t reservation) {
  const auto at = reservations_.find(reservation);
  if (at == reservations_.end())
    return;
  for (const auto& [key, page] : at->second)
    begun_ -= page.sum ? 1 : 0;
  reservations_.erase(at);
}

range_origin page_exchange::read(const page_range& wanted, std::span<std::byte> to) const {
  HICACHE_CHECK(to.size() == wanted.length);
  constexpr auto none = range_origin{range_status::damaged};
  if (wanted.place > memory_.size() || memory_.size() - wanted.place < slot_object_offset)
    return none;
  const auto room = memory_.size() - wanted.place - slot_object_offset;
  auto head = std::array<std::byte, page_header_bytes>{};
  const auto look = [&] {
    std::memcpy(head.data(), memory_.data() + wanted.place, head.size());
    return decode_page_header(head);
  };
  const auto header = look();
  if (std::ranges::all_of(head, [](auto x) { return x == std::byte{}; }))
    return {};
  if (!header || header->key != wanted.key || header->generation != wanted.generation
      || header->length > room || wanted.offset > header->length
      || wanted.length > header->length - wanted.offset)
    return none;
  std::atomic_thread_fence(std::memory_order_acquire);
  std::memcpy(to.data(), memory_.data() + wanted.place + slot_object_offset + wanted.offset,
              to.size());
  std::atomic_thread_fence(std::memory_order_acquire);
  // If the page was removed meanwhile, its place may hold another one.
  if (look() != header)
    return {};
  return {range_status::there, header->fingerprint, header->checksum};
}

} // namespace hicache
