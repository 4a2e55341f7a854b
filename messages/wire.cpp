#include "messages/wire.hpp"

#include "base/limits.hpp"
#include "messages/object_place.hpp"
#include "messages/wire_parts.hpp"

#include <algorithm>

namespace hicache::wire {

namespace {

/// The largest `pin_kind`.
constexpr auto last_pin = uint8_t{2};

bool are_in_order(const std::vector<index_shard>& shards) {
  const auto is_behind = [](const auto& a, const auto& b) { return a.number >= b.number; };
  return std::ranges::adjacent_find(shards, is_behind) == shards.end();
}

} // namespace

// -- parts of messages --------------------------------------------------------

void fields(auto side, like<index_shard> auto& x) {
  HICACHE_FIELD(number, Number);
  HICACHE_FIELD(address, Address);
  HICACHE_FIELD(epoch, Epoch);
}

void fields(auto side, like<member_counters> auto& x) {
  HICACHE_FIELD(hits, Hits);
  HICACHE_FIELD(misses, Misses);
  HICACHE_FIELD(errors, Errors);
  HICACHE_FIELD(corrupt, Corrupt);
  HICACHE_FIELD(evicted, Evicted);
  HICACHE_FIELD(pinned_bytes, PinnedBytes);
}

void fields(auto side, like<announced_page> auto& x) {
  HICACHE_FIELD(key, Key);
  HICACHE_FIELD(offset, Offset);
  HICACHE_FIELD(length, Length);
  HICACHE_FIELD(generation, Generation);
  HICACHE_VALID(x.length <= limits::page_bytes, "page too long");
}

void fields(auto side, like<replica> auto& x) {
  HICACHE_FIELD(member, Member);
  HICACHE_FIELD(offset, Offset);
  HICACHE_FIELD(length, Length);
  HICACHE_FIELD(generation, Generation);
  HICACHE_VALID(x.length <= limits::page_bytes, "page too long");
}

void fields(auto side, like<member_state> auto& x) {
  HICACHE_FIELD(info, Info);
  HICACHE_FIELD(pages, Pages);
  HICACHE_FIELD(bytes, Bytes);
  HICACHE_FIELD(silent_ms, SilentMs);
  HICACHE_FIELD(counters, Counters);
  HICACHE_FIELD(disk_pages, DiskPages);
  HICACHE_FIELD(disk_bytes, DiskBytes);
}

void fields(auto side, like<copied_page> auto& x) {
  HICACHE_FIELD(page, Page);
  HICACHE_FIELD(parent, Parent);
  HICACHE_FIELD(fingerprint, Fingerprint);
  HICACHE_FIELD(tenant, Tenant);
  HICACHE_FIELD(pin, Pin);
  HICACHE_FIELD(pin_ttl_ms, PinTtlMs);
  HICACHE_FIELD(copies, Copies);
  HICACHE_VALID(x.pin <= last_pin, "no such pin");
  HICACHE_VALID(x.parent != x.page.key, "a page cannot be its own parent");
  HICACHE_VALID(x.copies <= limits::replicas_per_key, "too many copies");
}

// -- messages -----------------------------------------------------------------

void fields(auto side, like<member_info> auto& x) {
  HICACHE_FIELD(member, Member);
  HICACHE_FIELD(epoch, Epoch);
  HICACHE_FIELD(protocol_version, ProtocolVersion);
  HICACHE_FIELD(host, Host);
  HICACHE_FIELD(memory_name, MemoryName);
  HICACHE_FIELD(page_address, PageAddress);
  HICACHE_FIELD(capacity_bytes, CapacityBytes);
  HICACHE_FIELD(fingerprint, Fingerprint);
  HICACHE_FIELD(exported.headers, ExportedHeaders);
  HICACHE_FIELD(exported.objects, ExportedObjects);
  HICACHE_FIELD(exported.object_bytes, ExportedObjectBytes);
  HICACHE_FIELD(exported.count, ExportedCount);
  HICACHE_FIELD(address, Address);
  HICACHE_FIELD(resumes, Resumes);
  HICACHE_FIELD(is_closed, IsClosed);
  HICACHE_VALID(is_possible(x.exported), "no memory holds so many exported objects");
}

void fields(auto side, like<membership> auto& x) {
  HICACHE_FIELD(known, Known);
  HICACHE_FIELD(member_ttl_ms, MemberTtlMs);
  HICACHE_FIELD(shards_digest, ShardsDigest);
  HICACHE_FIELD(refused, Refused, limits::index_batch_keys);
  HICACHE_FIELD(lost, Lost, limits::index_batch_keys);
  HICACHE_FIELD(resumed, Resumed);
  HICACHE_FIELD(takes_disk, TakesDisk);
}

void fields(auto side, like<shard_map> auto& x) {
  HICACHE_FIELD(shards, Shards, limits::index_shards);
  HICACHE_VALID(are_in_order(x.shards), "shards are not in order");
}

void fields(auto side, like<heartbeat> auto& x) {
  HICACHE_FIELD(member, Member);
  HICACHE_FIELD(epoch, Epoch);
  HICACHE_FIELD(counters, Counters);
  HICACHE_FIELD(leaves, Leaves);
  HICACHE_FIELD(is_closed, IsClosed);
}

void fields(auto side, like<published_pages> auto& x) {
  HICACHE_FIELD(member, Member);
  HICACHE_FIELD(epoch, Epoch);
  HICACHE_FIELD(pages, Pages, limits::index_batch_keys);
  HICACHE_FIELD(seconds, Seconds);
  HICACHE_FIELD(only_new, OnlyNew);
  HICACHE_VALID(x.seconds <= x.pages.size(), "more pages of the second keeper than pages");
}

void fields(auto side, like<withdrawn_pages> auto& x) {
  HICACHE_FIELD(member, Member);
  HICACHE_FIELD(epoch, Epoch);
  HICACHE_FIELD(keys, Keys, limits::index_batch_keys);
}

void fields(auto side, like<key_batch> auto& x) {
  HICACHE_FIELD(keys, Keys, limits::index_batch_keys);
  HICACHE_FIELD(with_disk, WithDisk);
}

void fields(auto side, like<awaited_pages> auto& x) {
  HICACHE_FIELD(keys, Keys, limits::index_batch_keys);
  HICACHE_FIELD(known, Known, limits::index_batch_keys);
  HICACHE_FIELD(wait_ms, WaitMs);
  HICACHE_VALID(x.known.size() == x.keys.size(), "the counts do not match the keys");
}

template <class Builder>
void fields(encoder<Builder> to, const placements& x) {
  to.message.setShardsDigest(x.shards_digest);
  to.message.setIsPartial(x.is_partial);
  auto total = 0u;
  auto counts = to.message.initCounts(size_of(x.replicas));
  for (auto i = 0u; i < counts.size(); ++i) {
    counts.set(i, static_cast<uint8_t>(x.replicas[i].size()));
    total += size_of(x.replicas[i]);
  }
  auto replicas = to.message.initReplicas(total);
  auto next = 0u;
  for (const auto& of_key : x.replicas)
    for (const auto& one : of_key)
      put(one, replicas[next++]);
}

template <class Reader>
void fields(decoder<Reader> from, placements& x) {
  x.shards_digest = from.message.getShardsDigest();
  x.is_partial = from.message.getIsPartial();
  const auto counts = from.message.getCounts();
  const auto replicas = from.message.getReplicas();
  KJ_REQUIRE(counts.size() <= limits::index_batch_keys, "list too long");
  x.replicas.resize(counts.size());
  auto next = 0u;
  for (auto i = 0u; i < counts.size(); ++i) {
    KJ_REQUIRE(counts[i] <= limits::replicas_per_key && counts[i] <= replicas.size() - next,
               "replicas do not match their counts");
    x.replicas[i].resize(counts[i]);
    for (auto& one : x.replicas[i])
      get(replicas[next++], one);
  }
  KJ_REQUIRE(next == replicas.size(), "replicas do not match their counts");
}

void fields(auto side, like<member_query> auto& x) {
  HICACHE_FIELD(members, Members, limits::index_batch_keys);
  HICACHE_FIELD(from, From);
  HICACHE_FIELD(most, Most);
}

void fields(auto side, like<member_list> auto& x) {
  HICACHE_FIELD(members, Members, limits::index_members);
  HICACHE_FIELD(has_more, HasMore);
}

void fields(auto side, like<status_query> auto& x) {
  HICACHE_FIELD(from, From);
  HICACHE_FIELD(most, Most);
}

void fields(auto side, like<index_status> auto& x) {
  HICACHE_FIELD(members, Members, limits::index_members);
  HICACHE_FIELD(keys, Keys);
  HICACHE_FIELD(replicas, Replicas);
  HICACHE_FIELD(bytes, Bytes);
  HICACHE_FIELD(lookups, Lookups);
  HICACHE_FIELD(keys_asked, KeysAsked);
  HICACHE_FIELD(keys_found, KeysFound);
  HICACHE_FIELD(members_lost, MembersLost);
  HICACHE_FIELD(uptime_ms, UptimeMs);
  HICACHE_FIELD(has_more, HasMore);
  HICACHE_FIELD(second_keys, SecondKeys);
  HICACHE_FIELD(disk_replicas, DiskReplicas);
  HICACHE_FIELD(disk_bytes, DiskBytes);
}

void fields(auto side, like<page_totals> auto& x) {
  HICACHE_FIELD(pages, Pages);
  HICACHE_FIELD(bytes, Bytes);
  HICACHE_FIELD(left_out, LeftOut, limits::index_batch_keys);
}

void fields(auto side, like<page_pins> auto& x) {
  HICACHE_FIELD(kind, Kind);
  HICACHE_FIELD(ttl_ms, TtlMs);
  HICACHE_FIELD(keys, Keys, limits::index_batch_keys);
  HICACHE_VALID(x.kind <= last_pin, "no such pin");
}

void fields(auto side, like<namespace_pages> auto& x) {
  HICACHE_FIELD(fingerprint, Fingerprint);
  HICACHE_FIELD(evict_first, EvictFirst);
}

void fields(auto side, like<page_copies> auto& x) {
  HICACHE_FIELD(source, Source);
  HICACHE_FIELD(pages, Pages, limits::storage_batch_pages);
}

void fields(auto side, like<page_recall> auto& x) {
  HICACHE_FIELD(fingerprint, Fingerprint);
  HICACHE_FIELD(keys, Keys, limits::storage_batch_pages);
  HICACHE_FIELD(wait_ms, WaitMs);
}

void fields(auto side, like<drain_request> auto& x) {
  HICACHE_FIELD(force, Force);
}

void fields(auto side, like<drain_report> auto& x) {
  HICACHE_FIELD(moved, Moved);
  HICACHE_FIELD(withdrawn, Withdrawn);
}

void fields(auto side, like<drain_progress> auto& x) {
  HICACHE_FIELD(is_draining, IsDraining);
  HICACHE_FIELD(is_closed, IsClosed);
  HICACHE_FIELD(pages, Pages);
  HICACHE_FIELD(tried, Tried);
  HICACHE_FIELD(moved, Moved);
}

HICACHE_INDEX_MESSAGES(HICACHE_DEFINE_MESSAGE)

} // namespace hicache::wire
