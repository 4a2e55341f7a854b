#include "backends/cluster_backend.hpp"

#include "backends/page_checksum.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"

#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

namespace hicache {

namespace {

using header_bytes = std::array<std::byte, page_header_bytes>;

/// Asks an actor and waits for its answer.
template <class Answer, class Handle, class... Args>
result<Answer> ask(caf::actor_system& system, const Handle& to, caf::timespan timeout,
                   Args&&... args) {
  auto self = caf::scoped_actor{system};
  auto answer = result<Answer>{};
  self->request(to, timeout, std::forward<Args>(args)...)
    .receive([&](Answer& x) { answer = std::move(x); },
             [&](caf::error& err) { answer = tl::unexpected{from_caf(err)}; });
  return answer;
}

template <class T>
std::vector<result<void>> all_fail(const T& pages, ec code, const char* detail = "") {
  return std::vector<result<void>>(pages.size(), fail(code, detail));
}

} // namespace

cluster_backend::cluster_backend(cluster_options options) : options_(std::move(options)) {
  HICACHE_CHECK(options_.system != nullptr && options_.index != nullptr
                && options_.clock != nullptr);
}

cluster_backend::~cluster_backend() = default;

// -- calls of the interface ---------------------------------------------------

std::vector<bool> cluster_backend::exists(std::span<const page_key> keys, time_point deadline) {
  const auto where = locate(keys, deadline);
  auto found = std::vector<bool>(keys.size());
  for (auto i = size_t{0}; i < keys.size(); ++i)
    found[i] = !where.replicas[i].empty();
  return found;
}

std::vector<result<void>> cluster_backend::get(std::span<const page_read> pages,
                                               time_point deadline) {
  auto outcome = all_fail(pages, ec::not_found);
  auto keys = std::vector<page_key>{};
  for (const auto& page : pages)
    keys.push_back(page.key);
  auto where = locate(keys, deadline);
  // Round r tries the r-th replica of every page that has not been read yet; this process's own
  // memory comes first.
  for (auto& replicas : where.replicas)
    std::stable_partition(replicas.begin(), replicas.end(),
                          [this](const replica& x) { return x.member == options_.member; });
  auto read = std::vector<page_key>{};
  for (auto round = size_t{0}; round < limits::replicas_per_key; ++round) {
    auto attempts = std::vector<attempt>{};
    for (auto i = size_t{0}; i < pages.size(); ++i)
      if (!outcome[i] && round < where.replicas[i].size())
        attempts.push_back({&pages[i], i, where.replicas[i][round]});
    if (attempts.empty())
      break;
    const auto routes = routes_to(attempts, deadline);
    auto remote = std::map<uint64_t, std::vector<attempt>>{};
    for (const auto& what : attempts) {
      const auto way = routes.find(what.from.member);
      if (options_.clock->now() >= deadline)
        outcome[what.position] = fail(ec::deadline_exceeded);
      else if (way == routes.end())
        outcome[what.position] = fail(ec::not_found, "its owner is gone");
      else if (!way->second.memory.empty())
        outcome[what.position] = read_memory(way->second.memory, what);
      else
        remote[what.from.member].push_back(what);
    }
    for (const auto& [member, batch] : remote) {
      auto parts = read_remote(routes.at(member), batch, deadline);
      for (auto i = size_t{0}; i < batch.size(); ++i)
        outcome[batch[i].position] = std::move(parts[i]);
    }
  }
  for (auto i = size_t{0}; i < pages.size(); ++i)
    if (outcome[i])
      read.push_back(pages[i].key);
  if (options_.segment && !read.empty())
    caf::anon_send(options_.segment, atom::touch_v,
                   std::make_shared<const std::vector<page_key>>(std::move(read)));
  const auto guard = std::lock_guard{mutex_};
  for (const auto& page : outcome)
    counters_.count_get(page);
  return outcome;
}

std::vector<result<void>> cluster_backend::set(std::span<const page_write> pages,
                                               time_point deadline) {
  if (options_.clock->now() >= deadline)
    return all_fail(pages, ec::deadline_exceeded);
  auto outcome = std::vector<result<void>>(pages.size());
  auto keys = std::vector<page_key>{};
  for (const auto& page : pages)
    keys.push_back(page.key);
  const auto known = locate(keys, deadline);
  auto wanted = segment_pages{};
  auto positions = std::vector<size_t>{};
  for (auto i = size_t{0}; i < pages.size(); ++i) {
    if (!known.replicas[i].empty())
      continue; // Somebody has it: that will do.
    wanted.keys.push_back(pages[i].key);
    wanted.parents.push_back(pages[i].parent);
    positions.push_back(i);
  }
  if (positions.empty())
    return outcome;
  const auto fail_rest = [&](const error& why) {
    for (const auto i : positions)
      outcome[i] = tl::unexpected{why};
    const auto guard = std::lock_guard{mutex_};
    counters_.errors += positions.size();
    return outcome;
  };
  if (!options_.segment)
    return fail_rest({ec::store_full, "this process lends no memory"});
  auto slots = ask<segment_slots>(*options_.system, options_.segment, left(deadline),
                                  atom::reserve_v, std::move(wanted));
  if (!slots)
    return fail_rest(slots.error());
  auto filled = segment_slots{};
  for (auto k = size_t{0}; k < positions.size(); ++k) {
    const auto& page = pages[positions[k]];
    auto& slot = slots->list[k];
    if (slot.what == segment_slot::state::full) {
      outcome[positions[k]] = fail(ec::store_full);
    } else if (slot.what == segment_slot::state::reserved) {
      slot.length = static_cast<uint32_t>(total_bytes(page.parts));
      fill(slot, page);
      filled.list.push_back(slot);
    }
  }
  if (filled.list.empty())
    return outcome;
  auto published = ask<atom::ok>(*options_.system, options_.segment, left(deadline),
                                 atom::publish_v, std::move(filled));
  if (!published)
    return fail_rest(published.error());
  return outcome;
}

std::vector<result<void>> cluster_backend::remove(std::span<const page_key> keys,
                                                  time_point deadline) {
  if (options_.clock->now() >= deadline)
    return all_fail(keys, ec::deadline_exceeded);
  if (!options_.segment) // Only an owner removes; without a segment there is nothing of ours.
    return std::vector<result<void>>(keys.size());
  auto gone
    = ask<atom::ok>(*options_.system, options_.segment, left(deadline), atom::remove_v,
                    std::make_shared<const std::vector<page_key>>(keys.begin(), keys.end()));
  if (!gone)
    return std::vector<result<void>>(keys.size(), tl::unexpected{gone.error()});
  return std::vector<result<void>>(keys.size());
}

backend_health cluster_backend::health() {
  auto health = backend_health{};
  const auto view = options_.index->view();
  health.ok = view->is_whole();
  if (!health.ok)
    health.detail = view->numbers.empty() ? "the index cannot be reached"
                                          : "a shard of the index cannot be reached";
  health.capacity_bytes = options_.segment_memory.size();
  const auto guard = std::lock_guard{mutex_};
  health.counters = counters_;
  return health;
}

// -- who has what -------------------------------------------------------------

placements cluster_backend::locate(std::span<const page_key> keys, time_point deadline) {
  auto all = placements{};
  all.replicas.resize(keys.size()); // What the index cannot say is a miss.
  const auto view = options_.index->view();
  if (view->numbers.empty())
    return all;
  const auto positions = view->positions(keys);
  auto self = caf::scoped_actor{*options_.system};
  // All requests first, so that the shards work side by side.
  auto waiting = std::vector<std::function<void()>>{};
  for (auto i = size_t{0}; i < positions.size(); ++i) {
    const auto& shard = view->shards[i];
    for (auto first = size_t{0}; shard && first < positions[i].size();
         first += limits::index_batch_keys) {
      const auto part = std::span{positions[i]}.subspan(
        first, std::min(limits::index_batch_keys, positions[i].size() - first));
      const auto time = left(deadline);
      if (time.count() <= 0)
        break;
      auto batch = key_batch{};
      batch.keys.reserve(part.size());
      for (const auto at : part)
        batch.keys.push_back(keys[at]);
      waiting.emplace_back(
        [&, shard, part,
         answer = self->request(shard, time, atom::locate_v, std::move(batch))]() mutable {
          answer.receive([&](placements& found) { enter(found, part, shard, all); },
                         [&](const caf::error&) { options_.index->lost(shard); });
        });
    }
  }
  for (const auto& receive : waiting)
    receive();
  return all;
}

void cluster_backend::enter(placements& found, std::span<const size_t> positions,
                            const index_actor& shard, placements& all) const {
  if (found.replicas.size() != positions.size()) {
    options_.index->lost(shard);
    return;
  }
  options_.index->heard(found.shards_digest);
  for (auto i = size_t{0}; i < positions.size(); ++i)
    all.replicas[positions[i]] = std::move(found.replicas[i]);
}

std::map<uint64_t, cluster_backend::route>
cluster_backend::routes_to(const std::vector<attempt>& attempts, time_point deadline) {
  const auto guard = std::lock_guard{mutex_};
  auto unknown = std::set<uint64_t>{};
  for (const auto& what : attempts)
    if (!routes_.contains(what.from.member))
      unknown.insert(what.from.member);
  for (const auto& shard : options_.index->view()->shards) {
    if (unknown.empty())
      break;
    if (!shard)
      continue;
    // Asks about all members: those that are gone are let go of, or their memory would stay mapped
    // here for good.
    auto members
      = ask<member_list>(*options_.system, shard, std::max(left(deadline), caf::timespan{1}),
                         atom::members_v, member_query{});
    if (!members)
      continue;
    auto kept = std::map<uint64_t, route>{};
    for (const auto& member : members->members) {
      if (const auto i = routes_.find(member.member); i != routes_.end())
        kept.insert(*i);
      else if (unknown.erase(member.member) != 0)
        kept.emplace(member.member, open_route(member));
    }
    routes_ = std::move(kept);
  }
  // A copy: another thread may renew a route while this one reads along it.
  return routes_;
}

cluster_backend::route cluster_backend::open_route(const member_info& member) const {
  auto found = route{{}, nullptr, member.page_address};
  if (member.member == options_.member) {
    found.memory = options_.segment_memory;
  } else if (options_.path == read_path::automatic) {
    if (auto mapping = open_peer_memory(member.memory_name)) {
      found.mapping = std::make_shared<const mapped_peer_memory>(std::move(*mapping));
      found.memory = found.mapping->bytes();
    }
  }
  spdlog::debug("member {:x} on {} is read {}", member.member, member.host,
                found.memory.empty() ? "by UCX" : "in mapped memory");
  return found;
}

// -- moving bytes -------------------------------------------------------------

result<page_header> cluster_backend::verify_header(std::span<const std::byte> bytes,
                                                   const attempt& what) const {
  auto header = decode_page_header(bytes);
  if (!header || header->generation != what.from.generation || header->key != what.page->key)
    return fail(ec::not_found, "its slot was reused");
  if (header->fingerprint != options_.fingerprint)
    return fail(ec::corrupt_page, "another namespace");
  if (header->length != total_bytes(what.page->parts))
    return fail(ec::corrupt_page, "another length");
  return header;
}

result<void> cluster_backend::read_memory(std::span<const std::byte> memory,
                                          const attempt& what) const {
  const auto length = total_bytes(what.page->parts);
  if (what.from.offset > memory.size()
      || memory.size() - what.from.offset < slot_object_offset + length)
    return fail(ec::corrupt_page, "outside of its segment");
  const auto slot = memory.subspan(what.from.offset);
  auto before = header_bytes{};
  std::memcpy(before.data(), slot.data(), before.size());
  const auto header = verify_header(before, what);
  if (!header)
    return tl::unexpected{header.error()};
  scatter(slot.data() + slot_object_offset, what.page->parts);
  // The owner clears the header before it reuses a slot; so a header that still stands vouches for
  // the bytes just copied.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (std::memcmp(before.data(), slot.data(), before.size()) != 0)
    return fail(ec::not_found, "its slot was reused meanwhile");
  if (page_checksum(what.page->parts) != header->checksum)
    return fail(ec::corrupt_page, "wrong checksum");
  return {};
}

std::vector<result<void>> cluster_backend::read_remote(const route& from,
                                                       const std::vector<attempt>& what,
                                                       time_point deadline) {
  {
    const auto guard = std::lock_guard{mutex_};
    if (!client_) {
      auto client = page_client::create();
      if (!client)
        return std::vector<result<void>>(what.size(), tl::unexpected{client.error()});
      client_ = std::move(*client);
    }
  }
  // Up to the object, so that the two ranges of a page follow each other: they travel as one.
  auto headers = std::vector<std::array<std::byte, slot_object_offset>>(what.size());
  auto header_targets = std::vector<std::span<std::byte>>{headers.begin(), headers.end()};
  auto ranges = std::vector<remote_range>{};
  for (auto i = size_t{0}; i < what.size(); ++i) {
    ranges.push_back({what[i].from.offset, {&header_targets[i], 1}});
    ranges.push_back({what[i].from.offset + slot_object_offset, what[i].page->parts});
  }
  const auto answers = client_->read(from.page_address, ranges, deadline);
  auto outcome = std::vector<result<void>>(what.size());
  for (auto i = size_t{0}; i < what.size(); ++i) {
    outcome[i] = answers[2 * i] ? answers[2 * i + 1] : answers[2 * i];
    if (!outcome[i])
      continue;
    const auto header = verify_header(headers[i], what[i]);
    if (!header)
      outcome[i] = tl::unexpected{header.error()};
    else if (page_checksum(what[i].page->parts) != header->checksum)
      outcome[i] = fail(ec::corrupt_page, "wrong checksum");
  }
  return outcome;
}

void cluster_backend::fill(const segment_slot& slot, const page_write& page) {
  HICACHE_CHECK(slot.offset + slot_object_offset + slot.length <= options_.segment_memory.size());
  auto* base = options_.segment_memory.data() + slot.offset;
  gather(page.parts, base + slot_object_offset);
  const auto object
    = std::array{std::span<const std::byte>{base + slot_object_offset, slot.length}};
  auto header = header_bytes{};
  encode_page_header(
    {slot.generation, options_.fingerprint, page.key, slot.length, page_checksum(object)}, header);
  // Bytes first, header last: a header that can be read stands in front of a complete object.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::memcpy(base, header.data(), header.size());
}

caf::timespan cluster_backend::left(time_point deadline) const {
  return deadline - options_.clock->now();
}

} // namespace hicache
