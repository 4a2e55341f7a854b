// Cases F1 to F8 and F15 of SGLang's L3 (docs/internals.md, "Cases of SGLang"). F9, F13 and F14 are
// in actors/sglang_storage_test.cpp, F12 is in base/units_test.cpp.
//
// Bounds count the header of each file. There is no ratio to which a full folder is emptied: it
// loses what the next page needs, and no more (F5, F6).

#include "tests/backends/file_fixture.hpp"

#include <sys/mman.h>

#include <csignal>
#include <semaphore>
#include <thread>
#include <vector>

namespace hicache::test {
namespace {

namespace fs = std::filesystem;

using numbers = std::vector<uint64_t>;

class SglangFileTest : public FileBackendTest {
protected:
  /// Which of pages 1 to `last` there are.
  static numbers pages_of(blocking_store& store, uint64_t last) {
    auto found = numbers{};
    for (auto number = uint64_t{1}; number <= last; ++number)
      if (has(store, key_of(number)))
        found.push_back(number);
    return found;
  }

  /// A folder with room for `room` pages that holds pages 1 to `count`, put in this order.
  std::unique_ptr<blocking_store> filled(uint64_t room, uint64_t count) {
    auto store = open(room * file_bytes);
    for (auto number = uint64_t{1}; number <= count; ++number)
      EXPECT_TRUE(put(*store, key_of(number), bytes_of(number, size)));
    return store;
  }
};

TEST_F(SglangFileTest, F1TheOldestPageGoes) {
  const auto store = filled(3, 3);
  EXPECT_TRUE(put(*store, key_of(4), bytes_of(4, size)));
  EXPECT_EQ(pages_of(*store, 4), (numbers{2, 3, 4}));
  EXPECT_EQ(store->health().bytes, 3 * file_bytes);
  EXPECT_EQ(bytes_on_disk(), 3 * file_bytes);
}

TEST_F(SglangFileTest, F2APageThatWasReadStays) {
  const auto store = filled(3, 3);
  EXPECT_TRUE(take(*store, key_of(1), size));
  EXPECT_TRUE(put(*store, key_of(4), bytes_of(4, size)));
  EXPECT_EQ(pages_of(*store, 4), (numbers{1, 3, 4}));
}

TEST_F(SglangFileTest, F3APageThatWasPutAgainStays) {
  const auto store = filled(3, 3);
  EXPECT_TRUE(put(*store, key_of(1), bytes_of(1, size)));
  EXPECT_TRUE(put(*store, key_of(4), bytes_of(4, size)));
  EXPECT_EQ(pages_of(*store, 4), (numbers{1, 3, 4}));
}

TEST_F(SglangFileTest, F4APageThatIsTooLongIsRefusedAndCostsNothing) {
  const auto store = filled(1, 1);
  EXPECT_EQ(code_of(put(*store, key_of(2), bytes_of(2, size + 1))), ec::store_full);
  EXPECT_EQ(pages_of(*store, 2), numbers{1});
}

TEST_F(SglangFileTest, F5AFullFolderLosesOnePageForOne) {
  const auto store = filled(4, 4);
  EXPECT_TRUE(put(*store, key_of(5), bytes_of(5, size)));
  EXPECT_EQ(pages_of(*store, 5), (numbers{2, 3, 4, 5}));
  EXPECT_EQ(store->health().bytes, 4 * file_bytes);
}

TEST_F(SglangFileTest, F6AFullFolderLosesNoMoreThanItMust) {
  const auto store = filled(3, 3);
  EXPECT_TRUE(put(*store, key_of(4), bytes_of(4, 2 * size))); // Longer by less than a file.
  EXPECT_EQ(pages_of(*store, 4), (numbers{3, 4}));
  EXPECT_EQ(store->health().bytes, 2 * file_bytes + size);
}

/// A page's memory whose first reader stops in the middle of reading until it is let go on.
class trapped_memory {
public:
  trapped_memory() {
    memory_ = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory_, MAP_FAILED);
    self_ = this;
    struct sigaction action {};
    action.sa_handler = [](int) {
      self_->reached_.release();
      self_->passed_.acquire();
    };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    EXPECT_EQ(::sigaction(SIGSEGV, &action, &old_action_), 0);
  }
  trapped_memory(const trapped_memory&) = delete;
  trapped_memory& operator=(const trapped_memory&) = delete;
  ~trapped_memory() {
    ::sigaction(SIGSEGV, &old_action_, nullptr);
    ::munmap(memory_, size);
  }

  std::span<const std::byte> bytes() const { return {static_cast<std::byte*>(memory_), size}; }

  void wait_for_reader() { reached_.acquire(); }

  void let_read() {
    EXPECT_EQ(::mprotect(memory_, size, PROT_READ), 0);
    passed_.release();
  }

  /// Whoever waits for a reader need not any more.
  void expect_no_reader() { reached_.release(); }

private:
  static inline trapped_memory* self_ = nullptr;
  std::counting_semaphore<> reached_{0};
  std::counting_semaphore<> passed_{0};
  void* memory_ = nullptr;
  struct sigaction old_action_ {};
};

TEST_F(SglangFileTest, F7RoomOfAPageThatIsBeingWrittenIsNotGivenAway) {
  const auto store = open(2 * file_bytes - 1);
  auto page = trapped_memory{};
  auto during = ec::none;
  // The store reads a page when it has found room for it.
  auto other = std::jthread{[&] {
    page.wait_for_reader();
    during = code_of(put(*store, key_of(2), bytes_of(2, size)));
    page.let_read();
  }};
  EXPECT_TRUE(store->set(std::vector{page_write{key_of(1), {}, {page.bytes()}}}, no_deadline)[0]);
  page.expect_no_reader();
  other.join();
  EXPECT_EQ(during, ec::store_full);
  EXPECT_EQ(pages_of(*store, 2), numbers{1});
  EXPECT_TRUE(put(*store, key_of(2), bytes_of(2, size)));
  EXPECT_EQ(pages_of(*store, 2), numbers{2});
  EXPECT_EQ(store->health().bytes, file_bytes);
}

TEST_F(SglangFileTest, F8RoomOfAPageThatFailedIsFreeAgain) {
  const auto store = open(2 * file_bytes - 1);
  fs::create_symlink(folder_.path() + "/nowhere", fs::path{file_of(1)}.parent_path());
  EXPECT_EQ(code_of(put(*store, key_of(1), bytes_of(1, size))), ec::io_failure);
  EXPECT_EQ(store->health().bytes, 0u);
  EXPECT_TRUE(put(*store, key_of(2), bytes_of(2, size)));
  EXPECT_EQ(store->health().bytes, file_bytes);
}

TEST_F(SglangFileTest, F15AShortFileIsAMissAndIsRemoved) {
  const auto store = filled(3, 1);
  EXPECT_EQ(code_of(take(*store, key_of(2), size)), ec::not_found);
  fs::resize_file(file_of(1), file_bytes - 1);
  EXPECT_EQ(code_of(take(*store, key_of(1), size)), ec::corrupt_page);
  EXPECT_FALSE(fs::exists(file_of(1)));
  EXPECT_EQ(code_of(take(*store, key_of(1), size)), ec::not_found);
  EXPECT_EQ(store->health().bytes, 0u);
}

} // namespace
} // namespace hicache::test
