// Several members of the cluster store: copies on other hosts, damage, draining.

#include "base/limits.hpp"
#include "messages/object_place.hpp"
#include "messages/page_header.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/runtime/cluster_support.hpp"
#include "transport/page_channel.hpp"

#include <array>
#include <atomic>
#include <fstream>
#include <future>
#include <map>
#include <set>
#include <thread>

namespace hicache::test {
namespace {

constexpr auto page_size = size_t{4096};
constexpr auto fingerprint = uint64_t{7};

class ClusterMemberTest : public testing::Test {
protected:
  std::unique_ptr<local_member> join(const std::string& host, size_t pages, uint32_t replicas = 1,
                                     read_path path = read_path::automatic) {
    auto options = cluster_member_options{};
    options.segment_bytes = pages * slot_bytes_for(page_size);
    options.object_bytes = page_size;
    options.fingerprint = fingerprint;
    options.replicas = replicas;
    options.host = host;
    options.path = path;
    return std::make_unique<local_member>(index_, std::move(options));
  }

  template <class Answer, class... Args>
  Answer ask_index(Args... args) {
    auto self = caf::scoped_actor{index_.system()};
    auto answer = Answer{};
    self->request(index_.shard(), std::chrono::seconds{10}, args...)
      .receive([&](Answer& x) { answer = std::move(x); },
               [](const caf::error& err) { FAIL() << to_string(from_caf(err)); });
    return answer;
  }

  replica_list replicas_of(uint64_t number) {
    return ask_index<placements>(atom::locate_v, key_batch{{key_of(number)}}).replicas.front();
  }

  std::map<uint64_t, std::string> hosts() {
    auto found = std::map<uint64_t, std::string>{};
    for (const auto& member : ask_index<member_list>(atom::members_v, member_query{}).members)
      found[member.member] = member.host;
    return found;
  }

  /// How often the index has been asked where pages are.
  uint64_t lookups() { return ask_index<index_status>(atom::status_v, status_query{}).lookups; }

  static time_point soon() { return std::chrono::steady_clock::now() + std::chrono::seconds{20}; }

  static result<void> put(blocking_store& store, uint64_t number) {
    const auto bytes = bytes_of(number, page_size);
    return store.set(std::vector{page_write{key_of(number), {}, {bytes}}}, soon()).at(0);
  }

  static result<page_bytes> take(blocking_store& store, uint64_t number, store_place place = {}) {
    auto bytes = page_bytes(page_size);
    auto answer
      = store.get(std::vector{page_read{key_of(number), {bytes}, std::move(place)}}, soon()).at(0);
    if (!answer)
      return tl::unexpected{answer.error()};
    return bytes;
  }

  local_index index_;
};

/// Segments that are mapped in this process, by their owners and by readers.
size_t mapped_segments() {
  auto maps = std::ifstream{"/proc/self/maps"};
  auto count = size_t{0};
  for (auto line = std::string{}; std::getline(maps, line);)
    count += line.find("memfd:hicache-segment") != std::string::npos ? 1 : 0;
  return count;
}

TEST_F(ClusterMemberTest, AnIndexThatIsNotThereIsTriedForTheTimeOfTheSetting) {
  auto settings = system_config{};
  auto system = caf::actor_system{settings};
  const auto clock = monotonic_clock{};
  auto options = cluster_member_options{};
  options.index = "unix:/nowhere/index";
  options.index_connect_time = {};
  options.clock = &clock;
  const auto begin = std::chrono::steady_clock::now();
  const auto joined = cluster_member::join(system, std::move(options));
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, ec::peer_unreachable);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, limits::index_connect_time);
}

TEST_F(ClusterMemberTest, AnOwnerThatEndsIsUnmappedByReadersThatReadNothingMore) {
  auto owner = join("a", 8);
  const auto reader = join("b", 8);
  ASSERT_TRUE(put(*(**owner).open(), 1));
  const auto store = (**reader).open();
  ASSERT_TRUE(take(*store, 1));
  ASSERT_EQ(mapped_segments(), 3u) << "two owners and a reader";
  owner.reset();
  const auto end = soon();
  while (mapped_segments() > 1 && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_EQ(mapped_segments(), 1u);
}

TEST_F(ClusterMemberTest, CopiesGoToDifferentHosts) {
  const auto writer = join("a", 8, 3);
  const auto near = join("a", 8);
  const auto others = std::array{join("b", 8), join("b", 8), join("c", 8)};
  const auto store = (**writer).open();
  ASSERT_TRUE(put(*store, 1));
  const auto names = hosts();
  ASSERT_EQ(names.size(), 5u);
  auto found = std::set<std::string>{};
  for (const auto& copy : replicas_of(1))
    found.insert(names.at(copy.member));
  EXPECT_EQ(replicas_of(1).size(), 3u);
  EXPECT_EQ(found, (std::set<std::string>{"a", "b", "c"}));
}

TEST_F(ClusterMemberTest, TheCopiesOfALargeBatchGoToOneMember) {
  constexpr auto count
    = uint64_t{2600}; // Three parts, of which each is copied in several requests.
  const auto writer = join("a", count, 2);
  const auto others = std::array{join("b", count), join("c", count), join("d", count)};
  const auto bytes = bytes_of(1, page_size);
  auto writes = std::vector<page_write>{};
  for (auto number = uint64_t{0}; number < count; ++number)
    writes.push_back({key_of(number), {}, {bytes}});
  for (const auto& end : (**writer).open()->set(writes, soon()))
    ASSERT_TRUE(end);
  auto holders = std::set<uint64_t>{};
  for (auto number = uint64_t{0}; number < count; ++number) {
    const auto replicas = replicas_of(number);
    ASSERT_EQ(replicas.size(), 2u) << number;
    for (const auto& copy : replicas)
      holders.insert(copy.member);
  }
  EXPECT_EQ(holders.size(), 2u);
}

TEST_F(ClusterMemberTest, TooFewHostsCostCopiesOnly) {
  const auto writer = join("a", 8, 3);
  const auto other = join("b", 8);
  const auto store = (**writer).open();
  EXPECT_TRUE(put(*store, 1));
  EXPECT_EQ(replicas_of(1).size(), 2u);
}

TEST_F(ClusterMemberTest, ACopyServesWhenTheWriterIsGone) {
  for (const auto path : {read_path::automatic, read_path::remote}) {
    auto writer = join("a", 8, 2, path);
    const auto other = join("b", 8, 1, path);
    const auto reader = join("c", 1, 1, path);
    const auto number = path == read_path::remote ? 1u : 2u;
    ASSERT_TRUE(put(*(**writer).open(), number));
    writer.reset();
    const auto store = (**reader).open();
    EXPECT_EQ(take(*store, number), bytes_of(number, page_size));
  }
}

TEST_F(ClusterMemberTest, AReaderFindsThePageWithWhoeverHasIt) {
  const auto first = join("a", 8, 1, read_path::remote);
  const auto second = join("b", 8, 1, read_path::remote);
  const auto reader = join("c", 1, 1, read_path::remote);
  ASSERT_TRUE(put(*(**first).open(), 1));
  ASSERT_TRUE(put(*(**second).open(), 2));
  const auto store = (**reader).open();
  EXPECT_EQ(take(*store, 1), bytes_of(1, page_size));
  EXPECT_EQ(take(*store, 2), bytes_of(2, page_size));
  EXPECT_EQ((**first).sent_bytes(), page_size);
  EXPECT_EQ((**second).sent_bytes(), page_size);
}

TEST_F(ClusterMemberTest, AStrangerGetsNoByteThatIsNotOfThePageItNames) {
  const auto owner = join("a", 8);
  ASSERT_TRUE(put(*(**owner).open(), 1));
  ASSERT_TRUE(put(*(**owner).open(), 2));
  const auto info = ask_index<member_list>(atom::members_v, member_query{}).members.at(0);
  const auto page = replicas_of(1).at(0);
  const auto object = *object_offset(info, page.offset);
  const auto client = page_client::create({});
  ASSERT_TRUE(client) << to_string(client.error());
  const auto is_sent = [&](const range_claim& claim, uint64_t offset, size_t length) {
    auto bytes = page_bytes(length);
    const auto target = std::array{std::span{bytes}};
    const auto place = std::array{range_place{0, page.offset, offset, claim}};
    const auto answers
      = (*client)->read({{info.page_address}, {remote_range{place, target, true}}}, soon());
    EXPECT_TRUE(answers.at(0)) << to_string(answers.at(0).error());
    return answers.at(0) && !answers.at(0)->is_gone;
  };
  EXPECT_TRUE(is_sent({key_of(1), page.generation}, object, page_size));
  EXPECT_FALSE(is_sent({key_of(2), page.generation}, object, page_size));
  EXPECT_FALSE(is_sent({key_of(1), page.generation + 1}, object, page_size));
  EXPECT_FALSE(is_sent({key_of(1), page.generation}, object + 1, page_size));
  EXPECT_FALSE(is_sent({key_of(1), page.generation}, object - 1, 1));
  EXPECT_FALSE(is_sent({key_of(1), page.generation}, object + slot_bytes_for(page_size), 1));
  EXPECT_EQ((**owner).sent_bytes(), page_size);
}

TEST_F(ClusterMemberTest, AReadThatHasThePlacesOfALookUpAsksTheIndexNothing) {
  const auto writer = join("a", 8);
  const auto reader = join("b", 1);
  ASSERT_TRUE(put(*(**writer).open(), 1));
  const auto store = (**reader).open();
  const auto places = store->lookup(std::vector{key_of(1), key_of(2)}, soon());
  ASSERT_TRUE(places[0]);
  EXPECT_EQ(code_of(places[1]), ec::not_found);
  const auto asked = lookups();
  EXPECT_EQ(take(*store, 1, *places[0]), bytes_of(1, page_size));
  EXPECT_EQ(lookups(), asked);
  EXPECT_EQ(take(*store, 1), bytes_of(1, page_size));
  EXPECT_EQ(lookups(), asked + 1);
}

TEST_F(ClusterMemberTest, APageThatIsElsewhereByNowIsLookedForAgain) {
  for (const auto path : {read_path::automatic, read_path::remote}) {
    const auto number = path == read_path::remote ? 1u : 2u;
    const auto first = join("a", 8, 1, path);
    const auto second = join("b", 8, 1, path);
    const auto reader = join("c", 1, 1, path);
    const auto store = (**reader).open();
    const auto keys = std::vector{key_of(number)};
    ASSERT_TRUE(put(*(**first).open(), number));
    const auto place = store->lookup(keys, soon())[0];
    ASSERT_TRUE(place);
    ASSERT_TRUE((**first).open()->remove(keys, soon())[0]);
    while (!replicas_of(number).empty()) // The index is told, but not waited for.
      ASSERT_FALSE(HasFailure());
    ASSERT_TRUE(put(*(**second).open(), number));
    EXPECT_EQ(take(*store, number, *place), bytes_of(number, page_size));
    ASSERT_TRUE((**second).open()->remove(keys, soon())[0]);
    EXPECT_EQ(take(*store, number, *place).error().code, ec::not_found);
  }
}

// -- puts ---------------------------------------------------------------------

TEST_F(ClusterMemberTest, APutLooksNothingUp) {
  const auto writer = join("a", 8, 2);
  const auto other = join("b", 8);
  const auto store = (**writer).open();
  const auto asked = lookups();
  ASSERT_TRUE(put(*store, 1));
  ASSERT_TRUE(put(*store, 1)) << "it is here already";
  EXPECT_EQ(lookups(), asked);
}

TEST_F(ClusterMemberTest, APageThatAnotherMemberHasIsNotStoredTwice) {
  const auto first = join("a", 8);
  const auto second = join("b", 8, 2);
  const auto third = join("c", 8);
  ASSERT_TRUE(put(*(**first).open(), 1));
  const auto before = replicas_of(1);
  const auto store = (**second).open();
  const auto bytes = std::vector{bytes_of(1, page_size), bytes_of(2, page_size)};
  auto writes = std::vector<page_write>{};
  for (auto i = size_t{0}; i < bytes.size(); ++i)
    writes.push_back({key_of(i + 1), {}, {bytes[i]}});
  for (const auto& end : store->set(writes, soon()))
    EXPECT_TRUE(end) << to_string(end.error());
  EXPECT_EQ(replicas_of(1), before) << "nor is it copied for another host";
  EXPECT_EQ(replicas_of(2).size(), 2u);
  EXPECT_EQ(store->health().objects, 1u);
  EXPECT_EQ(store->health().bytes, slot_bytes_for(page_size)) << "its slot is free again";
}

TEST_F(ClusterMemberTest, WhereThereIsNoRoomAPutSucceedsOnlyForWhatOthersHave) {
  const auto owner = join("a", 8);
  const auto other = join("b", 0);
  ASSERT_TRUE(put(*(**owner).open(), 1));
  const auto store = (**other).open();
  EXPECT_TRUE(put(*store, 1));
  EXPECT_EQ(code_of(put(*store, 2)), ec::store_full);
  EXPECT_EQ(store->health().counters.errors, 1u);
}

TEST_F(ClusterMemberTest, APutThatTheIndexDoesNotAnswerInTimeFailsAndLeavesNothingBehind) {
  const auto writer = join("a", 8);
  const auto store = (**writer).open();
  index_.ignore_announcements();
  const auto bytes = bytes_of(1, page_size);
  const auto end = store->set(std::vector{page_write{key_of(1), {}, {bytes}}},
                              std::chrono::steady_clock::now() + std::chrono::milliseconds{50});
  EXPECT_EQ(code_of(end.at(0)), ec::deadline_exceeded);
  // The segment answers in order.
  EXPECT_TRUE(store->remove(std::vector{key_of(2)}, soon()).at(0));
  EXPECT_EQ(store->health().objects, 0u);
  EXPECT_EQ(store->health().bytes, 0u);
}

TEST_F(ClusterMemberTest, PagesThatAreOverwrittenWhileTheyAreReadAreNotTakenForDamaged) {
  constexpr auto large = size_t{1} << 20;
  constexpr auto pages = uint64_t{3};
  constexpr auto puts = uint64_t{600};
  auto options = cluster_member_options{};
  options.segment_bytes = pages * slot_bytes_for(large);
  options.object_bytes = large;
  options.fingerprint = fingerprint;
  auto writer = local_member{index_, options};
  options.segment_bytes = 0;
  options.path = read_path::remote;
  auto reader = local_member{index_, options};
  const auto bytes_for
    = [](uint64_t number) { return page_bytes(large, static_cast<std::byte>(number)); };
  auto written = std::atomic<uint64_t>{0};
  auto writing = std::jthread{[&] {
    const auto store = (*writer).open();
    for (auto number = uint64_t{1}; number <= puts; ++number) {
      const auto bytes = bytes_for(number);
      EXPECT_TRUE(store->set(std::vector{page_write{key_of(number), {}, {bytes}}}, soon())[0]);
      written = number;
    }
  }};
  const auto store = (*reader).open();
  auto bytes = page_bytes(large);
  while (written < puts) {
    // The one that goes next.
    const auto number = written < pages ? uint64_t{1} : written + 1 - pages;
    const auto got = store->get(std::vector{page_read{key_of(number), {bytes}}}, soon())[0];
    if (got)
      ASSERT_TRUE(bytes == bytes_for(number));
    else
      ASSERT_EQ(got.error().code, ec::not_found) << to_string(got.error());
  }
}

/// More than one thread copies alone.
TEST_F(ClusterMemberTest, LargeBatchesAreReadWhole) {
  constexpr auto pages = uint64_t{1024};
  const auto writer = join("a", pages, 1);
  auto written = std::vector<page_bytes>{};
  auto writes = std::vector<page_write>{};
  for (auto i = uint64_t{0}; i < pages; ++i)
    written.push_back(bytes_of(i, page_size));
  for (auto i = uint64_t{0}; i < pages; ++i)
    writes.push_back({key_of(i), {}, {written[i]}});
  for (const auto& page : (**writer).open()->set(writes, soon()))
    ASSERT_TRUE(page);
  for (const auto path : {read_path::automatic, read_path::remote}) {
    const auto reader = join("b", 1, 1, path);
    auto got = std::vector<page_bytes>(pages + 1, page_bytes(page_size));
    auto reads = std::vector<page_read>{};
    for (auto i = uint64_t{0}; i <= pages; ++i)
      reads.push_back({key_of(i), {got[i]}});
    const auto outcome = (**reader).open()->get(reads, soon());
    for (auto i = uint64_t{0}; i < pages; ++i)
      ASSERT_TRUE(outcome[i] && got[i] == written[i]) << i;
    EXPECT_EQ(outcome[pages].error().code, ec::not_found);
  }
}

TEST_F(ClusterMemberTest, APageThatManyWantIsOfferedByThoseWhoGotIt) {
  constexpr auto readers = 6;
  const auto owner = join("owner", 8, 1, read_path::remote);
  ASSERT_TRUE(put(*(**owner).open(), 1));
  auto members = std::vector<std::unique_ptr<local_member>>{};
  auto stores = std::vector<std::unique_ptr<blocking_store>>{};
  for (auto i = 0; i < readers; ++i) {
    members.push_back(join("reader" + std::to_string(i), 8, 1, read_path::remote));
    stores.push_back((**members.back()).open());
  }
  auto reading = std::vector<std::future<result<page_bytes>>>{};
  for (auto& store : stores)
    reading.push_back(std::async(std::launch::async, [&store] { return take(*store, 1); }));
  for (auto& one : reading)
    EXPECT_EQ(one.get(), bytes_of(1, page_size));
  EXPECT_GT(replicas_of(1).size(), 1u);
  EXPECT_LE(replicas_of(1).size(), limits::replicas_per_key);
  auto sent = (**owner).sent_bytes();
  EXPECT_LT(sent, readers * page_size);
  for (const auto& member : members)
    sent += (**member).sent_bytes();
  EXPECT_GE(sent, readers * page_size);
}

} // namespace
} // namespace hicache::test
