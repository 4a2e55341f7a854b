#pragma once

#include "cache/radix/token_span.hpp"
#include "hicache/ids.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace hicache {

class page_names;

/// Consecutive names inside a page_names. A value.
struct name_run {
  std::shared_ptr<const page_names> names;
  uint64_t first = 0;
  uint64_t count = 0;

  /// The names, computed on the first call. Valid as long as `names`.
  std::span<const page_key> get() const;

  /// Cuts the run at `at` and returns the part before.
  name_run cut_front(uint64_t at);
};

/// Names of consecutive pages, computed on first use by the reading thread, so that the tree hashes
/// nothing. Immutable to callers; any thread.
class page_names {
public:
  /// Known names.
  explicit page_names(std::vector<page_key> keys);

  /// Names of the whole pages of `tokens`, see hash_pages.
  /// @param prior Ends with the name of the page before; may be empty.
  page_names(name_run prior, token_span tokens, uint32_t page_size, uint32_t overlap);

  page_names(const page_names&) = delete;

  page_names& operator=(const page_names&) = delete;

  ~page_names();

  uint64_t size() const noexcept { return size_; }

  /// True once get() need not hash any more.
  bool is_known() const noexcept { return is_ready_.load(std::memory_order_acquire); }

  /// All names. The first call hashes the tokens, and those of unread names before.
  std::span<const page_key> get() const;

private:
  /// The names before these, if not computed yet.
  std::shared_ptr<const page_names> unread_prior() const;

  void compute() const;

  const uint64_t size_;
  const uint32_t page_size_ = 0;
  const uint32_t overlap_ = 0;
  /// Guards the members below until `is_ready_`; then keys_ is constant and the rest empty.
  mutable std::mutex mutex_;
  mutable std::atomic<bool> is_ready_;
  mutable name_run prior_;
  mutable token_span tokens_;
  mutable std::vector<page_key> keys_;
};

/// Names of consecutive pages of one path, as several runs hold them. Immutable; any thread.
class path_names {
public:
  /// @param before Ends with the name of the page before the first one; empty at the start of a
  /// prompt.
  explicit path_names(std::vector<name_run> runs, name_run before = {});

  uint64_t size() const noexcept { return size_; }

  /// Names of pages [first, first + count).
  std::vector<page_key> get(uint64_t first, uint64_t count) const;

  /// The name of the page before page `first`; all zero at the start of a prompt.
  page_key before(uint64_t first) const;

private:
  std::vector<name_run> runs_;
  name_run before_;
  uint64_t size_ = 0;
};

} // namespace hicache
