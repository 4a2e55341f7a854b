// What only S3 does, on a moto server.

#include "backends/headed_object.hpp"
#include "backends/s3/s3_backend.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/s3/s3_server.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/backends/told_keys.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>

namespace hicache::test {
namespace {

constexpr auto page_size = size_t{10000};

/// A store on a server of the test's own.
class S3BackendTest : public testing::Test {
protected:
  s3_options options() { return options_for(server_.endpoint()); }

  blocking_store& open(s3_options options) {
    auto store = make_s3_backend(std::move(options), clock_);
    EXPECT_TRUE(store) << store.error().detail;
    return *stores_.emplace_back(std::move(store.value()));
  }

  static void put_page(blocking_store& store, uint64_t number, size_t size = page_size) {
    const auto stored = put(store, key_of(number), bytes_of(number, size));
    EXPECT_TRUE(stored) << to_string(stored.error());
  }

  static void expect_page(blocking_store& store, uint64_t number, size_t size = page_size) {
    const auto found = take(store, key_of(number), size);
    ASSERT_TRUE(found) << to_string(found.error());
    EXPECT_TRUE(*found == bytes_of(number, size));
  }

  std::string refusal_of(s3_options options) {
    auto store = make_s3_backend(std::move(options), clock_);
    return store ? "" : store.error().detail;
  }

  time_point soon() { return clock_.now() + std::chrono::seconds{30}; }

  monotonic_clock clock_;
  s3_server server_;
  std::vector<std::unique_ptr<blocking_store>> stores_;
};

TEST_F(S3BackendTest, InstancesShareABucketAndPrefixesSeparateThem) {
  auto& first = open(options());
  auto& second = open(options());
  auto apart = options();
  apart.key_prefix = "apart/";
  auto& third = open(apart);
  put_page(first, 1);
  expect_page(second, 1);
  EXPECT_FALSE(has(third, key_of(1)));
  EXPECT_TRUE(drop(second, key_of(1)));
  EXPECT_FALSE(has(first, key_of(1)));
}

TEST_F(S3BackendTest, WhatIsThereIsNotWrittenAgainAndBelongsToItsWriter) {
  auto bounded = options();
  bounded.part_bytes = s3_part_min;
  bounded.max_bytes = 10 * s3_part_min;
  auto& first = open(bounded);
  auto& second = open(bounded);
  for (const auto size : {page_size, size_t{2 << 20}, size_t{s3_part_min}}) {
    put_page(first, size, size);
    ASSERT_TRUE(put(second, key_of(size), bytes_of(99, size)));
    expect_page(second, size, size);
    ASSERT_TRUE(put(first, key_of(size), bytes_of(99, size)));
    expect_page(first, size, size);
  }
  EXPECT_EQ(first.health().objects, 3u);
  EXPECT_EQ(second.health().objects, 0u);
}

TEST_F(S3BackendTest, TellsWhatItRemovesToStayWithinItsBound) {
  auto bounded = options();
  bounded.max_bytes = 2 * (page_size + page_header_bytes);
  auto& store = open(bounded);
  auto told = told_keys{};
  EXPECT_FALSE(told.watch(store)) << "others remove objects, too";
  for (const auto number : {1u, 2u, 3u, 4u})
    put_page(store, number);
  EXPECT_EQ(told.list, (std::vector{key_of(1), key_of(2)}));
}

TEST_F(S3BackendTest, LongObjectsGoInPartsAndComeBackInRanges) {
  auto in_parts = options();
  in_parts.part_bytes = s3_part_min;
  auto& store = open(in_parts);
  auto& whole = open(options());
  // Of two parts and a bit; exactly two with the header; one of them whole.
  for (const auto size : {2 * s3_part_min + 1, 2 * s3_part_min - page_header_bytes,
                          s3_part_min - page_header_bytes}) {
    put_page(store, size, size);
    expect_page(store, size, size);
    expect_page(whole, size, size);
  }
  EXPECT_EQ(server_.list("?uploads").find("<Upload>"), std::string::npos);
}

TEST_F(S3BackendTest, ObjectsTellTheirLengths) {
  auto in_parts = options();
  in_parts.part_bytes = s3_part_min;
  auto& store = open(in_parts);
  for (const auto size : {size_t{0}, page_size, size_t{s3_part_min}, size_t{s3_part_min + 100}}) {
    put_page(store, size, size);
    auto room = page_bytes(3 * s3_part_min);
    const auto read = [&](std::span<std::byte> parts, part_lengths rule) {
      return store.read(std::vector{page_read{key_of(size), {parts}}}, rule, soon()).at(0);
    };
    EXPECT_EQ(read(room, part_lengths::bounded), size);
    EXPECT_TRUE(std::equal(room.begin(), room.begin() + static_cast<ptrdiff_t>(size),
                           bytes_of(size, size).begin()));
    EXPECT_EQ(code_of(read(room, part_lengths::exact)), ec::invalid_argument);
    if (size > 0) {
      EXPECT_EQ(code_of(read(std::span{room}.first(size - 1), part_lengths::bounded)),
                ec::invalid_argument);
    }
  }
}

TEST_F(S3BackendTest, ObjectsThatSomebodyChangedAreRemoved) {
  auto& store = open(options());
  put_page(store, 1);
  const auto name = "hicache/" + to_string(key_of(1));
  const auto good = server_.object(name);
  ASSERT_EQ(good.size(), page_header_bytes + page_size);
  auto flipped = good;
  flipped.back() ^= 1;
  for (const auto& bad : {flipped, good.substr(0, good.size() - 1), good + "x", good.substr(0, 40),
                          std::string{}, std::string(good.size(), 'x')}) {
    server_.store(name, bad);
    EXPECT_EQ(code_of(take(store, key_of(1), page_size)), ec::corrupt_page) << bad.size();
    EXPECT_FALSE(has(store, key_of(1)));
  }
  auto in_parts = options();
  in_parts.part_bytes = s3_part_min;
  auto& ranges = open(in_parts);
  // Too short for a header, and without a byte that a range could begin with.
  for (const auto& bad : {good.substr(0, 40), std::string{}}) {
    server_.store(name, bad);
    EXPECT_EQ(code_of(take(ranges, key_of(1), s3_part_min)), ec::corrupt_page) << bad.size();
    EXPECT_FALSE(has(store, key_of(1)));
  }
  server_.store(name, good);
  expect_page(store, 1);
  auto other = options();
  other.fingerprint = 8;
  EXPECT_EQ(code_of(take(open(other), key_of(1), page_size)), ec::corrupt_page);
}

TEST_F(S3BackendTest, WhatDoesNotVerifyStaysWhereItIsToBeKept) {
  auto& writer = open(options());
  put_page(writer, 1);
  auto keeping = options();
  keeping.fingerprint = 8;
  keeping.keeps_broken = true;
  auto& store = open(keeping);
  server_.store("hicache/" + to_string(key_of(2)), "not ours");
  for (const auto number : {1u, 2u})
    EXPECT_EQ(code_of(take(store, key_of(number), page_size)), ec::corrupt_page);
  EXPECT_TRUE(has(store, key_of(2)));
  expect_page(writer, 1);
}

TEST_F(S3BackendTest, WithoutANamespaceObjectsOfAnyAreRead) {
  auto theirs = options();
  theirs.fingerprint = 8;
  put_page(open(options()), 1);
  put_page(open(theirs), 2);
  auto any = options();
  any.fingerprint.reset();
  auto& store = open(any);
  for (const auto number : {1u, 2u})
    expect_page(store, number);
}

TEST_F(S3BackendTest, AServerThatRestartsIsUsedAgain) {
  auto& store = open(options());
  put_page(store, 1);
  server_.kill();
  EXPECT_FALSE(has(store, key_of(1)));
  EXPECT_EQ(code_of(put(store, key_of(2), bytes_of(2, page_size))), ec::peer_unreachable);
  EXPECT_FALSE(store.health().ok);
  server_.start();
  EXPECT_NE(store.health().detail.find("there is no such bucket"), std::string::npos);
  server_.make_bucket();
  put_page(store, 2);
  expect_page(store, 2);
  EXPECT_TRUE(store.health().ok);
}

TEST_F(S3BackendTest, CallsToAServerThatHangsEndAtTheirDeadlines) {
  auto& store = open(options());
  put_page(store, 1);
  server_.suspend();
  auto bytes = page_bytes(page_size);
  const auto deadline = [this] { return clock_.now() + std::chrono::milliseconds{200}; };
  EXPECT_EQ(code_of(store.get(std::vector{page_read{key_of(1), {bytes}}}, deadline()).at(0)),
            ec::deadline_exceeded);
  EXPECT_EQ(code_of(store.set(std::vector{page_write{key_of(2), {}, {bytes}}}, deadline()).at(0)),
            ec::deadline_exceeded);
  EXPECT_EQ(code_of(store.remove(std::vector{key_of(3)}, deadline()).at(0)), ec::deadline_exceeded);
  server_.resume();
  expect_page(store, 1);
}

TEST_F(S3BackendTest, WhatCannotBeUsedIsNamed) {
  auto absent = options();
  absent.bucket.bucket = "absent";
  EXPECT_EQ(refusal_of(absent),
            "S3, bucket absent at " + server_.endpoint() + ": there is no such bucket");
  for (const auto* const endpoint : {"ftp://host", "http://", "http://host/path", "not a url",
                                     "http://user@host", "http://host?query"}) {
    auto wrong = options();
    wrong.bucket.endpoint = endpoint;
    EXPECT_EQ(refusal_of(wrong), std::string{"endpoint '"} + endpoint
                                   + "': expected http://HOST[:PORT] or https://HOST[:PORT]");
  }
  auto wrong = options();
  wrong.bucket.bucket = "Pages";
  EXPECT_EQ(refusal_of(wrong),
            "bucket 'Pages': expected 3 to 63 lower-case letters, digits, hyphens and dots");
  wrong = options();
  wrong.key_prefix = "a b";
  EXPECT_EQ(refusal_of(wrong), "key_prefix 'a b': expected at most 128 letters, digits and -._~/, "
                               "without / at the start");
  wrong = options();
  wrong.part_bytes = s3_part_min - (1 << 20);
  EXPECT_EQ(refusal_of(wrong), "part_bytes is 4.0 MiB; expected 5.0 MiB to 1.0 GiB");
  wrong = options();
  wrong.bucket.credentials.file = "/nowhere";
  EXPECT_EQ(refusal_of(wrong),
            "cannot read credentials_file '/nowhere': No such file or directory");
  wrong = options();
  server_.kill();
  EXPECT_NE(refusal_of(wrong).find("bucket pages at " + server_.endpoint()), std::string::npos);
}

TEST_F(S3BackendTest, CredentialsComeFromAFile) {
  const auto folder = temporary_folder{};
  auto named = options();
  named.bucket.credentials = {folder.path() + "/credentials", "kv"};
  std::ofstream{named.bucket.credentials.file}
    << "[kv]\naws_access_key_id = A\naws_secret_access_key = S\n";
  put_page(open(named), 1);
}

} // namespace
} // namespace hicache::test
