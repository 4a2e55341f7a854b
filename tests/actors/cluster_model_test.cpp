// The protocol of L3 between real segments and real shards of the index, under random schedules:
// writers, lenders, readers, copies and evictions; connections that hold messages, break, and
// deliver late; shards and members that die, come, go and fall silent. Whatever the order: a reader
// gets the page that it asked for or none, and when all is healed both keepers of each key offer
// exactly what the members have. HICACHE_CLUSTER_MODEL_RUNS=n makes n runs,
// HICACHE_CLUSTER_MODEL_SEED=n the run of one seed.

#include "tests/actors/cluster_world.hpp"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <tuple>

namespace hicache {
namespace {

using namespace hicache::test;

/// Pages on their way into a segment.
struct writer {
  member_ptr at;
  test::reply<segment_slots> answer;
  segment_slots slots;
  int step = 0;
};

/// A page that is computed in L2, and exported.
struct exporter {
  member_ptr at;
  uint64_t key = 0;
  page_index page = 0;
  segment_slot slot;
  uint64_t checksum = 0;
  int step = 0;
};

/// A page on its way out.
struct reader {
  uint64_t key = 0;
  test::reply<placements> answer;
  member_ptr owner;
  page_read_steps read;
};

/// What runs did, so that they can be seen to reach what they are for.
struct model_totals {
  uint64_t reads = 0, exported_reads = 0, stale = 0;
  uint64_t exported = 0, reclaimed = 0;
  uint64_t evicted = 0, moved = 0, copied = 0;
  uint64_t mounts = 0, drained = 0, on_disk = 0;

  model_totals& operator+=(const model_totals& x) {
    reads += x.reads;
    exported_reads += x.exported_reads;
    stale += x.stale;
    exported += x.exported;
    reclaimed += x.reclaimed;
    evicted += x.evicted;
    moved += x.moved;
    copied += x.copied;
    mounts += x.mounts;
    drained += x.drained;
    on_disk += x.on_disk;
    return *this;
  }
};

// -- the model ----------------------------------------------------------------

class cluster_model : private cluster_world {
public:
  explicit cluster_model(uint64_t seed)
    : cluster_world(seed), flips_bits_(seed % 3 == 0), is_calm_(seed % 5 == 0) {}

  model_totals simulate(int steps) {
    for (auto i = 0; i < steps && !has_failed(); ++i) {
      for (auto count = 1 + draw(6); count > 0; --count)
        step_of_pages();
      step_of_processes();
      deliver_some();
      expect_lasting_generations();
    }
    end_everything();
    if (!has_failed())
      expect_agreement();
    count();
    return totals_;
  }

private:
  static bool has_failed() { return ::testing::Test::HasFailure(); }

  // -- pages that come and go -------------------------------------------------

  void start_writer() {
    auto next = writer{any_member(), {}, {}};
    auto pages = segment_pages{};
    const auto first = draw(key_count);
    for (auto key = first; key < std::min(key_count, uint64_t{first} + 1 + draw(3)); ++key)
      pages.list.push_back(page_of(key));
    next.answer = send_request<segment_slots>(next.at->segment, atom::reserve_v, pages);
    writers_.push_back(std::move(next));
  }

  void expect_answer(const member_ptr& from, std::function<bool()> has_arrived) {
    owed_.emplace_back(from, std::move(has_arrived));
  }

  /// @returns whether the writer has ended
  bool proceed(writer& each) {
    if (!each.at->is_alive)
      return true;
    if (!each.answer.arrived())
      return false;
    auto& slots = each.slots.list;
    const auto step = each.step++;
    if (step == 0) {
      each.slots = {each.answer.get()->list, draw(2) == 0};
      std::erase_if(slots, [](const auto& x) { return x.what != segment_slot::state::reserved; });
    } else if (step <= 2) {
      for (const auto& slot : slots)
        fill(object_of(each.at->memory, slot), number_of(slot.key), step == 2);
    } else if (step == 3) {
      for (const auto& slot : slots)
        seal_slot(each.at->memory, slot, fingerprint_of(number_of(slot.key)),
                  checksum_of(each.at->memory, slot));
    } else {
      auto given_up = segment_slots{};
      if (draw(4) == 0 && !slots.empty()) {
        given_up.list.push_back(slots.back());
        slots.pop_back();
      }
      caf::anon_send(each.at->segment, atom::abort_v, given_up);
      const auto answer = send_request<key_batch>(each.at->segment, atom::publish_v, each.slots);
      expect_answer(each.at, [answer] { return answer.arrived(); });
    }
    return slots.empty() || step == 4;
  }

  void proceed_writer() {
    if (writers_.empty())
      return;
    const auto at = writers_.begin() + draw(writers_.size());
    if (proceed(*at))
      writers_.erase(at);
  }

  /// As the tree and the copy engine do, but L2 may change while a page is exported.
  void start_exporter() {
    constexpr auto keys = std::array<uint64_t, 4>{0, 2, 10, 17};
    auto next = exporter{any_member(), keys[draw(keys.size())], draw(exported_count), {}, 0, 0};
    const auto is_filling
      = [&next](const exporter& x) { return x.at == next.at && x.page == next.page && x.step < 3; };
    if (!next.at->exported || std::ranges::any_of(exporters_, is_filling))
      return;
    next.at->exported->reclaim(std::array{next.page});
    exporters_.push_back(std::move(next));
  }

  /// @returns whether the lender has ended
  bool proceed(exporter& each) {
    auto& exported = *each.at->exported;
    const auto object = object_in(*each.at, exported.header_of(each.page), exported_bytes);
    switch (each.step++) {
      case 0:
      case 1:
        fill(object, each.key, each.step == 2);
        return false;
      case 2: {
        const auto slot = exported.begin(each.page, key_of(each.key));
        each.slot = slot.value_or(segment_slot{});
        return !slot;
      }
      case 3:
        each.checksum = page_checksum(std::array{std::span<const std::byte>{object}});
        return false;
      case 4:
        if (exported.finish(each.slot, exported_fingerprint, each.checksum))
          return false;
        ++totals_.reclaimed;
        return true;
      default:
        if (each.at->is_alive) {
          const auto answer = send_request<key_batch>(each.at->segment, atom::publish_v,
                                                      segment_slots{{each.slot}});
          expect_answer(each.at, [answer] { return answer.arrived(); });
          ++totals_.exported;
        }
        return true;
    }
  }

  void proceed_exporter() {
    if (exporters_.empty())
      return;
    const auto at = exporters_.begin() + draw(exporters_.size());
    if (proceed(*at))
      exporters_.erase(at);
  }

  /// A page that some member has, mostly.
  uint64_t key_to_read() {
    const auto at = any_member();
    // Pages of the segment come first.
    const auto from = at->exported && draw(2) == 0 ? at->exported->objects().headers : 0;
    const auto pages = offered_by(*at).published(from, key_count);
    return pages.empty() || draw(8) == 0 ? draw(key_count)
                                         : number_of(pages[draw(pages.size())].key);
  }

  void start_reader() {
    const auto guide = any_member(); // Whose idea of the shards it has.
    const auto key = key_to_read();
    const auto keepers = guide->view->keepers_of(key_of(key));
    const auto second = keepers.second != key_keepers::none && draw(4) == 0;
    const auto number = guide->view->numbers[second ? keepers.second : keepers.first];
    if (const auto link = guide->connections[number])
      readers_.push_back(
        {key,
         send_request<placements>(link->shard, atom::locate_v, key_batch{{key_of(key)}}),
         nullptr,
         {}});
  }

  /// @returns whether the reader has ended
  bool proceed(reader& each) {
    if (each.owner)
      return read_on(each);
    if (!each.answer.arrived())
      return false;
    const auto answer = each.answer.get();
    if (!answer || answer->replicas.front().empty())
      return true;
    const auto from = answer->replicas.front()[draw(answer->replicas.front().size())];
    each.owner = members.at(from.member);
    each.read.start(each.key, from, *each.owner);
    EXPECT_EQ(from.length, length_of(each.key));
    return has_failed();
  }

  bool read_on(reader& each) {
    using enum page_read_steps::outcome;
    const auto end = each.read.go_on();
    if (end == unfinished)
      return false;
    const auto batch = key_batch{{key_of(each.key)}};
    if (end == right) {
      EXPECT_TRUE(holds(each.read.bytes, each.key)) << "wrong bytes of page " << each.key;
      caf::anon_send(each.owner->segment, atom::touch_v, batch);
      ++totals_.reads;
      const auto& exported = each.owner->exported;
      totals_.exported_reads
        += exported && each.read.from.offset >= exported->objects().headers ? 1 : 0;
    } else {
      EXPECT_TRUE(end == miss || flips_bits_) << "page " << each.key << " is taken for damaged";
      caf::anon_send(each.owner->segment, atom::corrupt_v, batch);
      ++totals_.stale;
    }
    return true;
  }

  void proceed_reader() {
    if (readers_.empty())
      return;
    const auto at = readers_.begin() + draw(readers_.size());
    if (proceed(*at))
      readers_.erase(at);
  }

  /// Commands of people, and of other members.
  void command() {
    const auto at = any_member();
    const auto key = draw(key_count);
    const auto batch = key_batch{{key_of(key)}};
    switch (draw(8)) {
      case 7:
        return change_disk(*at);
      case 0:
        return caf::anon_send(at->segment, atom::touch_v, batch);
      case 1:
        return caf::anon_send(at->segment, atom::corrupt_v, batch);
      case 2:
        return caf::anon_send(
          at->segment, atom::pin_v,
          page_pins{static_cast<uint8_t>(draw(3)), 1000 * uint64_t{draw(9)}, batch.keys});
      case 3:
        return caf::anon_send(at->segment, atom::remove_v, keys_of(key, 1 + draw(3)));
      case 4:
        if (draw(3) == 0)
          caf::anon_send(at->segment, atom::clear_v, namespace_pages{fingerprint_of(key)});
        return;
      case 5: {
        const auto answer = send_request<atom::ok>(at->segment, atom::mount_v);
        return expect_answer(at, [answer] { return answer.arrived(); });
      }
      default:
        return flips_bits_ ? flip_bit(*at) : void();
    }
  }

  void flip_bit(member& at) {
    const auto pages = table_of(at).published(0, key_count);
    if (pages.empty())
      return;
    const auto& page = pages[draw(pages.size())];
    at.memory[page.offset + draw(slot_object_offset + page.length)] ^= std::byte{1} << draw(8);
  }

  /// A replica; what is asked for may be elsewhere by the time it is read.
  void copy_pages() {
    const auto from = any_member();
    const auto to = any_member();
    if (from == to)
      return;
    auto wanted = page_copies{from->id, {}};
    for (const auto& page : offered_by(*from).published(64 * draw(20), 1 + draw(3)))
      if (!is_on_disk(page.offset))
        wanted.pages.push_back({announce(page), parent_of(number_of(page.key)),
                                fingerprint_of(number_of(page.key)), 0, 0, 0});
    const auto answer = send_request<page_totals>(to->segment, atom::copy_v, wanted);
    expect_answer(to, [answer] { return answer.arrived(); });
    copies_.push_back(answer);
  }

  void drain_member() {
    const auto at = any_member();
    if (living().size() < 2 || at->is_drained)
      return;
    at->is_drained = true;
    ++totals_.drained;
    for (const auto& [number, link] : at->connections)
      if (link && at->disk)
        ++link->reasons; // It mounts anew.
    const auto answer
      = send_request<drain_report>(at->segment, atom::drain_v, drain_request{draw(2) == 0});
    expect_answer(at, [at, answer] {
      at->is_drained = answer.arrived() && answer.get(); // Not while nobody takes a pinned page.
      return answer.arrived();
    });
  }

  // -- what happens next ------------------------------------------------------

  void step_of_pages() {
    const auto choice = draw(100);
    if (choice < 10)
      start_writer();
    else if (choice < 13)
      start_exporter();
    else if (choice < 46)
      proceed_writer();
    else if (choice < 54)
      proceed_exporter();
    else if (choice < 64)
      start_reader();
    else if (choice < 95)
      proceed_reader();
    else if (choice < 98)
      command();
    else
      copy_pages();
  }

  void step_of_processes() {
    const auto choice = draw(100);
    if (choice < 20)
      pass_time(std::chrono::milliseconds{1 + draw(draw(6) == 0 ? 12000 : 1500)});
    else if (choice < 30)
      look(*any_member());
    else if (choice < 45 && !is_calm_)
      disturb(*any_member());
  }

  void disturb(member& at) {
    const auto link = std::next(at.connections.begin(), draw(at.connections.size()));
    switch (draw(8)) {
      case 0:
      case 1:
        if (link->second)
          link->second->is_held = !link->second->is_held;
        return;
      case 2: // Silent at every shard, or heard again.
        for (const auto& [number, each] : at.connections)
          if (each)
            each->is_held = !at.is_silent;
        at.is_silent = !at.is_silent;
        return;
      case 3:
        return break_connection(at, link->first);
      case 4:
      case 5:
        return change_shards();
      case 6:
        return draw(4) == 0 ? drain_member() : void();
      default:
        if (draw(2) == 0)
          kill_member();
        if (living().size() < 3)
          start_member();
    }
  }

  // -- the end ----------------------------------------------------------------

  void end_everything() {
    mend();
    run();
    while (!writers_.empty() && !has_failed()) {
      proceed_writer();
      run();
    }
    while (!exporters_.empty() && !has_failed()) {
      proceed_exporter();
      run();
    }
    while (!readers_.empty() && !has_failed()) {
      proceed_reader();
      run();
    }
    settle();
  }

  /// A generation is one page in one place for good: a reader may take it for that.
  void expect_lasting_generations() {
    for (const auto& at : living())
      for (const auto& page : offered_by(*at).published(0, key_count)) {
        if (is_on_disk(page.offset))
          break;
        const auto place = std::pair{number_of(page.key), page.offset};
        const auto is_exported = at->exported && page.offset >= at->exported->objects().headers;
        const auto [known, is_new]
          = placed_.try_emplace({at->id, is_exported, page.generation}, place);
        EXPECT_EQ(known->second, place) << "generation " << page.generation << " was given out";
      }
  }

  /// What a shard has to offer, and counts as the first keeper of its keys.
  struct shard_offers {
    offers all;
    uint64_t first_keys = 0, first_replicas = 0, first_bytes = 0, first_on_disk = 0;
  };

  void expect_agreement() {
    for (const auto& [from, has_arrived] : owed_)
      EXPECT_TRUE(!from->is_alive || has_arrived()) << "member " << from->id << " owes an answer";
    auto expected = std::map<uint32_t, shard_offers>{};
    for (const auto& each : living())
      expect_whole(*each, expected);
    for (const auto& [number, shard] : shards)
      expect_offers(number, expected[number]);
    for (const auto& link : all_connections)
      EXPECT_LE(link->mounts, link->reasons) << "mounted without a reason";
  }

  void count() {
    for (const auto& each : living()) {
      totals_.moved += table_of(*each).counters().moved;
      totals_.evicted += table_of(*each).counters().evicted;
    }
    for (const auto& each : copies_)
      if (each.arrived() && each.get())
        totals_.copied += each.get()->pages;
    for (const auto& link : all_connections)
      totals_.mounts += link->mounts;
  }

  /// What one member has, and what it says of it.
  void expect_whole(member& at, std::map<uint32_t, shard_offers>& expected) {
    const auto now = all_shards();
    const auto& table = table_of(at);
    const auto counters = table.counters();
    const auto pages = offered_by(at).published(0, key_count + exported_count + 1);
    auto in_memory = uint64_t{0};
    auto stored = uint64_t{0};
    auto bytes = uint64_t{0};
    for (const auto& page : pages) {
      const auto key = number_of(page.key);
      const auto on_disk = is_on_disk(page.offset);
      totals_.on_disk += on_disk ? 1 : 0;
      in_memory += on_disk ? 0 : 1;
      stored += table.find(page.key) ? 1 : 0;
      bytes += table.find(page.key) ? page.bytes : 0;
      EXPECT_EQ(page.length, length_of(key));
      const auto keepers = now.keepers_of(page.key);
      const auto news = announce(page);
      const auto copy = replica{at.id, news.offset, news.generation, news.length};
      auto& first = expected[now.numbers[keepers.first]];
      first.first_keys += first.all.contains(page.key) ? 0 : 1;
      ++(on_disk ? first.first_on_disk : first.first_replicas);
      first.first_bytes += on_disk ? 0 : page.length;
      first.all[page.key][at.id] = copy;
      if (keepers.second != key_keepers::none)
        expected[now.numbers[keepers.second]].all[page.key][at.id] = copy;
      if (flips_bits_ || on_disk)
        continue;
      const auto object = object_in(at, page.offset, page.length);
      const auto offset = static_cast<uint64_t>(object.data() - at.memory.data());
      const auto slot = segment_slot{page.key, segment_slot::state::present, page.offset,
                                     page.generation, page.length};
      EXPECT_TRUE(is_intact(at.memory, slot, offset, fingerprint_of(key)));
      EXPECT_TRUE(holds(object, key));
    }
    EXPECT_EQ(counters.writing, 0u) << "a reservation leaked";
    EXPECT_EQ(counters.used_bytes, bytes);
    EXPECT_EQ(counters.pages, stored);
    EXPECT_EQ(at.figures->pages, in_memory);
    EXPECT_EQ(at.figures->used_bytes, bytes);
    EXPECT_EQ(at.figures->evicted, counters.evicted);
    EXPECT_TRUE(!at.is_drained || pages.empty()) << "a drained member has pages";
  }

  /// A shard offers this and nothing else.
  void expect_offers(uint32_t number, const shard_offers& expected) {
    auto query = key_batch{{}, true};
    for (auto key = uint64_t{0}; key < key_count; ++key)
      query.keys.push_back(key_of(key));
    const auto found = ask_value<placements>(shards[number], atom::locate_v, query);
    EXPECT_FALSE(found.is_partial) << "shard " << number << " waits for a report";
    auto offered = offers{};
    for (auto key = uint64_t{0}; key < key_count; ++key)
      for (const auto& copy : found.replicas[key])
        offered[key_of(key)][copy.member] = copy;
    EXPECT_TRUE(offered == expected.all) << describe(number, offered, expected.all);
    const auto status = ask_value<index_status>(shards[number], atom::status_v, status_query{});
    EXPECT_EQ(status.keys, expected.first_keys);
    EXPECT_EQ(status.second_keys, offered.size() - expected.first_keys);
    EXPECT_EQ(status.replicas, expected.first_replicas);
    EXPECT_EQ(status.bytes, expected.first_bytes);
    EXPECT_EQ(status.disk_replicas, expected.first_on_disk);
    auto known = std::vector<uint64_t>{};
    for (const auto& each : status.members)
      known.push_back(each.info.member);
    auto alive = std::vector<uint64_t>{};
    for (const auto& each : living())
      alive.push_back(each->id);
    std::ranges::sort(known);
    EXPECT_EQ(known, alive) << "members of shard " << number;
  }

  /// Pages get damaged, so that checksums may be wrong.
  bool flips_bits_;
  /// Nothing fails.
  bool is_calm_;
  model_totals totals_;
  std::vector<writer> writers_;
  std::vector<exporter> exporters_;
  std::vector<reader> readers_;
  std::vector<test::reply<page_totals>> copies_;
  /// Who has to answer, and whether it has.
  std::vector<std::pair<member_ptr, std::function<bool()>>> owed_;
  /// Key and place, by member, whether it is exported, and generation.
  std::map<std::tuple<uint64_t, bool, uint32_t>, std::pair<uint64_t, uint64_t>> placed_;
};

uint64_t number_from(const char* name, uint64_t otherwise) {
  const auto* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(ClusterModelTest, ReadersGetTheRightPageAndTheIndexAgreesWithTheOwners) {
  spdlog::set_level(spdlog::level::err); // Shards that are lost are what is tested.
  const auto* one = std::getenv("HICACHE_CLUSTER_MODEL_SEED");
  const auto first = number_from("HICACHE_CLUSTER_MODEL_SEED", 1);
  const auto runs = one ? 1 : number_from("HICACHE_CLUSTER_MODEL_RUNS", 2000);
  auto sum = model_totals{};
  for (auto seed = first; seed < first + runs; ++seed) {
    SCOPED_TRACE("HICACHE_CLUSTER_MODEL_SEED=" + std::to_string(seed));
    sum += cluster_model{seed}.simulate(80);
    if (HasFailure())
      return;
  }
  RecordProperty("reads", std::to_string(sum.reads));
  RecordProperty("stale", std::to_string(sum.stale));
  RecordProperty("lent_reads", std::to_string(sum.exported_reads));
  RecordProperty("lent", std::to_string(sum.exported));
  RecordProperty("reclaimed", std::to_string(sum.reclaimed));
  RecordProperty("evicted", std::to_string(sum.evicted));
  RecordProperty("moved", std::to_string(sum.moved));
  RecordProperty("copied", std::to_string(sum.copied));
  RecordProperty("mounts", std::to_string(sum.mounts));
  RecordProperty("drained", std::to_string(sum.drained));
  RecordProperty("on_disk", std::to_string(sum.on_disk));
  // The seeds reach what they are for.
  if (runs >= 100) {
    EXPECT_GT(sum.reads, 2 * runs);
    EXPECT_GT(sum.stale, runs);
    EXPECT_GT(sum.exported_reads, runs / 10);
    EXPECT_GT(sum.exported, runs / 2);
    EXPECT_GT(sum.reclaimed, runs / 50);
    EXPECT_GT(sum.evicted, 4 * runs);
    EXPECT_GT(sum.moved, runs / 2);
    EXPECT_GT(sum.copied, runs / 2);
    EXPECT_GT(sum.drained, runs / 10);
    EXPECT_GT(sum.on_disk, runs / 10);
  }
}

} // namespace
} // namespace hicache
