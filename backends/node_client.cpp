#include "backends/node_client.hpp"

#include "backends/ask.hpp"
#include "backends/cluster/segment_memory.hpp"
#include "backends/object_parts.hpp"
#include "base/check.hpp"
#include "base/keys_of.hpp"
#include "base/limits.hpp"
#include "base/page_checksum.hpp"
#include "base/try.hpp"
#include "messages/page_header.hpp"

#include <caf/actor_cast.hpp>
#include <caf/send.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <string_view>
#include <utility>

namespace hicache {

namespace {

uint64_t milliseconds(duration time) {
  return static_cast<uint64_t>(
    std::max<int64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count(), 0));
}

/// Total size of the leased pages.
uint64_t bytes_of(const leased_pages& leased) {
  auto bytes = uint64_t{0};
  for (const auto& place : leased.places)
    if (place.status == place_status::present)
      bytes += place.length;
  return bytes;
}

/// The user that runs the node: the owner of the socket at its address.
std::optional<uid_t> owner_of(const std::string& address) {
  constexpr auto scheme = std::string_view{"unix:"};
  struct stat file {};
  if (!address.starts_with(scheme) || ::stat(address.c_str() + scheme.size(), &file) != 0)
    return std::nullopt;
  return file.st_uid;
}

result<void> check_length(const page_read& page, const page_place& place) {
  if (total_bytes(page.parts) == place.length)
    return {};
  return fail(ec::invalid_argument,
              "page " + to_string(page.key) + " has " + std::to_string(place.length) + " bytes");
}

bool is_of_this_host(const std::string& address) {
  return address.starts_with("unix:");
}

/// Whether an error means that the node is gone or no longer knows this client.
bool is_gone(const error& err) {
  return err.code == ec::peer_unreachable || err.code == ec::stopping
         || err.code == ec::malformed_message;
}

} // namespace

// -- view ---------------------------------------------------------------------

result<void> leased_view::copy(size_t position, std::span<const std::span<std::byte>> parts) const {
  const auto& page = pages_[position];
  if (page.empty())
    return fail(ec::not_found);
  if (length_of(parts) != page.size())
    return fail(ec::invalid_argument, "the page has " + std::to_string(page.size()) + " bytes");
  if (copy_object(page, parts) != checksums_[position])
    return fail(ec::corrupt_page);
  return {};
}

result<void> leased_view::check(size_t position) const {
  const auto page = std::array{pages_[position]};
  if (std::ranges::find(damaged_, position) != damaged_.end())
    return fail(ec::corrupt_page);
  if (page[0].empty())
    return fail(ec::not_found);
  if (page_checksum(page) != checksums_[position])
    return fail(ec::corrupt_page);
  return {};
}

// -- client -------------------------------------------------------------------

node_client::node_client(node_client_options options) : options_(std::move(options)) {
  HICACHE_CHECK(options_.system != nullptr && options_.connector && options_.clock != nullptr);
}

result<void> node_client::connect(time_point deadline) {
  HICACHE_TRY(attached(deadline));
  return {};
}

result<node_client::attached_ptr> node_client::attached(time_point deadline) {
  auto guard = std::unique_lock{mutex_, std::defer_lock};
  if (!guard.try_lock_for(time_left(*options_.clock, deadline)))
    return fail(ec::deadline_exceeded, "the node is being connected to");
  if (attached_)
    return attached_;
  if (next_try_ && options_.clock->now() < *next_try_)
    return tl::unexpected{last_failure_};
  auto node = attach(deadline);
  if (!node) {
    last_failure_ = node.error();
    next_try_ = options_.clock->now() + limits::node_pause;
    return node;
  }
  attached_ = *node;
  return node;
}

result<node_client::attached_ptr> node_client::attach(time_point deadline) {
  const auto left = [&] { return time_left(*options_.clock, deadline); };
  auto found = HICACHE_TRY(ask<caf::strong_actor_ptr>(*options_.system, options_.connector, left(),
                                                      atom::connect_v, options_.address));
  auto node = caf::actor_cast<node_actor>(found);
  const auto info
    = HICACHE_TRY(ask<node_info>(*options_.system, node, left(), atom::attach_v, options_.who));
  if (!is_of_this_host(options_.address)) {
    auto remote = remote_pages{*options_.system, *options_.clock, node};
    return std::make_shared<const leased_view::attached_node>(
      leased_view::attached_node{std::move(node), {}, std::move(remote)});
  }
  auto memory = HICACHE_TRY(
    open_peer_memory(info.memory_name, peer_access::write, owner_of(options_.address)));
  if (memory.size() < info.memory_bytes)
    return fail(ec::malformed_message, "the node's memory is smaller than it says");
  return std::make_shared<const leased_view::attached_node>(
    leased_view::attached_node{std::move(node), std::move(memory), {}});
}

template <class Answer, class Verb, class Request>
result<Answer> node_client::ask_node(const attached_ptr& node, caf::timespan timeout, Verb verb,
                                     Request request) {
  auto answer = ask<Answer>(*options_.system, node->node, timeout, verb, std::move(request));
  if (!answer && is_gone(answer.error()))
    forget(node);
  return answer;
}

caf::timespan node_client::patience(time_point deadline) const {
  return time_left(*options_.clock, deadline) + limits::node_answer_slack;
}

duration node_client::time_to_wait(duration left) const {
  return is_of_this_host(options_.address) ? left : left / 2;
}

void node_client::forget(const attached_ptr& node) {
  const auto guard = std::lock_guard{mutex_};
  if (attached_ == node)
    attached_ = nullptr;
}

std::vector<result<void>> node_client::put(std::span<const page_write> pages, time_point deadline,
                                           const page_writer& writer) {
  const auto node = attached(deadline);
  if (!node)
    return all_fail(pages.size(), node.error());
  if (writer && (*node)->remote)
    return all_fail(pages.size(), {ec::unsupported, "pages that are not in host memory go to a "
                                                    "node of the same machine alone"});
  auto wanted = wanted_pages{};
  for (const auto& page : pages) {
    const auto length = total_bytes(page.parts);
    if (length == 0 || length > limits::page_bytes)
      return all_fail(pages.size(), {ec::invalid_argument, "page " + to_string(page.key) + " has "
                                                             + std::to_string(length) + " bytes"});
    wanted.pages.push_back({page.key, page.parent, static_cast<uint32_t>(length)});
  }
  auto got = ask_node<reserved_pages>(*node, time_left(*options_.clock, deadline), atom::reserve_v,
                                      std::move(wanted));
  // A late answer would be a reservation without owner; disconnecting ends it.
  if (!got && got.error().code == ec::deadline_exceeded)
    forget(*node);
  auto outcome = std::vector<result<void>>(pages.size());
  if (got && got->places.size() != pages.size())
    got = fail(ec::malformed_message, "the node answered for other pages");
  if (!got)
    return all_fail(pages.size(), got.error());
  for (auto i = size_t{0}; i < pages.size(); ++i)
    if (got->places[i].status == place_status::none)
      outcome[i] = fail(ec::store_full);
  if (got->reservation == 0)
    return outcome;
  const auto complete = (*node)->remote ? send(**node, pages, *got, deadline)
                                        : write(**node, pages, *got, writer, outcome);
  const auto done = complete ? ask_node<page_totals>(*node, time_left(*options_.clock, deadline),
                                                     atom::commit_v, *complete)
                             : result<page_totals>{tl::unexpected{complete.error()}};
  if (done)
    return outcome;
  // Release the reservation, which also ends with the connection.
  if (!complete && (is_gone(done.error()) || done.error().code == ec::deadline_exceeded))
    forget(*node);
  else
    caf::anon_send((*node)->node, atom::abort_v, client_ticket{got->reservation});
  for (auto i = size_t{0}; i < pages.size(); ++i)
    if (got->places[i].status == place_status::writable && outcome[i])
      outcome[i] = tl::unexpected{done.error()};
  return outcome;
}

result<complete_pages> node_client::send(const leased_view::attached_node& node,
                                         std::span<const page_write> pages,
                                         const reserved_pages& got, time_point deadline) {
  auto writable = std::vector<const page_write*>{};
  for (auto i = size_t{0}; i < pages.size(); ++i)
    if (got.places[i].status == place_status::writable)
      writable.push_back(&pages[i]);
  const auto checksums = HICACHE_TRY(node.remote->write(got.reservation, writable, deadline));
  auto complete = complete_pages{got.reservation, {}};
  for (auto i = size_t{0}; i < writable.size(); ++i)
    complete.pages.push_back({writable[i]->key, checksums[i]});
  return complete;
}

result<complete_pages> node_client::write(const leased_view::attached_node& node,
                                          std::span<const page_write> pages,
                                          const reserved_pages& got, const page_writer& writer,
                                          std::vector<result<void>>& outcome) {
  const auto memory = node.memory->writable_bytes();
  auto bytes = uint64_t{0};
  auto complete = complete_pages{got.reservation, {}};
  auto positions = std::vector<size_t>{};
  for (auto i = size_t{0}; i < pages.size(); ++i) {
    const auto& place = got.places[i];
    const auto length = total_bytes(pages[i].parts);
    if (place.status != place_status::writable)
      continue;
    if (place.offset > memory.size()
        || slot_object_offset + length > memory.size() - place.offset) {
      outcome[i] = fail(ec::malformed_message, "the node named a place outside of its memory");
      continue;
    }
    complete.pages.push_back({pages[i].key, 0});
    positions.push_back(i);
    bytes += length;
  }
  copier_.for_each(positions.size(), bytes, [&](size_t n, uint32_t) {
    const auto& parts = pages[positions[n]].parts;
    const auto offset = got.places[positions[n]].offset + slot_object_offset;
    const auto object = memory.subspan(offset, total_bytes(parts));
    if (!writer) {
      complete.pages[n].checksum = gather_object(parts, object);
      return;
    }
    outcome[positions[n]] = writer(positions[n], object);
    complete.pages[n].checksum = page_checksum(std::array{object});
  });
  auto n = size_t{0};
  std::erase_if(complete.pages, [&](const auto&) { return !outcome[positions[n++]]; });
  return complete;
}

result<leased_pages> node_client::look_up(const attached_ptr& node, std::span<const page_key> keys,
                                          bool is_chain, time_point deadline) {
  const auto now = options_.clock->now();
  auto wanted = page_lookup{{keys.begin(), keys.end()},
                            is_chain,
                            milliseconds(options_.lease),
                            milliseconds(time_to_wait(deadline - now))};
  auto leased = ask_node<leased_pages>(node, patience(deadline), atom::locate_v, std::move(wanted));
  // A lease without owner ends with the connection, too.
  if (!leased && leased.error().code == ec::deadline_exceeded)
    forget(node);
  if (leased && leased->places.size() != keys.size())
    return fail(ec::malformed_message, "the node answered for other pages");
  return leased;
}

std::span<const std::byte> node_client::object_at(const leased_view::attached_node& node,
                                                  const page_place& place) {
  const auto memory = node.memory->bytes();
  if (place.offset > memory.size()
      || slot_object_offset + uint64_t{place.length} > memory.size() - place.offset)
    return {};
  return memory.subspan(place.offset + slot_object_offset, place.length);
}

result<uint64_t> node_client::expected_checksum(const leased_view::attached_node& node,
                                                const page_key& key,
                                                const page_place& place) const {
  if (object_at(node, place).empty())
    return fail(ec::malformed_message, "the node named a place outside of its memory");
  const auto header = decode_page_header(node.memory->bytes().subspan(place.offset));
  if (header && header->key == key && header->generation == place.generation
      && header->length == place.length && header->fingerprint == options_.who.fingerprint)
    return header->checksum;
  // A removed page keeps its bytes while leased, but not its header.
  if (is_header_cleared(node.memory->bytes(), place.offset))
    return fail(ec::not_found, "it was removed meanwhile");
  return fail(ec::corrupt_page, "another page is there");
}

void node_client::finish(const leased_view::attached_node& node, uint64_t lease,
                         std::vector<page_key> damaged) {
  if (!damaged.empty())
    caf::anon_send(node.node, atom::corrupt_v, key_batch{std::move(damaged)});
  if (lease != 0)
    caf::anon_send(node.node, atom::release_v, client_ticket{lease});
}

result<void> node_client::read(const leased_view::attached_node& node, const page_read& page,
                               const page_place& place) const {
  const auto checksum = HICACHE_TRY(expected_checksum(node, page.key, place));
  HICACHE_TRY(check_length(page, place));
  if (copy_object(object_at(node, place), page.parts) != checksum)
    return fail(ec::corrupt_page);
  return {};
}

void node_client::receive(const attached_ptr& node, std::span<const page_read> pages,
                          const leased_pages& leased, std::vector<result<void>>& outcome,
                          time_point deadline) {
  auto wanted = std::vector<remote_read>{};
  auto positions = std::vector<size_t>{};
  for (auto i = size_t{0}; i < pages.size(); ++i) {
    const auto& place = leased.places[i];
    if (place.status != place_status::present)
      continue;
    if (auto fits = check_length(pages[i], place); !fits) {
      outcome[i] = fits;
      continue;
    }
    wanted.push_back({pages[i].key, place, pages[i].parts});
    positions.push_back(i);
  }
  const auto until = options_.clock->now() + patience(deadline);
  auto got = node->remote->read(wanted, options_.who.fingerprint, until);
  for (auto n = size_t{0}; n < positions.size(); ++n) {
    if (!got[n] && is_gone(got[n].error()))
      forget(node);
    outcome[positions[n]] = std::move(got[n]);
  }
}

leased_view node_client::copies_of(const attached_ptr& node, std::span<const page_key> keys,
                                   const leased_pages& leased, time_point deadline) {
  auto seen = leased_view{};
  seen.pages_.resize(keys.size());
  seen.copies_.resize(keys.size());
  seen.checksums_.resize(keys.size());
  auto parts = std::vector<std::span<std::byte>>(keys.size());
  auto pages = std::vector<page_read>{};
  for (auto i = size_t{0}; i < keys.size(); ++i) {
    const auto length = leased.places[i].length;
    seen.copies_[i] = std::make_unique_for_overwrite<std::byte[]>(length);
    parts[i] = {seen.copies_[i].get(), length};
    pages.push_back({keys[i], {parts[i]}});
  }
  auto outcome = all_fail(keys.size(), {ec::not_found, {}});
  receive(node, pages, leased, outcome, deadline);
  auto damaged = std::vector<page_key>{};
  for (auto i = size_t{0}; i < keys.size(); ++i) {
    if (outcome[i]) {
      seen.pages_[i] = parts[i];
      seen.checksums_[i] = page_checksum(std::span{parts}.subspan(i, 1));
    } else if (outcome[i].error().code == ec::corrupt_page) {
      damaged.push_back(keys[i]);
    }
  }
  finish(*node, leased.lease, std::move(damaged));
  return seen;
}

std::vector<result<void>> node_client::get(std::span<const page_read> pages, time_point deadline) {
  const auto node = attached(deadline);
  if (!node)
    return all_fail(pages.size(), node.error());
  const auto keys = keys_of(pages);
  const auto leased = look_up(*node, keys, false, deadline);
  if (!leased)
    return all_fail(pages.size(), leased.error());
  auto outcome = all_fail(pages.size(), {ec::not_found, {}});
  if ((*node)->remote)
    receive(*node, pages, *leased, outcome, deadline);
  else
    copier_.for_each(pages.size(), bytes_of(*leased), [&](size_t i, uint32_t) {
      if (leased->places[i].status == place_status::present)
        outcome[i] = read(**node, pages[i], leased->places[i]);
    });
  auto damaged = std::vector<page_key>{};
  for (auto i = size_t{0}; i < pages.size(); ++i)
    if (!outcome[i] && outcome[i].error().code == ec::corrupt_page)
      damaged.push_back(keys[i]);
  finish(**node, leased->lease, std::move(damaged));
  return outcome;
}

result<leased_view> node_client::view(std::span<const page_key> keys, bool is_chain,
                                      time_point deadline, page_check check) {
  const auto node = HICACHE_TRY(attached(deadline));
  // Taken before the request, so that `until` is no later than the end of the lease.
  const auto asked = options_.clock->now();
  const auto leased = HICACHE_TRY(look_up(node, keys, is_chain, deadline));
  const auto until = asked + std::chrono::milliseconds{leased.lease_ms};
  if (node->remote) {
    auto copies = copies_of(node, keys, leased, deadline);
    copies.until_ = until;
    return copies;
  }
  auto seen = leased_view{};
  // If the node is gone or the lease expired, the message has no effect.
  seen.from_
    = attached_ptr{node.get(), [node, lease = leased.lease](auto*) { finish(*node, lease, {}); }};
  seen.until_ = until;
  seen.pages_.resize(keys.size());
  seen.checksums_.resize(keys.size());
  auto failures = std::vector<ec>(keys.size());
  const auto bytes = check == page_check::header ? 0 : bytes_of(leased);
  copier_.for_each(keys.size(), bytes, [&](size_t i, uint32_t) {
    const auto& place = leased.places[i];
    if (place.status != place_status::present)
      return;
    const auto object = std::array{object_at(*node, place)};
    const auto checksum = expected_checksum(*node, keys[i], place);
    if (checksum && (check == page_check::header || page_checksum(object) == *checksum)) {
      seen.pages_[i] = object[0];
      seen.checksums_[i] = *checksum;
    } else {
      failures[i] = checksum ? ec::corrupt_page : checksum.error().code;
    }
  });
  auto damaged = std::vector<page_key>{};
  for (auto i = size_t{0}; i < keys.size(); ++i)
    if (failures[i] != ec::none) {
      damaged.push_back(keys[i]);
      if (failures[i] == ec::corrupt_page)
        seen.damaged_.push_back(i);
    }
  finish(*node, 0, std::move(damaged));
  return seen;
}

result<std::vector<bool>> node_client::find(std::span<const page_key> keys, bool is_chain,
                                            uint64_t wait_ms, time_point deadline) {
  const auto node = HICACHE_TRY(attached(deadline));
  const auto seen = HICACHE_TRY(
    ask_node<page_totals>(node, patience(deadline), atom::fetch_v,
                          page_prefetch{{keys.begin(), keys.end()}, is_chain, wait_ms}));
  const auto missing = std::set<page_key>{seen.left_out.begin(), seen.left_out.end()};
  auto is_there = std::vector<bool>{};
  for (const auto& key : keys)
    is_there.push_back(!missing.contains(key));
  return is_there;
}

result<std::vector<bool>> node_client::prefetch(std::span<const page_key> keys, bool is_chain,
                                                time_point deadline) {
  return find(keys, is_chain, milliseconds(deadline - options_.clock->now()), deadline);
}

std::vector<result<void>> node_client::remove(std::span<const page_key> keys, time_point deadline) {
  const auto node = attached(deadline);
  if (!node)
    return all_fail(keys.size(), node.error());
  const auto done = ask_node<page_totals>(*node, time_left(*options_.clock, deadline),
                                          atom::remove_v, key_batch{{keys.begin(), keys.end()}});
  return std::vector<result<void>>(keys.size(), done.map([](const page_totals&) {}));
}

result<page_totals> node_client::clear(bool evict_first, time_point deadline) {
  const auto node = HICACHE_TRY(attached(deadline));
  return ask_node<page_totals>(node, time_left(*options_.clock, deadline), atom::clear_v,
                               namespace_pages{options_.who.fingerprint, evict_first});
}

result<node_status> node_client::status(const status_query& query, time_point deadline) {
  const auto node = HICACHE_TRY(attached(deadline));
  return ask_node<node_status>(node, time_left(*options_.clock, deadline), atom::status_v, query);
}

} // namespace hicache
