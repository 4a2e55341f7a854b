#pragma once

#include "backends/serde/bounce_pool.hpp"
#include "hicache/clock.hpp"
#include "hicache/storage_backend.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

/// What the decorator of serde_backend.hpp knows of its batches. Only serde_backend.cpp uses it.
namespace hicache::serde {

struct chunk;

/// A read or a write. Its lists belong to whoever has made a `use` of it; the rest is guarded by
/// the decorator's lock.
struct transfer {
  enum class phase : uint8_t {
    /// No thread has begun with it.
    waiting,
    running,
    /// Answered, or about to be, or withdrawn. Its parts are not touched any more.
    over,
  };

  storage_backend::batch_number number = 0;
  time_point deadline;
  size_t size = 0;
  bool is_read = false;
  /// Of a write.
  bool is_promotion = false;
  /// One of both.
  std::unique_ptr<store_batch<page_read>> read_batch;
  std::unique_ptr<store_batch<page_write>> write_batch;
  storage_backend::pages_done done;
  storage_backend::read_progress progress;

  /// Made by the first job.
  std::vector<page_read> reads;
  std::vector<page_write> writes;

  phase state = phase::waiting;
  /// Its deadline has passed, as far as the caller knows.
  bool has_expired = false;
  /// Why it ends before it is complete.
  std::optional<error> failure;
  /// Threads that may touch its parts or call `progress`.
  size_t uses = 0;
  /// First object that is in no chunk yet.
  size_t next = 0;
  std::vector<std::shared_ptr<chunk>> open;
  std::vector<result<void>> answers;
  /// Serialises calls of `progress`.
  std::mutex reporting;

  uint64_t bytes_of(size_t i) const noexcept {
    return is_read ? total_bytes(reads[i].parts) : total_bytes(writes[i].parts);
  }
};

/// Objects of a batch that move together.
struct chunk {
  std::shared_ptr<transfer> batch;
  size_t first = 0;
  size_t count = 0;
  /// Their encoded forms lie here, one behind the other.
  bounce_pool::piece memory;
  /// The store's call in progress, or the last one; 0 if there was none.
  storage_backend::batch_number call = 0;
  /// Encoded lengths of what was read.
  std::vector<result<uint64_t>> lengths;
  /// Objects that were written, counted from `first`.
  std::vector<size_t> written;
  std::vector<result<void>> answers;
};

} // namespace hicache::serde
