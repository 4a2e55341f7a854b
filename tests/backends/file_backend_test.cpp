#include "base/limits.hpp"
#include "tests/backends/file_fixture.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <utility>
#include <vector>

namespace hicache::test {
namespace {

namespace fs = std::filesystem;

using testing::HasSubstr;

TEST_F(FileBackendTest, PagesSurviveARestart) {
  {
    const auto store = open();
    for (const auto number : {1u, 2u, 3u})
      ASSERT_TRUE(put(*store, key_of(number), bytes_of(number, size)));
  }
  const auto store = open();
  EXPECT_EQ(store->health().objects, 3u);
  EXPECT_EQ(store->health().bytes, 3 * file_bytes);
  for (const auto number : {1u, 2u, 3u})
    EXPECT_EQ(take(*store, key_of(number), size), bytes_of(number, size));
}

TEST_F(FileBackendTest, ARestartDropsWhatWasStoredFirst) {
  {
    const auto store = open();
    for (const auto number : {4u, 2u, 3u, 1u})
      ASSERT_TRUE(put(*store, key_of(number), bytes_of(number, size)));
  }
  const auto store = open(3 * file_bytes);
  EXPECT_FALSE(fs::exists(file_of(4)));
  EXPECT_EQ(store->health().objects, 3u);
}

TEST_F(FileBackendTest, AFolderWithoutLogsIsTakenOverByTheTimesOfItsFiles) {
  {
    const auto store = open();
    for (const auto number : {1u, 2u, 3u, 4u})
      ASSERT_TRUE(put(*store, key_of(number), bytes_of(number, size)));
  }
  set_time(file_of(1), 4000);
  set_time(file_of(2), 1000);
  set_time(file_of(3), 3000);
  set_time(file_of(4), 2000);
  fs::remove_all(logs());
  const auto store = open(3 * file_bytes);
  EXPECT_FALSE(fs::exists(file_of(2)));
  EXPECT_EQ(store->health().objects, 3u);
  EXPECT_EQ(store->health().counters.evicted, 1u);
  ASSERT_TRUE(put(*store, key_of(5), bytes_of(5, size)));
  EXPECT_EQ(store->exists(std::vector{key_of(1), key_of(3), key_of(4), key_of(5)}, no_deadline),
            (std::vector{true, true, false, true}));
}

TEST_F(FileBackendTest, TellsWhatThisProcessEvicts) {
  const auto store = open(2 * file_bytes);
  auto told = std::vector<page_key>{};
  EXPECT_FALSE(store->watch_evictions(
    [&](std::span<const evicted_object> objects) {
      for (const auto& x : objects) {
        EXPECT_FALSE(fs::exists(file_of(1)));
        EXPECT_TRUE(x.bytes.empty());
        told.push_back(x.key);
      }
    },
    true))
    << "others evict, too";
  for (const auto number : {1u, 2u, 3u})
    ASSERT_TRUE(put(*store, key_of(number), bytes_of(number, size)));
  EXPECT_EQ(told, std::vector{key_of(1)});
  ASSERT_TRUE(drop(*store, key_of(2)));
  EXPECT_EQ(told.size(), 1u) << "it was removed";
  store->watch_evictions({}, false);
  for (const auto number : {4u, 5u})
    ASSERT_TRUE(put(*store, key_of(number), bytes_of(number, size)));
  EXPECT_EQ(told.size(), 1u);
}

TEST_F(FileBackendTest, NeverPutsMoreOnTheDiskThanItsBound) {
  const auto store = open(1000);
  for (auto number = uint64_t{0}; number < 50; ++number) {
    const auto count = number * 37 % 700;
    ASSERT_TRUE(put(*store, key_of(number), bytes_of(number, count)));
    EXPECT_LE(bytes_on_disk(), 1000u);
    EXPECT_EQ(bytes_on_disk(), store->health().bytes);
  }
}

TEST_F(FileBackendTest, AFileOfAnyOtherLengthIsDamaged) {
  const auto store = open();
  for (const auto length : {size_t{0}, size_t{1}, page_header_bytes - 1, page_header_bytes,
                            file_bytes - 1, file_bytes + 1}) {
    ASSERT_TRUE(put(*store, key_of(1), bytes_of(1, size)));
    fs::resize_file(file_of(1), length);
    expect_corrupt(*store, "length " + std::to_string(length));
  }
}

TEST_F(FileBackendTest, EveryFieldOfTheHeaderIsVerified) {
  const auto store = open();
  ASSERT_TRUE(put(*store, key_of(1), bytes_of(1, size)));
  const auto file = read_file(file_of(1));
  const auto good = decode_page_header(file).value();
  auto changed = std::vector<std::pair<std::string, page_header>>(5, {"", good});
  changed[0] = {"generation", good};
  changed[0].second.generation ^= 4;
  changed[1] = {"fingerprint: a foreign namespace", good};
  changed[1].second.fingerprint ^= 1;
  changed[2] = {"key", good};
  changed[2].second.key.bytes[31] ^= 128;
  changed[3] = {"length", good};
  changed[3].second.length += 1;
  changed[4] = {"checksum", good};
  changed[4].second.checksum ^= 1;
  for (const auto& [field, header] : changed) {
    auto bytes = file;
    encode_page_header(header, std::span{bytes}.first<page_header_bytes>());
    write_file(file_of(1), bytes);
    ASSERT_NE(bytes, file) << field;
    // Known to the store again, so that its accounting is tested as well.
    const auto reopened = open();
    expect_corrupt(*reopened, field);
  }
}

TEST_F(FileBackendTest, AFlippedBitIsNeverServed) {
  const auto store = open();
  ASSERT_TRUE(put(*store, key_of(1), bytes_of(1, size)));
  const auto file = read_file(file_of(1));
  auto harmless = 0;
  for (auto i = size_t{0}; i < file.size(); ++i)
    for (const auto mask : {1, 128}) {
      auto bytes = file;
      bytes[i] ^= static_cast<std::byte>(mask);
      write_file(file_of(1), bytes);
      const auto page = take(*store, key_of(1), size);
      if (!page) {
        EXPECT_EQ(page.error().code, ec::corrupt_page) << "byte " << i;
        EXPECT_FALSE(fs::exists(file_of(1))) << "byte " << i;
        continue;
      }
      // Only bytes of the header that mean nothing may change unseen.
      EXPECT_LT(i, page_header_bytes);
      EXPECT_EQ(*page, bytes_of(1, size)) << "byte " << i;
      ++harmless;
    }
  EXPECT_LE(harmless, 2 * 8);
}

TEST_F(FileBackendTest, PagesOfAnotherNamespaceDoNotVerify) {
  auto other = make_file_backend({{folder_.path(), 0}, fingerprint + 1}, clock_);
  ASSERT_TRUE(other);
  ASSERT_TRUE(put(**other, key_of(1), bytes_of(1, size)));
  const auto store = open();
  expect_corrupt(*store, "foreign namespace");
}

TEST_F(FileBackendTest, PartsOfAnotherLengthAreTheCallersMistakeAndKeepTheFile) {
  const auto store = open();
  ASSERT_TRUE(put(*store, key_of(1), bytes_of(1, size)));
  EXPECT_EQ(code_of(take(*store, key_of(1), size - 1)), ec::invalid_argument);
  EXPECT_EQ(take(*store, key_of(1), size), bytes_of(1, size));
  EXPECT_EQ(store->health().counters.corrupt, 0u);
}

TEST_F(FileBackendTest, TakesMorePartsThanOneSystemCall) {
  const auto store = open();
  const auto bytes = bytes_of(1, 5000);
  const auto lengths = std::vector<size_t>(2500, 2);
  ASSERT_TRUE(
    store->set(std::vector{page_write{key_of(1), {}, cut(bytes, lengths)}}, no_deadline)[0]);
  auto back = page_bytes(5000);
  ASSERT_TRUE(store->get(std::vector{page_read{key_of(1), cut(back, lengths)}}, no_deadline)[0]);
  EXPECT_EQ(back, bytes);
}

TEST_F(FileBackendTest, LeavesForeignFilesAlone) {
  const auto digits = to_string(key_of(1));
  const auto directory = folder_.path() + '/' + digits.substr(0, 2) + '/';
  const auto content = bytes_of(9, 500);
  const auto foreign = std::vector<std::string>{
    folder_.path() + "/README",
    folder_.path() + "/zz/" + digits + ".kv",
    directory + "notes.kv",
    directory + digits + ".kv.bak",
    directory + digits + ".tmp",
    // A page's name in the directory of another one.
    folder_.path() + (digits.starts_with("00") ? "/01/" : "/00/") + digits + ".kv",
  };
  for (const auto& path : foreign)
    write_file(path, content);
  // A folder with a page's name.
  fs::create_directories(file_of(2));
  EXPECT_EQ(open()->health().objects, 0u);
  const auto store = open(file_bytes);
  ASSERT_TRUE(put(*store, key_of(1), bytes_of(1, size)));
  ASSERT_TRUE(put(*store, key_of(3), bytes_of(3, size)));
  EXPECT_EQ(store->health().objects, 1u);
  for (const auto& path : foreign)
    EXPECT_EQ(read_file(path), content) << path;
}

TEST_F(FileBackendTest, RemovesTemporariesOfWritersThatAreGone) {
  const auto abandoned = logs() + '/' + to_string(key_of(1)) + ".abc123.tmp";
  const auto being_written = logs() + '/' + to_string(key_of(1)) + ".def456.tmp";
  const auto foreign = logs() + "/notes.tmp";
  for (const auto& path : {abandoned, being_written, foreign})
    write_file(path, bytes_of(1, 50));
  const auto old = ::time(nullptr) - std::chrono::seconds{limits::folder_write_time}.count() - 60;
  set_time(abandoned, old);
  set_time(foreign, old);
  const auto store = open();
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(being_written));
  EXPECT_TRUE(fs::exists(foreign));
  EXPECT_FALSE(has(*store, key_of(1)));
}

TEST_F(FileBackendTest, LeavesNoTemporaryBehind) {
  const auto store = open(2 * file_bytes);
  for (const auto number : {1u, 2u, 3u})
    ASSERT_TRUE(put(*store, key_of(number), bytes_of(number, size)));
  // The folder of page 4 is a dead link to nowhere, so its file cannot be made.
  fs::create_symlink(folder_.path() + "/nowhere", fs::path{file_of(4)}.parent_path());
  EXPECT_EQ(code_of(put(*store, key_of(4), bytes_of(4, size))), ec::io_failure);
  EXPECT_FALSE(has(*store, key_of(4)));
  EXPECT_LE(bytes_on_disk(), 2 * file_bytes);
  for (const auto& entry : fs::recursive_directory_iterator{folder_.path()})
    EXPECT_NE(entry.path().extension(), ".tmp");
  // What was set aside for page 4 is free again.
  ASSERT_TRUE(put(*store, key_of(5), bytes_of(5, size)));
  ASSERT_TRUE(put(*store, key_of(6), bytes_of(6, size)));
  EXPECT_EQ(store->health().objects, 2u);
}

TEST_F(FileBackendTest, AWriteThatFailsHalfWayLeavesNothingBehind) {
  const auto store = open(4 * file_bytes);
  ASSERT_TRUE(put(*store, key_of(1), bytes_of(1, size)));
  auto old_limit = rlimit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  // A file may not grow longer than this; the system tells by an error instead of a signal.
  const auto limit = rlimit{file_bytes + 100, old_limit.rlim_max};
  auto* const old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto answer = put(*store, key_of(2), bytes_of(2, 2 * size));
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(code_of(answer), ec::io_failure);
  EXPECT_FALSE(has(*store, key_of(2)));
  EXPECT_EQ(bytes_on_disk(), file_bytes);
  EXPECT_EQ(store->health().counters.errors, 1u);
}

TEST_F(FileBackendTest, AFolderThatCannotBeUsedIsRefusedWithASentence) {
  const auto in_the_way = folder_.path() + "/file";
  write_file(in_the_way, bytes_of(1, 10));
  for (const auto& path :
       {in_the_way, in_the_way + "/sub", std::string{"/proc/hicache"}, std::string{"/proc"}}) {
    const auto store = make_file_backend({{path, 0}, fingerprint}, clock_);
    ASSERT_FALSE(store) << path;
    EXPECT_EQ(store.error().code, ec::io_failure) << path;
    EXPECT_THAT(store.error().detail, HasSubstr("'" + path + "'"));
  }
  EXPECT_EQ(make_file_backend({{"", 0}, fingerprint}, clock_).error().code, ec::invalid_argument);
}

TEST_F(FileBackendTest, AFolderThatVanishesCostsPagesAndNothingElse) {
  const auto store = open();
  ASSERT_TRUE(put(*store, key_of(1), bytes_of(1, size)));
  fs::remove_all(folder_.path());
  EXPECT_FALSE(has(*store, key_of(1)));
  EXPECT_EQ(code_of(take(*store, key_of(1), size)), ec::not_found);
  EXPECT_EQ(code_of(put(*store, key_of(2), bytes_of(2, size))), ec::io_failure);
  EXPECT_TRUE(drop(*store, key_of(1)));
  const auto health = store->health();
  EXPECT_FALSE(health.ok);
  EXPECT_THAT(health.detail, HasSubstr(folder_.path()));
  EXPECT_EQ(health.objects, 0u);
  EXPECT_EQ(health.counters.errors, 1u);
}

// -- several users of a folder ------------------------------------------------

TEST_F(FileBackendTest, TwoStoresShareAFolder) {
  const auto one = open(4 * file_bytes);
  const auto two = open(4 * file_bytes);
  ASSERT_TRUE(put(*one, key_of(1), bytes_of(1, size)));
  EXPECT_TRUE(has(*two, key_of(1)));
  EXPECT_EQ(take(*two, key_of(1), size), bytes_of(1, size));
  // The page is there already, so the second store does not write it; it counts it all the same.
  EXPECT_TRUE(put(*two, key_of(1), bytes_of(2, size)));
  EXPECT_EQ(two->health().objects, 1u);
  EXPECT_TRUE(drop(*two, key_of(1)));
  EXPECT_FALSE(has(*one, key_of(1)));
  EXPECT_EQ(code_of(take(*one, key_of(1), size)), ec::not_found);
  EXPECT_EQ(one->health().objects, 0u);
  EXPECT_EQ(one->health().bytes, 0u);
}

TEST_F(FileBackendTest, APageThatAnotherStoreRemovedIsWrittenAgain) {
  const auto one = open();
  const auto two = open();
  ASSERT_TRUE(put(*one, key_of(1), bytes_of(1, size)));
  ASSERT_TRUE(drop(*two, key_of(1)));
  ASSERT_TRUE(put(*one, key_of(1), bytes_of(1, size)));
  EXPECT_EQ(one->health().objects, 1u);
  EXPECT_EQ(take(*two, key_of(1), size), bytes_of(1, size));
}

TEST_F(FileBackendTest, AFolderHasOneBoundWhoeverUsesIt) {
  const auto one = open(5 * file_bytes);
  const auto two = open(5 * file_bytes);
  for (auto number = uint64_t{0}; number < 30; ++number) {
    auto& store = number % 3 == 0 ? *one : *two;
    ASSERT_TRUE(put(store, key_of(number), bytes_of(number, size)));
    EXPECT_LE(bytes_on_disk(), 5 * file_bytes);
  }
  for (auto* store : {one.get(), two.get()}) {
    EXPECT_EQ(store->health().objects, 5u);
    EXPECT_EQ(store->health().capacity_bytes, 5 * file_bytes);
    for (auto number = uint64_t{25}; number < 30; ++number)
      EXPECT_TRUE(has(*store, key_of(number)));
  }
  EXPECT_EQ(bytes_on_disk(), 5 * file_bytes);
}

TEST_F(FileBackendTest, LogsOfProcessesThatAreGoneAreWrittenTogether) {
  const auto count_logs
    = [this] { return std::distance(fs::directory_iterator{logs()}, fs::directory_iterator{}); };
  for (auto number = uint64_t{0}; number < limits::folder_logs + 1; ++number)
    ASSERT_TRUE(put(*open(), key_of(number), bytes_of(number, size)));
  const auto living = open();
  ASSERT_TRUE(put(*living, key_of(100), bytes_of(100, size)));
  for (const auto& log : fs::directory_iterator{logs()})
    set_time(log.path(), ::time(nullptr) - 2 * limits::folder_log_age.count());
  EXPECT_EQ(open()->health().objects, limits::folder_logs + 2);
  EXPECT_EQ(count_logs(), 1);
  // One that lives after all goes on in a log of another name.
  ASSERT_TRUE(put(*living, key_of(101), bytes_of(101, size)));
  EXPECT_EQ(count_logs(), 2);
  EXPECT_EQ(living->health().objects, limits::folder_logs + 3);
  EXPECT_EQ(open()->health().objects, limits::folder_logs + 3);
}

TEST_F(FileBackendTest, DamagedLogsCostNothingButTheCountOfTheirPages) {
  {
    const auto store = open();
    for (const auto number : {1u, 2u, 3u})
      ASSERT_TRUE(put(*store, key_of(number), bytes_of(number, size)));
  }
  const auto log = fs::directory_iterator {
    logs()
    } -> path().string();
  auto bytes = read_file(log);
  bytes[100] ^= std::byte{1};     // In the second entry.
  bytes.resize(bytes.size() - 1); // The last one is cut short.
  write_file(log, bytes);
  const auto store = open();
  EXPECT_EQ(store->health().objects, 1u);
  for (const auto number : {1u, 2u, 3u})
    EXPECT_EQ(take(*store, key_of(number), size), bytes_of(number, size));
}

// -- what goes first ----------------------------------------------------------

TEST_F(FileBackendTest, APrefixOutlivesItsSuffixes) {
  const auto store = open(4 * file_bytes);
  ASSERT_TRUE(put(*store, key_of(1), bytes_of(1, size)));
  ASSERT_TRUE(put_after(*store, 2, 1));
  ASSERT_TRUE(put_after(*store, 3, 2));
  ASSERT_TRUE(put_after(*store, 4, 2));
  ASSERT_TRUE(take(*store, key_of(3), size));
  for (const auto& [number, gone] :
       {std::pair{5u, 4u}, std::pair{6u, 3u}, std::pair{7u, 2u}, std::pair{8u, 1u}}) {
    ASSERT_TRUE(put(*store, key_of(number), bytes_of(number, size)));
    EXPECT_FALSE(has(*store, key_of(gone))) << gone;
    EXPECT_EQ(store->health().objects, 4u);
  }
}

TEST_F(FileBackendTest, APrefixOutlivesItsSuffixesAfterARestartAndForOthers) {
  const auto other = open(3 * file_bytes);
  {
    const auto store = open(3 * file_bytes);
    ASSERT_TRUE(put(*store, key_of(1), bytes_of(1, size)));
    ASSERT_TRUE(put_after(*store, 2, 1));
    ASSERT_TRUE(put_after(*store, 3, 2));
  }
  ASSERT_TRUE(put(*other, key_of(4), bytes_of(4, size)));
  EXPECT_FALSE(has(*other, key_of(3)));
  const auto again = open(3 * file_bytes);
  ASSERT_TRUE(put(*again, key_of(5), bytes_of(5, size)));
  EXPECT_FALSE(has(*again, key_of(2)));
  EXPECT_TRUE(has(*again, key_of(1)));
}

TEST_F(FileBackendTest, APageNeverTakesTheRoomOfItsOwnPrefix) {
  const auto store = open(3 * file_bytes);
  ASSERT_TRUE(put(*store, key_of(1), bytes_of(1, size)));
  ASSERT_TRUE(put_after(*store, 2, 1));
  ASSERT_TRUE(put_after(*store, 3, 2));
  EXPECT_EQ(code_of(put_after(*store, 4, 3)), ec::store_full);
  EXPECT_EQ(store->health().objects, 3u);
}

// -- a full disk --------------------------------------------------------------

TEST_F(FileBackendTest, AFullDiskEvicts) {
  const auto path = folder_.path() + "/small";
  fs::create_directory(path);
  if (::mount("none", path.c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "mounting a file system of a megabyte takes root";
  {
    auto store = make_file_backend({{path, 0}, fingerprint}, clock_).value();
    constexpr auto large = size_t{100'000};
    for (auto number = uint64_t{0}; number < 40; ++number)
      ASSERT_TRUE(put(*store, key_of(number), bytes_of(number, large))) << number;
    EXPECT_TRUE(has(*store, key_of(39)));
    EXPECT_FALSE(has(*store, key_of(0)));
    EXPECT_GT(store->health().counters.evicted, 20u);
    EXPECT_EQ(code_of(put(*store, key_of(50), bytes_of(50, 2 << 20))), ec::store_full);
  }
  EXPECT_EQ(::umount(path.c_str()), 0);
}

} // namespace
} // namespace hicache::test
