#include "backends/cluster/page_reader.hpp"

#include "backends/ask.hpp"
#include "backends/cluster/member_lists.hpp"
#include "backends/object_parts.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "base/page_checksum.hpp"
#include "base/try.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/object_place.hpp"

#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <utility>

namespace hicache {

namespace {

static_assert(sizeof(range_head) == page_header_bytes);

} // namespace

page_reader::page_reader(page_reader_options options)
  : options_(std::move(options)), salt_(std::random_device{}()) {
  HICACHE_CHECK(options_.system != nullptr && options_.index != nullptr && options_.reach
                && options_.watch && options_.clock != nullptr);
}

std::vector<result<page_source>> page_reader::read(std::span<const page_search> wanted,
                                                   time_point deadline) {
  auto outcome = read_memory(wanted, deadline);
  auto open = on_disk_only(wanted, outcome);
  while (!open.empty() && options_.clock->now() < deadline) {
    const auto places = recall(wanted, open, deadline);
    auto again = std::vector<page_search>{};
    for (auto k = size_t{0}; k < open.size(); ++k) {
      again.push_back(wanted[open[k].position]);
      again.back().replicas = places[k];
    }
    auto read = read_memory(again, deadline);
    auto fruitful = std::set<uint64_t>{};
    for (auto k = size_t{0}; k < open.size(); ++k) {
      outcome[open[k].position] = read[k];
      if (read[k])
        fruitful.insert(open[k].left.front().member);
    }
    auto left = std::vector<open_page>{};
    for (auto k = size_t{0}; k < open.size(); ++k) {
      auto& [position, untried] = open[k];
      if (read[k] || read[k].error().code == ec::limit_reached)
        continue;
      // A member's memory may have room for some pages at a time.
      if (!fruitful.contains(untried.front().member))
        untried.erase(untried.begin());
      if (!untried.empty())
        left.push_back(std::move(open[k]));
    }
    open = std::move(left);
  }
  return outcome;
}

std::vector<result<page_source>> page_reader::read_memory(std::span<const page_search> wanted,
                                                          time_point deadline) {
  auto outcome = std::vector<result<page_source>>(wanted.size());
  auto members = std::set<uint64_t>{};
  for (const auto& what : wanted)
    for (const auto& from : what.replicas)
      members.insert(from.member);
  const auto routes = routes_to(members, deadline);
  auto doubts = std::vector<member_pages>(limits::copy_threads);
  auto left = std::vector<std::vector<replica>>(wanted.size());
  copier_.for_each(wanted.size(), bytes_near(routes, wanted), [&](size_t i, uint32_t worker) {
    if (options_.clock->now() >= deadline)
      outcome[i] = fail(ec::deadline_exceeded);
    else
      left[i] = read_here(routes, wanted[i], outcome[i], doubts[worker]);
  });
  auto doubtful = member_pages{};
  for (const auto& of_worker : doubts)
    for (const auto& [member, keys] : of_worker)
      doubtful[member].insert(doubtful[member].end(), keys.begin(), keys.end());
  auto open = std::vector<open_page>{};
  for (auto i = size_t{0}; i < wanted.size(); ++i)
    if (!left[i].empty())
      open.push_back({i, std::move(left[i])});
  while (!open.empty())
    open = read_remote(routes, wanted, std::move(open), deadline, outcome, doubtful);
  tell_corrupt(routes, std::move(doubtful));
  return outcome;
}

std::vector<page_reader::open_page>
page_reader::on_disk_only(std::span<const page_search> wanted,
                          std::span<const result<page_source>> outcome) const {
  auto open = std::vector<open_page>{};
  for (auto i = size_t{0}; i < wanted.size(); ++i) {
    // Pages in demand will soon have further replicas in memory.
    if (outcome[i] || outcome[i].error().code == ec::limit_reached)
      continue;
    auto left = std::vector<replica>{};
    for (const auto& from : wanted[i].replicas)
      if (is_on_disk(from.offset))
        left.push_back(from);
    std::ranges::sort(left, {}, [this](const replica& x) {
      return std::pair{x.member != options_.member, mix(salt_, x.member)};
    });
    if (!left.empty())
      open.push_back({i, std::move(left)});
  }
  return open;
}

std::vector<replica_list> page_reader::recall(std::span<const page_search> wanted,
                                              std::span<const open_page> open,
                                              time_point deadline) {
  auto places = std::vector<replica_list>(open.size());
  // Pages of one namespace are asked for at a time; usually all are.
  auto asked = std::map<std::pair<uint64_t, uint64_t>, std::vector<size_t>>{};
  auto members = std::set<uint64_t>{};
  for (auto k = size_t{0}; k < open.size(); ++k) {
    const auto member = open[k].left.front().member;
    auto& positions = asked[{member, wanted[open[k].position].fingerprint}];
    if (positions.size() < limits::storage_batch_pages)
      positions.push_back(k);
    members.insert(member);
  }
  const auto routes = routes_to(members, deadline);
  auto self = caf::scoped_actor{*options_.system, true};
  const auto left = time_left(*options_.clock, deadline);
  // The pages have to be read afterwards.
  const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(left - left / 4);
  const auto send
    = [&](const known_member& owner, uint64_t fingerprint, std::span<const size_t> positions) {
        auto query = page_recall{fingerprint, {}, static_cast<uint32_t>(wait.count())};
        for (const auto k : positions)
          query.keys.push_back(wanted[open[k].position].key);
        return self->request(owner.actor, caf::infinite, atom::recall_v, std::move(query));
      };
  struct question {
    uint64_t member = 0;
    std::span<const size_t> positions;
    decltype(send({}, {}, {})) answer;
  };
  auto questions = std::vector<question>{};
  for (const auto& [from, positions] : asked)
    if (const auto way = routes.find(from.first); way != routes.end())
      questions.push_back({from.first, positions, send(*way->second, from.second, positions)});
  for (auto& [member, positions, answer] : questions) {
    const auto on_answer = [&, member = member, positions = positions](placements& found) {
      if (found.replicas.size() != positions.size())
        return;
      for (auto i = size_t{0}; i < positions.size(); ++i)
        for (const auto& at : found.replicas[i])
          places[positions[i]].push_back({member, at.offset, at.generation, at.length});
    };
    receive_within(self, answer, time_left(*options_.clock, deadline), on_answer,
                   [member = member](const caf::error& err) {
                     spdlog::debug("member {:016x} recalls nothing: {}", member,
                                   to_string(from_caf(err)));
                   });
  }
  return places;
}

void page_reader::tell_uses(member_pages pages) {
  const auto guard = std::lock_guard{table_->mutex};
  for (auto& [member, keys] : pages)
    if (const auto way = table_->routes.find(member); way != table_->routes.end())
      caf::anon_send(way->second->actor, atom::touch_v, key_batch{std::move(keys)});
}

std::vector<member_info> page_reader::members(time_point deadline) {
  for (const auto& shard : reached_shards())
    if (auto list = list_members(*options_.system, shard, *options_.clock, deadline)) {
      const auto guard = std::lock_guard{mutex_};
      members_ = *list;
      members_until_ = options_.clock->now() + limits::member_list_memory;
      return std::move(*list);
    }
  return {};
}

std::vector<member_info> page_reader::recent_members(time_point deadline) {
  {
    const auto guard = std::lock_guard{mutex_};
    if (options_.clock->now() < members_until_)
      return members_;
  }
  return members(deadline);
}

std::shared_ptr<const known_member> page_reader::find(uint64_t member, time_point deadline) {
  const auto routes = routes_to({member}, deadline);
  const auto way = routes.find(member);
  return way == routes.end() ? nullptr : way->second;
}

// -- members ------------------------------------------------------------------

page_reader::route_map page_reader::routes_to(const std::set<uint64_t>& members,
                                              time_point deadline) {
  {
    const auto guard = std::lock_guard{table_->mutex};
    const auto is_known = [this](uint64_t member) { return table_->routes.contains(member); };
    if (std::ranges::all_of(members, is_known))
      return table_->routes;
  }
  renew(members, deadline);
  const auto guard = std::lock_guard{table_->mutex};
  // A copy, because another thread may change the routes meanwhile.
  return table_->routes;
}

void page_reader::renew(const std::set<uint64_t>& wanted, time_point deadline) {
  auto known = std::set<uint64_t>{};
  auto asked = wanted;
  {
    const auto guard = std::lock_guard{table_->mutex};
    for (const auto& [member, way] : table_->routes)
      known.insert(member);
    if (const auto now = options_.clock->now(); now >= table_->looked_after) {
      table_->looked_after = now + limits::member_list_memory;
      asked.insert(known.begin(), known.end());
    }
  }
  const auto ids = std::vector<uint64_t>(asked.begin(), asked.end());
  auto has_answer = false;
  auto found = std::map<uint64_t, member_info>{};
  const auto is_found = [&found](uint64_t member) { return found.contains(member); };
  for (const auto& shard : reached_shards()) {
    auto list = list_members(*options_.system, shard, ids, *options_.clock, deadline);
    if (!list)
      continue;
    has_answer = true;
    for (auto& member : *list)
      found.emplace(member.member, std::move(member));
    // A newly started shard does not know all members yet.
    if (!found.empty() && std::ranges::all_of(wanted, is_found))
      break;
  }
  if (!has_answer)
    return;
  // Without the lock: a hanging owner delays only threads that want its pages.
  for (const auto& [id, member] : found)
    if (!known.contains(id))
      enter(open_route(member));
  const auto guard = std::lock_guard{table_->mutex};
  for (const auto member : ids)
    if (known.contains(member) && !is_found(member))
      table_->routes.erase(member);
}

std::vector<index_actor> page_reader::reached_shards() const {
  auto shards = options_.index->view()->shards;
  if (!shards.empty())
    std::rotate(shards.begin(), shards.begin() + static_cast<ptrdiff_t>(salt_ % shards.size()),
                shards.end());
  std::erase(shards, nullptr);
  return shards;
}

void page_reader::enter(std::shared_ptr<const known_member> found) {
  const auto member = found->info.member;
  auto owner = unique_fd{};
  {
    const auto guard = std::lock_guard{table_->mutex};
    if (!table_->routes.emplace(member, found).second)
      return; // Another thread was faster.
    if (found->mapping && found->mapping->owner())
      owner = unique_fd{::fcntl(found->mapping->owner().get(), F_DUPFD_CLOEXEC, 0)};
  }
  if (!owner)
    return;
  // Weak references: the connection is shut down with the mapping.
  auto leave = [table = std::weak_ptr{table_}, way = std::weak_ptr{found}, member] {
    const auto still = table.lock();
    if (!still)
      return;
    // Destroyed after the lock is released, because unmapping takes time.
    auto gone = std::shared_ptr<const known_member>{};
    const auto guard = std::lock_guard{still->mutex};
    if (const auto at = still->routes.find(member);
        at != still->routes.end() && at->second == way.lock()) {
      gone = std::move(at->second);
      still->routes.erase(at);
    }
  };
  options_.watch(std::move(owner), std::move(leave));
}

std::shared_ptr<const known_member> page_reader::open_route(const member_info& member) const {
  auto found = known_member{};
  found.info = member;
  found.actor = options_.reach(member);
  if (member.member == options_.member) {
    found.memory = options_.own_memory;
  } else if (options_.path == read_path::automatic) {
    if (auto mapping = open_peer_memory(member.memory_name)) {
      found.mapping = std::make_shared<const mapped_peer_memory>(std::move(*mapping));
      found.memory = found.mapping->bytes();
    }
  }
  spdlog::debug("member {:016x} on {} is read {}", member.member, member.host,
                found.memory.empty() ? "by the network" : "in mapped memory");
  return std::make_shared<const known_member>(std::move(found));
}

// -- moving bytes -------------------------------------------------------------

uint64_t page_reader::bytes_near(const route_map& routes, std::span<const page_search> wanted) {
  auto bytes = uint64_t{0};
  const auto is_near = [&routes](const replica& from) {
    const auto way = routes.find(from.member);
    return way != routes.end() && !way->second->memory.empty();
  };
  for (const auto& what : wanted)
    if (std::ranges::any_of(what.replicas, is_near))
      bytes += length_of(what.parts);
  return bytes;
}

std::vector<replica> page_reader::read_here(const route_map& routes, const page_search& what,
                                            result<page_source>& outcome,
                                            member_pages& doubtful) const {
  outcome = fail(ec::not_found, "its owner is gone");
  auto near = std::vector<replica>{};
  auto far = std::vector<replica>{};
  for (const auto& from : what.replicas)
    if (const auto way = routes.find(from.member);
        way != routes.end() && object_offset(way->second->info, from.offset))
      (way->second->memory.empty() ? far : near).push_back(from);
  const auto own = options_.member;
  std::stable_partition(near.begin(), near.end(),
                        [own](const replica& x) { return x.member == own; });
  for (const auto& from : near) {
    const auto read = read_copy(*routes.at(from.member), what, from);
    if (read) {
      outcome = page_source{from.member, false, *read};
      return {};
    }
    outcome = tl::unexpected{read.error()};
    doubt(what, from, read.error(), doubtful);
  }
  std::ranges::sort(far, {}, [this](const replica& x) { return mix(salt_, x.member); });
  return far;
}

result<page_header> page_reader::verify_header(std::span<const std::byte> bytes,
                                               const page_search& what, const replica& from) {
  auto header = decode_page_header(bytes);
  if (!header || header->generation != from.generation || header->key != what.key)
    return fail(ec::not_found, "its slot was reused");
  if (header->fingerprint != what.fingerprint)
    return fail(ec::corrupt_page, "another namespace");
  if (header->length != length_of(what.parts))
    return fail(ec::invalid_argument, "the page has another length");
  return header;
}

result<uint64_t> page_reader::read_copy(const known_member& owner, const page_search& what,
                                        const replica& from) {
  const auto object = object_offset(owner.info, from.offset);
  const auto length = length_of(what.parts);
  const auto has = [&owner](uint64_t offset, uint64_t bytes) {
    return offset <= owner.memory.size() && owner.memory.size() - offset >= bytes;
  };
  if (!object || !has(from.offset, page_header_bytes) || !has(*object, length))
    return fail(ec::corrupt_page, "outside of its owner's memory");
  const auto head = owner.memory.subspan(from.offset, page_header_bytes);
  auto before = range_head{};
  std::memcpy(before.data(), head.data(), before.size());
  // Header before bytes; otherwise bytes of the previous page could be read with it.
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto header = HICACHE_TRY(verify_header(before, what, from));
  const auto checksum = copy_object(owner.memory.subspan(*object, length), what.parts);
  // The owner clears the header before it reuses a slot, so an unchanged header proves that the
  // bytes just copied and hashed are those of the page.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (std::memcmp(before.data(), head.data(), before.size()) != 0)
    return fail(ec::not_found, "its slot was reused meanwhile");
  if (checksum != header.checksum)
    return fail(ec::corrupt_page, "wrong checksum");
  return checksum;
}

result<page_client*> page_reader::client() {
  const auto guard = std::lock_guard{mutex_};
  if (!client_)
    client_ = HICACHE_TRY(page_client::create(options_.network, options_.offers));
  return client_.get();
}

std::vector<page_reader::open_page>
page_reader::read_remote(const route_map& routes, std::span<const page_search> wanted,
                         std::vector<open_page> open, time_point deadline,
                         std::vector<result<page_source>>& outcome, member_pages& doubtful) {
  const auto reader = client();
  if (!reader) {
    for (const auto& [position, left] : open)
      outcome[position] = tl::unexpected{reader.error()};
    return {};
  }
  auto reads = range_reads{};
  auto servers = std::map<uint64_t, size_t>{};
  auto places = std::vector<std::vector<range_place>>(open.size());
  for (auto k = size_t{0}; k < open.size(); ++k) {
    const auto& what = wanted[open[k].position];
    for (const auto& from : open[k].left) {
      const auto [server, is_new] = servers.try_emplace(from.member, reads.servers.size());
      if (is_new)
        reads.servers.push_back(routes.at(from.member)->info.page_address);
      places[k].push_back({server->second,
                           from.offset,
                           *object_offset(routes.at(from.member)->info, from.offset),
                           {what.key, from.generation}});
    }
    reads.ranges.push_back({places[k], what.parts, what.insists});
  }
  const auto answers = (*reader)->read(reads, deadline);
  auto headers = std::vector<result<page_header>>(open.size());
  auto torn = std::map<size_t, error>{};
  for (auto k = size_t{0}; k < open.size(); ++k) {
    if (!answers[k])
      continue;
    const auto& from = open[k].left[answers[k]->place];
    if (answers[k]->is_gone)
      headers[k] = fail(ec::not_found, "its slot was reused");
    else
      headers[k] = verify_header(answers[k]->head, wanted[open[k].position], from);
    if (headers[k] && answers[k]->checksum != headers[k]->checksum)
      torn.emplace(k, error{});
  }
  if (!torn.empty())
    explain(**reader, reads, answers, deadline, torn);
  auto again = std::vector<open_page>{};
  for (auto k = size_t{0}; k < open.size(); ++k) {
    auto& [position, left] = open[k];
    const auto& what = wanted[position];
    if (!answers[k]) {
      outcome[position] = tl::unexpected{answers[k].error()};
      continue;
    }
    const auto at = left.begin() + static_cast<ptrdiff_t>(answers[k]->place);
    if (headers[k] && !torn.contains(k)) {
      outcome[position] = page_source{at->member, answers[k]->in_demand, answers[k]->checksum};
      continue;
    }
    const auto why = headers[k] ? torn.at(k) : headers[k].error();
    outcome[position] = tl::unexpected{why};
    doubt(what, *at, why, doubtful);
    left.erase(at);
    if (!left.empty())
      again.push_back(std::move(open[k]));
  }
  return again;
}

void page_reader::explain(page_client& reader, const range_reads& reads,
                          const std::vector<result<range_answer>>& answers, time_point deadline,
                          std::map<size_t, error>& torn) {
  auto byte = std::byte{}; // The byte is irrelevant; the head comes with it.
  const auto target = std::array{std::span{&byte, 1}};
  auto looks = range_reads{reads.servers, {}};
  for (const auto& [k, why] : torn)
    looks.ranges.push_back({reads.ranges[k].places.subspan(answers[k]->place, 1), target, true});
  const auto heads = reader.read(looks, deadline);
  auto head = heads.begin();
  for (auto& [k, why] : torn) {
    if (!*head)
      why = head->error();
    else if ((*head)->is_gone || (*head)->head != answers[k]->head)
      why = {ec::not_found, "its slot was reused meanwhile"};
    else
      why = {ec::corrupt_page, "wrong checksum"};
    ++head;
  }
}

void page_reader::doubt(const page_search& what, const replica& from, const error& why,
                        member_pages& doubtful) {
  if (why.code == ec::corrupt_page)
    spdlog::warn("page {} of member {:016x}: {}; it counts as a miss", to_string(what.key),
                 from.member, why.detail);
  // A different page or length may be this page with a damaged header; only its owner can tell.
  doubtful[from.member].push_back(what.key);
}

void page_reader::tell_corrupt(const route_map& routes, member_pages doubtful) {
  for (auto& [member, keys] : doubtful)
    if (const auto way = routes.find(member); way != routes.end())
      caf::anon_send(way->second->actor, atom::corrupt_v, key_batch{std::move(keys)});
}

} // namespace hicache
