// The calls of hicache.h, with a node in a process of its own.

#include "tests/c_abi/c_abi_support.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <thread>

namespace hicache::test {
namespace {

class CAbiTest : public ::testing::Test {
protected:
  std::string config(const std::string& more = {}) { return configuration(folder_.socket(), more); }

  socket_folder folder_;
  node_process node_{folder_.socket()};
};

TEST_F(CAbiTest, WhatOneClientStoresInPartsAnotherOneReadsInOtherParts) {
  auto writer = c_client{config()};
  auto bytes = bytes_of(1, 5000);
  const auto parts = std::array{hc_part{bytes.data(), 1}, hc_part{nullptr, 0},
                                hc_part{bytes.data() + 1, 4000}, hc_part{bytes.data() + 4001, 999}};
  auto other = bytes_of(2);
  const auto whole = hc_part{other.data(), other.size()};
  const auto pages = std::array{hc_page{key_of(1), {}, parts.data(), parts.size(), {}},
                                hc_page{key_of(2), key_of(1), &whole, 1, {}}};
  auto ticket = hc_ticket{};
  const auto how = call_for();
  ASSERT_EQ(hc_put(writer.get(), pages.data(), pages.size(), &how, &ticket, nullptr), HC_OK);
  const auto put = writer.wait(ticket);
  EXPECT_EQ(put.pages, 2u);
  EXPECT_EQ(put.error.code, HC_OK);

  auto reader = c_client{config()};
  auto first = page_bytes(5000);
  auto second = page_bytes(page_size);
  const auto halves = std::array{hc_part{first.data(), 2500}, hc_part{first.data() + 2500, 2500}};
  const auto room = hc_part{second.data(), second.size()};
  const auto wanted
    = std::array{hc_page{key_of(1), {}, halves.data(), halves.size(), {}},
                 hc_page{key_of(9), {}, &room, 1, {}}, hc_page{key_of(2), {}, &room, 1, {}}};
  auto codes = std::array<int32_t, 3>{-1, -1, -1};
  auto there = call_for();
  there.codes = codes.data();
  auto mark = 0;
  there.user = &mark;
  ASSERT_EQ(hc_get(reader.get(), wanted.data(), wanted.size(), &there, &ticket, nullptr), HC_OK);
  const auto got = reader.wait(ticket);
  EXPECT_EQ(codes, (std::array<int32_t, 3>{HC_OK, HC_NOT_FOUND, HC_OK}));
  EXPECT_EQ(got.pages, 2u);
  EXPECT_EQ(got.prefix, 1u);
  EXPECT_EQ(got.user, &mark);
  EXPECT_EQ(got.ticket, ticket);
  EXPECT_EQ(got.error.code, HC_OK) << "a miss is no failure";
  EXPECT_EQ(first, bytes);
  EXPECT_EQ(second, other);
}

TEST_F(CAbiTest, ALookUpTellsThePrefixThatIsThere) {
  auto one = c_client{config()};
  for (const auto number : {1, 2, 4})
    ASSERT_EQ(one.put(number), HC_OK);
  auto codes = std::vector<int32_t>{};
  const auto seen = one.keys(hc_lookup, keys_of({1, 2, 3, 4}), &codes);
  EXPECT_EQ(codes, (std::vector<int32_t>{HC_OK, HC_OK, HC_NOT_FOUND, HC_OK}));
  EXPECT_EQ(seen.pages, 3u);
  EXPECT_EQ(seen.prefix, 2u);
  EXPECT_EQ(seen.error.code, HC_OK);
  EXPECT_EQ(one.keys(hc_prefetch, keys_of({1, 3, 4}), &codes, HC_CHAIN).prefix, 1u);
  EXPECT_EQ(one.node().leases, 0u);
}

TEST_F(CAbiTest, WhatExistsIsNotWrittenAgain) {
  auto one = c_client{config()};
  ASSERT_EQ(one.put(1), HC_OK);
  EXPECT_EQ(one.put(1, bytes_of(2)), HC_OK);
  EXPECT_EQ(one.node().pages_written, 1u);
  EXPECT_EQ(one.get(1), HC_OK) << "with the bytes that came first";
}

TEST_F(CAbiTest, RemovedPagesAreMisses) {
  auto one = c_client{config()};
  ASSERT_EQ(one.put(1), HC_OK);
  const auto gone = one.keys(hc_remove, keys_of({1, 2}));
  EXPECT_EQ(gone.pages, 2u);
  EXPECT_EQ(one.get(1), HC_NOT_FOUND);
  EXPECT_EQ(one.put(1, bytes_of(1)), HC_OK);
  EXPECT_EQ(one.node().pages_written, 2u);
}

TEST_F(CAbiTest, AClearedNamespaceIsEmpty) {
  auto one = c_client{config()};
  ASSERT_EQ(one.put(1), HC_OK);
  auto pages = uint64_t{0};
  auto error = hc_error{};
  ASSERT_EQ(hc_clear(one.get(), 1, patience_ms, &pages, &error), HC_OK) << error.text;
  EXPECT_EQ(pages, 1u);
  EXPECT_EQ(one.get(1), HC_OK) << "it leaves first, and nothing takes its place";
  ASSERT_EQ(hc_clear(one.get(), 0, patience_ms, &pages, &error), HC_OK) << error.text;
  EXPECT_EQ(pages, 1u);
  EXPECT_EQ(one.get(1), HC_NOT_FOUND);
  EXPECT_EQ(hc_clear(one.get(), 0, patience_ms, nullptr, &error), HC_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, PartsOfAnotherLengthAreRefusedPageByPage) {
  auto one = c_client{config()};
  ASSERT_EQ(one.put(1), HC_OK);
  auto bytes = page_bytes(page_size - 1);
  EXPECT_EQ(one.get(1, bytes), HC_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, NamespacesDoNotMix) {
  auto one = c_client{config()};
  auto other = c_client{R"({"socket": ")" + folder_.socket() + R"(", "namespace": "other"})"};
  ASSERT_EQ(one.put(1), HC_OK);
  EXPECT_EQ(other.get(1), HC_NOT_FOUND);
  auto names = std::array<hc_key, 3>{};
  const auto lengths = std::array<size_t, 2>{4, 4};
  EXPECT_EQ(hc_names(one.get(), "page", lengths.data(), 1, names.data()), HC_OK);
  EXPECT_EQ(hc_names(other.get(), "nonepage", lengths.data(), 2, &names[1]), HC_OK);
  std::swap(names[1], names[2]);
  EXPECT_NE(std::memcmp(&names[0], &names[1], sizeof(hc_key)), 0);
  EXPECT_EQ(hc_names(one.get(), "nonepage", lengths.data(), 2, &names[1]), HC_OK);
  EXPECT_EQ(std::memcmp(&names[0], &names[2], sizeof(hc_key)), 0);
  EXPECT_EQ(hc_names(one.get(), nullptr, nullptr, 0, nullptr), HC_OK);
}

TEST_F(CAbiTest, PinnedPagesStayThereAndAreReadWithoutTheNode) {
  auto one = c_client{config()};
  ASSERT_EQ(one.put(1), HC_OK);
  ASSERT_EQ(one.put(2), HC_OK);
  auto codes = std::vector<int32_t>{};
  const auto pinned = one.keys(hc_pin, keys_of({1, 2, 3}), &codes, HC_CHAIN);
  ASSERT_NE(pinned.lease, nullptr);
  EXPECT_EQ(codes, (std::vector<int32_t>{HC_OK, HC_OK, HC_NOT_FOUND}));
  EXPECT_EQ(pinned.prefix, 2u);
  EXPECT_EQ(one.node().leases, 1u);
  auto pages = std::array<hc_leased_page, 3>{};
  auto left = uint32_t{0};
  ASSERT_EQ(hc_lease_pages(pinned.lease, 0, 3, pages.data(), &left), HC_OK);
  EXPECT_EQ(pages[0].bytes, page_size);
  EXPECT_EQ(pages[0].data, nullptr) << "it was not verified";
  EXPECT_EQ(pages[2].bytes, 0u);
  EXPECT_GT(left, 0u);
  EXPECT_EQ(hc_lease_pages(pinned.lease, 2, 2, pages.data(), nullptr), HC_INVALID_ARGUMENT);
  // Pages that are removed, too.
  one.keys(hc_remove, keys_of({1, 2}));
  node_.kill();
  auto bytes = page_bytes(page_size);
  EXPECT_EQ(one.get(1, bytes, patience_ms, pinned.lease), HC_OK);
  EXPECT_EQ(bytes, bytes_of(1));
  EXPECT_EQ(one.get(3, bytes, patience_ms, pinned.lease), HC_NOT_FOUND);
  EXPECT_EQ(one.counters().leases, 1u);
  EXPECT_EQ(hc_unpin(pinned.lease), HC_OK);
  EXPECT_EQ(one.counters().leases, 0u);
}

TEST_F(CAbiTest, PagesAreReadInPlace) {
  auto one = c_client{config()};
  ASSERT_EQ(one.put(1), HC_OK);
  const auto pinned = one.keys(hc_pin, keys_of({1}), nullptr, HC_IN_PLACE);
  ASSERT_NE(pinned.lease, nullptr);
  auto page = hc_leased_page{};
  ASSERT_EQ(hc_lease_pages(pinned.lease, 0, 1, &page, nullptr), HC_OK);
  ASSERT_EQ(page.bytes, page_size);
  EXPECT_EQ(std::memcmp(page.data, bytes_of(1).data(), page_size), 0);
  EXPECT_EQ(hc_unpin(pinned.lease), HC_OK);
  EXPECT_EQ(one.node().leases, 0u);
  EXPECT_EQ(one.keys(hc_pin, keys_of({7})).lease, nullptr);
}

TEST_F(CAbiTest, LeasesEndWithTheirClient) {
  auto one = c_client{config()};
  auto other = c_client{config()};
  ASSERT_EQ(one.put(1), HC_OK);
  ASSERT_NE(one.keys(hc_pin, keys_of({1})).lease, nullptr);
  EXPECT_EQ(other.node().leases, 1u);
  one.close();
  while (other.node().leases > 0)
    std::this_thread::yield();
}

TEST_F(CAbiTest, TheEventIsReadableExactlyWhileCompletionsWait) {
  auto one = c_client{config()};
  auto event = pollfd{hc_event_fd(one.get()), POLLIN, 0};
  const auto is_readable = [&event] { return ::poll(&event, 1, 0) == 1; };
  const auto keys = keys_of({1});
  const auto how = call_for();
  auto tickets = std::array<hc_ticket, 3>{};
  EXPECT_FALSE(is_readable());
  for (auto& ticket : tickets)
    ASSERT_EQ(hc_lookup(one.get(), keys.data(), 1, &how, &ticket, nullptr), HC_OK);
  EXPECT_EQ(::poll(&event, 1, static_cast<int>(patience_ms)), 1);
  while (one.counters().completions < 3)
    std::this_thread::yield();
  one.wait(tickets[1]);
  EXPECT_TRUE(is_readable());
  auto done = std::array<hc_completion, 4>{};
  auto count = size_t{9};
  ASSERT_EQ(hc_poll(one.get(), done.data(), 1, 0, &count), HC_OK);
  EXPECT_EQ(count, 1u);
  EXPECT_TRUE(is_readable());
  ASSERT_EQ(hc_poll(one.get(), done.data(), done.size(), patience_ms, &count), HC_OK);
  EXPECT_EQ(count, 1u);
  EXPECT_FALSE(is_readable());
  ASSERT_EQ(hc_poll(one.get(), done.data(), done.size(), 1, &count), HC_OK);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(hc_wait(one.get(), tickets[1], 1, done.data()), HC_UNKNOWN_ID);
}

TEST_F(CAbiTest, ManyThreadsSubmitAndPollAtOnce) {
  constexpr auto threads = uint64_t{8};
  constexpr auto pages = uint64_t{50};
  auto one = c_client{config(R"(, "threads": 3, "calls": 100)")};
  auto writers = std::vector<std::thread>{};
  auto wrong = std::atomic<int>{0};
  for (auto t = uint64_t{0}; t < threads; ++t)
    writers.emplace_back([&, t] {
      for (auto i = uint64_t{0}; i < pages; ++i)
        if (one.put(1000 * t + i) != HC_OK || one.get(1000 * t + i) != HC_OK)
          ++wrong;
    });
  for (auto& thread : writers)
    thread.join();
  EXPECT_EQ(wrong, 0);
  const auto seen = one.counters();
  EXPECT_EQ(seen.pages_put, threads * pages);
  EXPECT_EQ(seen.pages_got, threads * pages);
  EXPECT_EQ(seen.bytes_got, threads * pages * page_size);
  EXPECT_EQ(seen.open_calls + seen.completions, 0u);
  EXPECT_EQ(seen.connected, 1u);
}

TEST_F(CAbiTest, NoMoreCallsAreOpenThanTheConfigurationAllows) {
  auto one = c_client{config(R"(, "calls": 2)")};
  const auto keys = keys_of({1});
  const auto how = call_for();
  auto ticket = hc_ticket{};
  auto error = hc_error{};
  for (auto i = 0; i < 2; ++i)
    ASSERT_EQ(hc_lookup(one.get(), keys.data(), 1, &how, &ticket, &error), HC_OK);
  EXPECT_EQ(hc_lookup(one.get(), keys.data(), 1, &how, &ticket, &error), HC_LIMIT_REACHED);
  EXPECT_NE(std::string_view{error.text}.find("2 calls"), std::string_view::npos) << error.text;
  one.wait(ticket);
  EXPECT_EQ(hc_lookup(one.get(), keys.data(), 1, &how, &ticket, &error), HC_OK);
  one.wait(ticket);
}

TEST_F(CAbiTest, BadArgumentsAreSentencesAndNothingBegins) {
  auto one = c_client{config()};
  auto byte = uint8_t{1};
  const auto part = hc_part{&byte, 1};
  const auto page = hc_page{key_of(1), {}, &part, 1, {}};
  const auto key = key_of(1);
  const auto how = call_for();
  auto ticket = hc_ticket{0};
  auto error = hc_error{};
  const auto put = [&](const hc_page* pages, size_t count, const hc_call* call, const char* word) {
    const auto code = hc_put(one.get(), pages, count, call, &ticket, &error);
    EXPECT_EQ(error.code, code);
    EXPECT_NE(std::string_view{error.text}.find(word), std::string_view::npos) << error.text;
    return code;
  };
  EXPECT_EQ(hc_put(nullptr, &page, 1, &how, &ticket, &error), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_put(one.get(), &page, 1, &how, nullptr, &error), HC_INVALID_ARGUMENT);
  EXPECT_EQ(put(nullptr, 1, &how, "NULL"), HC_INVALID_ARGUMENT);
  EXPECT_EQ(put(nullptr, 0, &how, "count"), HC_INVALID_ARGUMENT);
  EXPECT_EQ(put(&page, 1, nullptr, "call: NULL"), HC_INVALID_ARGUMENT);
  auto other = how;
  other.timeout_ms = 0;
  EXPECT_EQ(put(&page, 1, &other, "timeout_ms"), HC_INVALID_ARGUMENT);
  other = how;
  other.flags = HC_CHAIN;
  EXPECT_EQ(put(&page, 1, &other, "flags"), HC_UNSUPPORTED);
  other = how;
  other.size = sizeof(other) - 1;
  EXPECT_EQ(put(&page, 1, &other, "sizeof"), HC_INVALID_ARGUMENT);
  const auto empty = hc_page{key_of(1), {}, nullptr, 0, {}};
  EXPECT_EQ(put(&empty, 1, &how, "has no bytes"), HC_INVALID_ARGUMENT);
  const auto no_parts = hc_page{key_of(1), {}, nullptr, 2, {}};
  EXPECT_EQ(put(&no_parts, 1, &how, "parts: NULL"), HC_INVALID_ARGUMENT);
  const auto nowhere = hc_part{nullptr, 5};
  const auto no_data = hc_page{key_of(1), {}, &nowhere, 1, {}};
  EXPECT_EQ(put(&no_data, 1, &how, "data: NULL"), HC_INVALID_ARGUMENT);
  const auto endless = hc_part{&byte, SIZE_MAX};
  const auto too_long = hc_page{key_of(1), {}, &endless, 1, {}};
  EXPECT_EQ(put(&too_long, 1, &how, "bytes"), HC_INVALID_ARGUMENT);
  const auto newer = hc_page{key_of(1), {}, &part, 1, {0, 1}};
  EXPECT_EQ(put(&newer, 1, &how, "reserved"), HC_UNSUPPORTED);
  EXPECT_EQ(hc_lookup(one.get(), &key, HC_MAX_PAGES + 1, &how, &ticket, &error),
            HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_lookup(one.get(), nullptr, 0, &how, &ticket, nullptr), HC_INVALID_ARGUMENT);
  const auto length = size_t{1};
  auto name = hc_key{};
  EXPECT_EQ(hc_names(one.get(), nullptr, &length, 1, &name), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_names(one.get(), "x", nullptr, 1, &name), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_names(one.get(), "x", &length, 1, nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_unpin(nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_lease_pages(nullptr, 0, 0, nullptr, nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_close(nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_event_fd(nullptr), -1);
  EXPECT_EQ(hc_poll(one.get(), nullptr, 1, 0, nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_wait(one.get(), 77, 0, nullptr), HC_INVALID_ARGUMENT);
  auto done = hc_completion{};
  EXPECT_EQ(hc_wait(one.get(), 77, 0, &done), HC_UNKNOWN_ID);
  EXPECT_EQ(hc_stats(one.get(), nullptr), HC_INVALID_ARGUMENT);
  auto small = hc_counters{};
  EXPECT_EQ(hc_stats(one.get(), &small), HC_INVALID_ARGUMENT);
  EXPECT_EQ(ticket, 0u);
  EXPECT_EQ(one.counters().open_calls, 0u);
}

TEST_F(CAbiTest, ProgramsOfALaterVersionWorkIfTheyAskForNothingNew) {
  struct {
    hc_call call;
    uint64_t more;
  } later{call_for(), 0};
  later.call.size = sizeof(later);
  auto one = c_client{config()};
  const auto keys = keys_of({1});
  auto ticket = hc_ticket{};
  ASSERT_EQ(hc_lookup(one.get(), keys.data(), 1, &later.call, &ticket, nullptr), HC_OK);
  one.wait(ticket);
  later.more = 1;
  EXPECT_EQ(hc_lookup(one.get(), keys.data(), 1, &later.call, &ticket, nullptr), HC_UNSUPPORTED);
  struct {
    hc_counters counters;
    uint64_t more;
  } asked{{}, 7};
  asked.counters.size = sizeof(asked);
  ASSERT_EQ(hc_stats(one.get(), &asked.counters), HC_OK);
  EXPECT_EQ(asked.counters.size, sizeof(asked));
  EXPECT_EQ(asked.more, 0u);
}

TEST(CAbiCodes, HaveNamesAndSentences) {
  EXPECT_STREQ(hc_code_name(HC_NOT_FOUND), "not_found");
  EXPECT_STREQ(hc_code_name(HC_FORKED), "forked");
  EXPECT_STREQ(hc_code_name(-5), "unknown");
  EXPECT_STRNE(hc_code_sentence(HC_CORRUPT_PAGE), "");
  EXPECT_STRNE(hc_code_sentence(123456), "");
  EXPECT_EQ(hc_abi_version(), uint32_t{HC_ABI_VERSION});
  EXPECT_STRNE(hc_version(), "");
}

} // namespace
} // namespace hicache::test
