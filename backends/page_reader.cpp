#include "backends/page_reader.hpp"

#include "backends/ask.hpp"
#include "backends/page_checksum.hpp"
#include "backends/storage_backend.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"

#include <caf/actor_cast.hpp>
#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

namespace hicache {

namespace {

using header_bytes = std::array<std::byte, page_header_bytes>;

uint64_t length_of(const replica_read& what) {
  auto total = uint64_t{0};
  for (const auto& part : what.parts)
    total += part.size();
  return total;
}

} // namespace

page_reader::page_reader(page_reader_options options) : options_(std::move(options)) {
  HICACHE_CHECK(options_.system != nullptr && options_.index != nullptr
                && options_.clock != nullptr);
}

std::vector<result<void>> page_reader::read(std::span<const replica_read> wanted,
                                            time_point deadline) {
  auto outcome = std::vector<result<void>>(wanted.size());
  auto members = std::set<uint64_t>{};
  for (const auto& what : wanted)
    members.insert(what.from.member);
  const auto routes = routes_to(members, deadline);
  auto remote = std::vector<size_t>{};
  for (auto i = size_t{0}; i < wanted.size(); ++i) {
    const auto way = routes.find(wanted[i].from.member);
    if (options_.clock->now() >= deadline)
      outcome[i] = fail(ec::deadline_exceeded);
    else if (way == routes.end())
      outcome[i] = fail(ec::not_found, "its owner is gone");
    else if (!way->second->memory.empty())
      outcome[i] = read_memory(way->second->memory, wanted[i]);
    else
      remote.push_back(i);
  }
  if (!remote.empty())
    read_remote(routes, wanted, remote, deadline, outcome);
  tell_corrupt(routes, wanted, outcome);
  return outcome;
}

void page_reader::tell_uses(std::span<const replica_read* const> pages) {
  auto used = std::map<uint64_t, std::vector<page_key>>{};
  for (const auto* page : pages)
    used[page->from.member].push_back(page->key);
  const auto guard = std::lock_guard{mutex_};
  for (auto& [member, keys] : used)
    if (const auto way = routes_.find(member); way != routes_.end() && way->second->actor)
      caf::anon_send(way->second->actor, atom::touch_v, key_batch{std::move(keys)});
}

std::vector<member_info> page_reader::members(time_point deadline) {
  const auto guard = std::lock_guard{mutex_};
  return renew({}, deadline);
}

std::shared_ptr<const known_member> page_reader::find(uint64_t member, time_point deadline) {
  const auto routes = routes_to({member}, deadline);
  const auto way = routes.find(member);
  return way == routes.end() ? nullptr : way->second;
}

// -- who is where -------------------------------------------------------------

page_reader::route_map page_reader::routes_to(const std::set<uint64_t>& members,
                                              time_point deadline) {
  const auto guard = std::lock_guard{mutex_};
  const auto is_known = [this](uint64_t member) { return routes_.contains(member); };
  if (!std::ranges::all_of(members, is_known))
    renew(members, deadline);
  // A copy: another thread may renew a route while this one reads along it.
  return routes_;
}

std::vector<member_info> page_reader::renew(const std::set<uint64_t>& wanted, time_point deadline) {
  for (const auto& shard : options_.index->view()->shards) {
    if (!shard)
      continue;
    // Asks about all members: those that are gone are let go of, or their memory would stay mapped
    // here for good.
    auto list = ask<member_list>(*options_.system, shard, time_left(*options_.clock, deadline),
                                 atom::members_v, member_query{});
    if (!list)
      continue;
    auto kept = route_map{};
    for (const auto& member : list->members) {
      const auto known = routes_.find(member.member);
      if (known != routes_.end())
        kept.insert(*known);
      else if (wanted.contains(member.member))
        kept.emplace(member.member, open_route(member, shard, deadline));
    }
    routes_ = std::move(kept);
    return std::move(list->members);
  }
  return {};
}

std::shared_ptr<const known_member> page_reader::open_route(const member_info& member,
                                                            const index_actor& shard,
                                                            time_point deadline) const {
  auto found = known_member{};
  found.info = member;
  if (auto actor
      = ask<caf::strong_actor_ptr>(*options_.system, shard, time_left(*options_.clock, deadline),
                                   atom::members_v, member.member))
    found.actor = caf::actor_cast<member_actor>(*actor);
  if (member.member == options_.member) {
    found.memory = options_.own_memory;
  } else if (options_.path == read_path::automatic) {
    if (auto mapping = open_peer_memory(member.memory_name)) {
      found.mapping = std::make_shared<const mapped_peer_memory>(std::move(*mapping));
      found.memory = found.mapping->bytes();
    }
  }
  spdlog::debug("member {:016x} on {} is read {}", member.member, member.host,
                found.memory.empty() ? "by UCX" : "in mapped memory");
  return std::make_shared<const known_member>(std::move(found));
}

// -- moving bytes -------------------------------------------------------------

result<page_header> page_reader::verify_header(std::span<const std::byte> bytes,
                                               const replica_read& what) {
  auto header = decode_page_header(bytes);
  if (!header || header->generation != what.from.generation || header->key != what.key)
    return fail(ec::not_found, "its slot was reused");
  if (header->fingerprint != what.fingerprint)
    return fail(ec::corrupt_page, "another namespace");
  if (header->length != length_of(what))
    return fail(ec::invalid_argument, "the page has another length");
  return header;
}

result<void> page_reader::read_memory(std::span<const std::byte> memory,
                                      const replica_read& what) const {
  const auto length = length_of(what);
  if (what.from.offset > memory.size()
      || memory.size() - what.from.offset < slot_object_offset + length)
    return fail(ec::corrupt_page, "outside of its segment");
  const auto slot = memory.subspan(what.from.offset);
  auto before = header_bytes{};
  std::memcpy(before.data(), slot.data(), before.size());
  const auto header = verify_header(before, what);
  if (!header)
    return tl::unexpected{header.error()};
  scatter(slot.data() + slot_object_offset, what.parts);
  // The owner clears the header before it reuses a place; so a header that still stands vouches for
  // the bytes just copied.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (std::memcmp(before.data(), slot.data(), before.size()) != 0)
    return fail(ec::not_found, "its slot was reused meanwhile");
  if (page_checksum(what.parts) != header->checksum)
    return fail(ec::corrupt_page, "wrong checksum");
  return {};
}

void page_reader::read_remote(const route_map& routes, std::span<const replica_read> wanted,
                              const std::vector<size_t>& positions, time_point deadline,
                              std::vector<result<void>>& outcome) {
  {
    const auto guard = std::lock_guard{mutex_};
    if (!client_) {
      auto client = page_client::create();
      if (!client) {
        for (const auto i : positions)
          outcome[i] = tl::unexpected{client.error()};
        return;
      }
      client_ = std::move(*client);
    }
  }
  // Up to the object, so that the two ranges of a page follow each other: they travel as one.
  auto headers = std::vector<std::array<std::byte, slot_object_offset>>(positions.size());
  auto header_targets = std::vector<std::span<std::byte>>{headers.begin(), headers.end()};
  auto of_member = std::map<uint64_t, std::vector<size_t>>{};
  auto reads = std::vector<server_read>{};
  for (auto k = size_t{0}; k < positions.size(); ++k)
    of_member[wanted[positions[k]].from.member].push_back(k);
  for (const auto& [member, pages] : of_member) {
    auto& read = reads.emplace_back(server_read{routes.at(member)->info.page_address, {}});
    for (const auto k : pages) {
      const auto& what = wanted[positions[k]];
      read.ranges.push_back({what.from.offset, {&header_targets[k], 1}});
      read.ranges.push_back({what.from.offset + slot_object_offset, what.parts});
    }
  }
  const auto answers = client_->read(reads, deadline);
  auto answer = answers.begin();
  for (const auto& [member, pages] : of_member) {
    for (auto n = size_t{0}; n < pages.size(); ++n) {
      const auto k = pages[n];
      const auto& what = wanted[positions[k]];
      auto& end = outcome[positions[k]];
      end = (*answer)[2 * n] ? (*answer)[2 * n + 1] : (*answer)[2 * n];
      if (!end)
        continue;
      if (const auto header = verify_header(headers[k], what); !header)
        end = tl::unexpected{header.error()};
      else if (page_checksum(what.parts) != header->checksum)
        end = fail(ec::corrupt_page, "wrong checksum");
    }
    ++answer;
  }
}

void page_reader::tell_corrupt(const route_map& routes, std::span<const replica_read> wanted,
                               const std::vector<result<void>>& outcome) const {
  auto doubtful = std::map<uint64_t, std::vector<page_key>>{};
  for (auto i = size_t{0}; i < wanted.size(); ++i) {
    if (outcome[i])
      continue;
    const auto& [code, detail] = outcome[i].error();
    if (code == ec::corrupt_page)
      spdlog::warn("page {} of member {:016x}: {}; it counts as a miss", to_string(wanted[i].key),
                   wanted[i].from.member, detail);
    // What looks like another page, or one of another length, may be this one with a damaged
    // header: its owner can tell.
    if (code == ec::corrupt_page || code == ec::not_found || code == ec::invalid_argument)
      doubtful[wanted[i].from.member].push_back(wanted[i].key);
  }
  for (auto& [member, keys] : doubtful)
    if (const auto way = routes.find(member); way != routes.end() && way->second->actor)
      caf::anon_send(way->second->actor, atom::corrupt_v, key_batch{std::move(keys)});
}

} // namespace hicache
