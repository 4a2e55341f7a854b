#include "messages/wire.hpp"

#include "base/limits.hpp"
#include "messages/object_place.hpp"
#include "messages/wire_parts.hpp"

#include <algorithm>

namespace hicache::wire {

namespace {

// -- values <-> schema: one pair of functions per struct ----------------------

// The templates below find all of them.
using wire::read;
using wire::write;

// Elements of lists, declared here for the list templates below.
void write(const announced_page& x, schema::AnnouncedPage::Builder to);
void read(schema::AnnouncedPage::Reader from, announced_page& x);
void write(const index_shard& x, schema::IndexShard::Builder to);
void read(schema::IndexShard::Reader from, index_shard& x);
void write(const copied_page& x, schema::CopiedPage::Builder to);
void read(schema::CopiedPage::Reader from, copied_page& x);
void write(const member_state& x, schema::MemberState::Builder to);
void read(schema::MemberState::Reader from, member_state& x);

template <class T, class ListBuilder>
void write_list(const std::vector<T>& xs, ListBuilder to) {
  write_each(xs, to, [](const T& x, auto one) { write(x, one); });
}

template <class T, class ListReader>
void read_list(ListReader from, size_t count_max, std::vector<T>& xs) {
  read_each(from, count_max, xs, [](auto one, T& x) { read(one, x); });
}

uint8_t pin_of(uint8_t from) {
  static constexpr auto last_kind = uint8_t{2};
  KJ_REQUIRE(from <= last_kind, "no such pin");
  return from;
}

void write(const index_shard& x, schema::IndexShard::Builder to) {
  to.setNumber(x.number);
  to.setAddress(x.address);
  to.setEpoch(x.epoch);
}

void read(schema::IndexShard::Reader from, index_shard& x) {
  x.number = from.getNumber();
  x.address = text(from.getAddress());
  x.epoch = from.getEpoch();
}

void write(const member_counters& x, schema::MemberCounters::Builder to) {
  to.setHits(x.hits);
  to.setMisses(x.misses);
  to.setErrors(x.errors);
  to.setCorrupt(x.corrupt);
  to.setEvicted(x.evicted);
  to.setPinnedBytes(x.pinned_bytes);
}

void read(schema::MemberCounters::Reader from, member_counters& x) {
  x.hits = from.getHits();
  x.misses = from.getMisses();
  x.errors = from.getErrors();
  x.corrupt = from.getCorrupt();
  x.evicted = from.getEvicted();
  x.pinned_bytes = from.getPinnedBytes();
}

void write(const announced_page& x, schema::AnnouncedPage::Builder to) {
  write(x.key, to.initKey());
  to.setOffset(x.offset);
  to.setLength(x.length);
  to.setGeneration(x.generation);
}

void read(schema::AnnouncedPage::Reader from, announced_page& x) {
  read(from.getKey(), x.key);
  x.offset = from.getOffset();
  x.length = from.getLength();
  x.generation = from.getGeneration();
  KJ_REQUIRE(x.length <= limits::page_bytes, "page too long");
}

void write(const replica& x, schema::Replica::Builder to) {
  to.setMember(x.member);
  to.setOffset(x.offset);
  to.setLength(x.length);
  to.setGeneration(x.generation);
}

void read(schema::Replica::Reader from, replica& x) {
  x.member = from.getMember();
  x.offset = from.getOffset();
  x.length = from.getLength();
  x.generation = from.getGeneration();
  KJ_REQUIRE(x.length <= limits::page_bytes, "page too long");
}

void write(const member_state& x, schema::MemberState::Builder to) {
  write(x.info, to.initInfo());
  to.setPages(x.pages);
  to.setBytes(x.bytes);
  to.setSilentMs(x.silent_ms);
  write(x.counters, to.initCounters());
  to.setDiskPages(x.disk_pages);
  to.setDiskBytes(x.disk_bytes);
}

void read(schema::MemberState::Reader from, member_state& x) {
  read(from.getInfo(), x.info);
  x.pages = from.getPages();
  x.bytes = from.getBytes();
  x.silent_ms = from.getSilentMs();
  read(from.getCounters(), x.counters);
  x.disk_pages = from.getDiskPages();
  x.disk_bytes = from.getDiskBytes();
}

void write(const copied_page& x, schema::CopiedPage::Builder to) {
  write(x.page, to.initPage());
  write(x.parent, to.initParent());
  to.setFingerprint(x.fingerprint);
  to.setTenant(x.tenant);
  to.setPin(x.pin);
  to.setPinTtlMs(x.pin_ttl_ms);
  to.setCopies(x.copies);
}

void read(schema::CopiedPage::Reader from, copied_page& x) {
  read(from.getPage(), x.page);
  read(from.getParent(), x.parent);
  x.fingerprint = from.getFingerprint();
  x.tenant = from.getTenant();
  x.pin = pin_of(from.getPin());
  x.pin_ttl_ms = from.getPinTtlMs();
  x.copies = from.getCopies();
  KJ_REQUIRE(x.parent != x.page.key, "a page cannot be its own parent");
  KJ_REQUIRE(x.copies <= limits::replicas_per_key, "too many copies");
}

} // namespace

// -- values of messages ---------------------------------------------------------

void write(const member_info& x, schema::MemberInfo::Builder to) {
  to.setMember(x.member);
  to.setEpoch(x.epoch);
  to.setProtocolVersion(x.protocol_version);
  to.setHost(x.host);
  to.setMemoryName(x.memory_name);
  to.setPageAddress(x.page_address);
  to.setCapacityBytes(x.capacity_bytes);
  to.setFingerprint(x.fingerprint);
  to.setExportedHeaders(x.exported.headers);
  to.setExportedObjects(x.exported.objects);
  to.setExportedObjectBytes(x.exported.object_bytes);
  to.setExportedCount(x.exported.count);
  to.setAddress(x.address);
  to.setResumes(x.resumes);
  to.setIsClosed(x.is_closed);
}

void read(schema::MemberInfo::Reader from, member_info& x) {
  x.member = from.getMember();
  x.epoch = from.getEpoch();
  x.protocol_version = from.getProtocolVersion();
  x.host = text(from.getHost());
  x.memory_name = text(from.getMemoryName());
  x.page_address = text(from.getPageAddress());
  x.capacity_bytes = from.getCapacityBytes();
  x.fingerprint = from.getFingerprint();
  x.exported = {from.getExportedHeaders(), from.getExportedObjects(), from.getExportedObjectBytes(),
                from.getExportedCount()};
  x.address = text(from.getAddress());
  x.resumes = from.getResumes();
  x.is_closed = from.getIsClosed();
  KJ_REQUIRE(is_possible(x.exported), "no memory holds so many exported objects");
}

void write(const membership& x, schema::Membership::Builder to) {
  to.setKnown(x.known);
  to.setMemberTtlMs(x.member_ttl_ms);
  to.setShardsDigest(x.shards_digest);
  write_list(x.refused, to.initRefused(size_of(x.refused)));
  write_list(x.lost, to.initLost(size_of(x.lost)));
  to.setResumed(x.resumed);
  to.setTakesDisk(x.takes_disk);
}

void read(schema::Membership::Reader from, membership& x) {
  x.known = from.getKnown();
  x.member_ttl_ms = from.getMemberTtlMs();
  x.shards_digest = from.getShardsDigest();
  read_list(from.getRefused(), limits::index_batch_keys, x.refused);
  read_list(from.getLost(), limits::index_batch_keys, x.lost);
  x.resumed = from.getResumed();
  x.takes_disk = from.getTakesDisk();
}

void write(const shard_map& x, schema::ShardMap::Builder to) {
  write_list(x.shards, to.initShards(size_of(x.shards)));
}

void read(schema::ShardMap::Reader from, shard_map& x) {
  read_list(from.getShards(), limits::index_shards, x.shards);
  const auto is_behind = [](const auto& a, const auto& b) { return a.number >= b.number; };
  KJ_REQUIRE(std::ranges::adjacent_find(x.shards, is_behind) == x.shards.end(),
             "shards are not in order");
}

void write(const heartbeat& x, schema::Heartbeat::Builder to) {
  to.setMember(x.member);
  to.setEpoch(x.epoch);
  write(x.counters, to.initCounters());
  to.setLeaves(x.leaves);
  to.setIsClosed(x.is_closed);
}

void read(schema::Heartbeat::Reader from, heartbeat& x) {
  x.member = from.getMember();
  x.epoch = from.getEpoch();
  read(from.getCounters(), x.counters);
  x.leaves = from.getLeaves();
  x.is_closed = from.getIsClosed();
}

void write(const published_pages& x, schema::PublishedPages::Builder to) {
  to.setMember(x.member);
  to.setEpoch(x.epoch);
  write_list(x.pages, to.initPages(size_of(x.pages)));
  to.setSeconds(x.seconds);
  to.setOnlyNew(x.only_new);
}

void read(schema::PublishedPages::Reader from, published_pages& x) {
  x.member = from.getMember();
  x.epoch = from.getEpoch();
  read_list(from.getPages(), limits::index_batch_keys, x.pages);
  x.seconds = from.getSeconds();
  x.only_new = from.getOnlyNew();
  KJ_REQUIRE(x.seconds <= x.pages.size(), "more pages of the second keeper than pages");
}

void write(const withdrawn_pages& x, schema::WithdrawnPages::Builder to) {
  to.setMember(x.member);
  to.setEpoch(x.epoch);
  write_list(x.keys, to.initKeys(size_of(x.keys)));
}

void read(schema::WithdrawnPages::Reader from, withdrawn_pages& x) {
  x.member = from.getMember();
  x.epoch = from.getEpoch();
  read_list(from.getKeys(), limits::index_batch_keys, x.keys);
}

void write(const key_batch& x, schema::KeyBatch::Builder to) {
  write_list(x.keys, to.initKeys(size_of(x.keys)));
  to.setWithDisk(x.with_disk);
}

void read(schema::KeyBatch::Reader from, key_batch& x) {
  read_list(from.getKeys(), limits::index_batch_keys, x.keys);
  x.with_disk = from.getWithDisk();
}

void write(const awaited_pages& x, schema::AwaitedPages::Builder to) {
  write_list(x.keys, to.initKeys(size_of(x.keys)));
  auto known = to.initKnown(size_of(x.known));
  for (auto i = 0u; i < known.size(); ++i)
    known.set(i, x.known[i]);
  to.setWaitMs(x.wait_ms);
}

void read(schema::AwaitedPages::Reader from, awaited_pages& x) {
  read_list(from.getKeys(), limits::index_batch_keys, x.keys);
  const auto known = from.getKnown();
  KJ_REQUIRE(known.size() == x.keys.size(), "the counts do not match the keys");
  for (const auto count : known)
    x.known.push_back(count);
  x.wait_ms = from.getWaitMs();
}

void write(const placements& x, schema::Placements::Builder to) {
  to.setShardsDigest(x.shards_digest);
  to.setIsPartial(x.is_partial);
  auto total = 0u;
  auto counts = to.initCounts(size_of(x.replicas));
  for (auto i = 0u; i < counts.size(); ++i) {
    counts.set(i, static_cast<uint8_t>(x.replicas[i].size()));
    total += size_of(x.replicas[i]);
  }
  auto replicas = to.initReplicas(total);
  auto next = 0u;
  for (const auto& of_key : x.replicas)
    for (const auto& one : of_key)
      write(one, replicas[next++]);
}

void read(schema::Placements::Reader from, placements& x) {
  x.shards_digest = from.getShardsDigest();
  x.is_partial = from.getIsPartial();
  const auto counts = from.getCounts();
  const auto replicas = from.getReplicas();
  KJ_REQUIRE(counts.size() <= limits::index_batch_keys, "list too long");
  x.replicas.resize(counts.size());
  auto next = 0u;
  for (auto i = 0u; i < counts.size(); ++i) {
    KJ_REQUIRE(counts[i] <= limits::replicas_per_key && counts[i] <= replicas.size() - next,
               "replicas do not match their counts");
    x.replicas[i].resize(counts[i]);
    for (auto& one : x.replicas[i])
      read(replicas[next++], one);
  }
  KJ_REQUIRE(next == replicas.size(), "replicas do not match their counts");
}

void write(const member_query& x, schema::MemberQuery::Builder to) {
  auto members = to.initMembers(size_of(x.members));
  for (auto i = 0u; i < members.size(); ++i)
    members.set(i, x.members[i]);
  to.setFrom(x.from);
  to.setMost(x.most);
}

void read(schema::MemberQuery::Reader from, member_query& x) {
  const auto members = from.getMembers();
  KJ_REQUIRE(members.size() <= limits::index_batch_keys, "list too long");
  x.members.reserve(members.size());
  for (const auto member : members)
    x.members.push_back(member);
  x.from = from.getFrom();
  x.most = from.getMost();
}

void write(const member_list& x, schema::MemberList::Builder to) {
  write_list(x.members, to.initMembers(size_of(x.members)));
  to.setHasMore(x.has_more);
}

void read(schema::MemberList::Reader from, member_list& x) {
  read_list(from.getMembers(), limits::index_members, x.members);
  x.has_more = from.getHasMore();
}

void write(const status_query& x, schema::StatusQuery::Builder to) {
  to.setFrom(x.from);
  to.setMost(x.most);
}

void read(schema::StatusQuery::Reader from, status_query& x) {
  x.from = from.getFrom();
  x.most = from.getMost();
}

void write(const index_status& x, schema::IndexStatus::Builder to) {
  write_list(x.members, to.initMembers(size_of(x.members)));
  to.setKeys(x.keys);
  to.setReplicas(x.replicas);
  to.setBytes(x.bytes);
  to.setLookups(x.lookups);
  to.setKeysAsked(x.keys_asked);
  to.setKeysFound(x.keys_found);
  to.setMembersLost(x.members_lost);
  to.setUptimeMs(x.uptime_ms);
  to.setHasMore(x.has_more);
  to.setSecondKeys(x.second_keys);
  to.setDiskReplicas(x.disk_replicas);
  to.setDiskBytes(x.disk_bytes);
}

void read(schema::IndexStatus::Reader from, index_status& x) {
  read_list(from.getMembers(), limits::index_members, x.members);
  x.keys = from.getKeys();
  x.replicas = from.getReplicas();
  x.bytes = from.getBytes();
  x.lookups = from.getLookups();
  x.keys_asked = from.getKeysAsked();
  x.keys_found = from.getKeysFound();
  x.members_lost = from.getMembersLost();
  x.uptime_ms = from.getUptimeMs();
  x.has_more = from.getHasMore();
  x.second_keys = from.getSecondKeys();
  x.disk_replicas = from.getDiskReplicas();
  x.disk_bytes = from.getDiskBytes();
}

void write(const page_totals& x, schema::PageTotals::Builder to) {
  to.setPages(x.pages);
  to.setBytes(x.bytes);
  write_list(x.left_out, to.initLeftOut(size_of(x.left_out)));
}

void read(schema::PageTotals::Reader from, page_totals& x) {
  x.pages = from.getPages();
  x.bytes = from.getBytes();
  read_list(from.getLeftOut(), limits::index_batch_keys, x.left_out);
}

void write(const page_pins& x, schema::PagePins::Builder to) {
  to.setKind(x.kind);
  to.setTtlMs(x.ttl_ms);
  write_list(x.keys, to.initKeys(size_of(x.keys)));
}

void read(schema::PagePins::Reader from, page_pins& x) {
  x.kind = pin_of(from.getKind());
  x.ttl_ms = from.getTtlMs();
  read_list(from.getKeys(), limits::index_batch_keys, x.keys);
}

void write(const namespace_pages& x, schema::NamespacePages::Builder to) {
  to.setFingerprint(x.fingerprint);
}

void read(schema::NamespacePages::Reader from, namespace_pages& x) {
  x.fingerprint = from.getFingerprint();
}

void write(const page_copies& x, schema::PageCopies::Builder to) {
  to.setSource(x.source);
  write_list(x.pages, to.initPages(size_of(x.pages)));
}

void read(schema::PageCopies::Reader from, page_copies& x) {
  x.source = from.getSource();
  read_list(from.getPages(), limits::storage_batch_pages, x.pages);
}

void write(const page_recall& x, schema::PageRecall::Builder to) {
  to.setFingerprint(x.fingerprint);
  write_list(x.keys, to.initKeys(size_of(x.keys)));
  to.setWaitMs(x.wait_ms);
}

void read(schema::PageRecall::Reader from, page_recall& x) {
  x.fingerprint = from.getFingerprint();
  read_list(from.getKeys(), limits::storage_batch_pages, x.keys);
  x.wait_ms = from.getWaitMs();
}

void write(const drain_request& x, schema::DrainRequest::Builder to) {
  to.setForce(x.force);
}

void read(schema::DrainRequest::Reader from, drain_request& x) {
  x.force = from.getForce();
}

void write(const drain_report& x, schema::DrainReport::Builder to) {
  to.setMoved(x.moved);
  to.setWithdrawn(x.withdrawn);
}

void read(schema::DrainReport::Reader from, drain_report& x) {
  x.moved = from.getMoved();
  x.withdrawn = from.getWithdrawn();
}

void write(const drain_progress& x, schema::DrainProgress::Builder to) {
  to.setIsDraining(x.is_draining);
  to.setIsClosed(x.is_closed);
  to.setPages(x.pages);
  to.setTried(x.tried);
  to.setMoved(x.moved);
}

void read(schema::DrainProgress::Reader from, drain_progress& x) {
  x.is_draining = from.getIsDraining();
  x.is_closed = from.getIsClosed();
  x.pages = from.getPages();
  x.tried = from.getTried();
  x.moved = from.getMoved();
}

HICACHE_DEFINE_CODEC(member_info, MemberInfo)
HICACHE_DEFINE_CODEC(shard_map, ShardMap)
HICACHE_DEFINE_CODEC(membership, Membership)
HICACHE_DEFINE_CODEC(heartbeat, Heartbeat)
HICACHE_DEFINE_CODEC(published_pages, PublishedPages)
HICACHE_DEFINE_CODEC(withdrawn_pages, WithdrawnPages)
HICACHE_DEFINE_CODEC(key_batch, KeyBatch)
HICACHE_DEFINE_CODEC(awaited_pages, AwaitedPages)
HICACHE_DEFINE_CODEC(placements, Placements)
HICACHE_DEFINE_CODEC(member_query, MemberQuery)
HICACHE_DEFINE_CODEC(member_list, MemberList)
HICACHE_DEFINE_CODEC(status_query, StatusQuery)
HICACHE_DEFINE_CODEC(index_status, IndexStatus)
HICACHE_DEFINE_CODEC(page_totals, PageTotals)
HICACHE_DEFINE_CODEC(page_pins, PagePins)
HICACHE_DEFINE_CODEC(namespace_pages, NamespacePages)
HICACHE_DEFINE_CODEC(page_copies, PageCopies)
HICACHE_DEFINE_CODEC(page_recall, PageRecall)
HICACHE_DEFINE_CODEC(drain_request, DrainRequest)
HICACHE_DEFINE_CODEC(drain_report, DrainReport)
HICACHE_DEFINE_CODEC(drain_progress, DrainProgress)

} // namespace hicache::wire
