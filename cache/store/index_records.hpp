#pragma once

#include "base/check.hpp"
#include "cache/store/index_table.hpp"
#include "hicache/ids.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

/// Building blocks of index_table.
namespace hicache {

/// Number of a record in the pool.
using record_index = uint32_t;

inline constexpr auto no_record = std::numeric_limits<record_index>::max();

/// Handles are small (limits::index_members plus those being expired), so 31 bits suffice.
inline constexpr auto max_handle = member_handle{0x7fff'ffff};

/// One replica. The records of a key form a list, oldest first, and so do those of a member, so
/// that dropping a member costs only its replicas.
struct record {
  page_key key;
  uint64_t offset = 0;
  uint32_t generation = 0;
  uint32_t length = 0;
  /// The shard is the second keeper of the key.
  uint32_t is_second : 1 = 0;
  member_handle member : 31 = 0;
  /// The next replica of the key, or the next record of the free list.
  record_index next_of_key = no_record;
  record_index previous_of_member = no_record;
  record_index next_of_member = no_record;
};

static_assert(sizeof(record) == 64, "one cache line, and the memory goal of memory_bytes()");

/// Records by number, in chunks: growing neither copies records nor leaves a vector's slack.
class record_pool {
public:
  record& operator[](record_index i) { return (*chunks_[i / chunk_records])[i % chunk_records]; }

  const record& operator[](record_index i) const {
    return (*chunks_[i / chunk_records])[i % chunk_records];
  }

  record_index take() {
    if (free_ == no_record)
      grow();
    return std::exchange(free_, (*this)[free_].next_of_key);
  }

  void give_back(record_index i) { (*this)[i].next_of_key = std::exchange(free_, i); }

  uint64_t memory_bytes() const noexcept { return chunks_.size() * sizeof(chunk); }

private:
  static constexpr size_t chunk_records = 4096;

  using chunk = std::array<record, chunk_records>;

  void grow() {
    const auto first = chunks_.size() * chunk_records;
    HICACHE_CHECK(first + chunk_records < no_record);
    chunks_.push_back(std::make_unique<chunk>());
    // In reverse, so that records are taken in ascending order.
    for (auto i = chunk_records; i > 0; --i)
      give_back(static_cast<record_index>(first + i - 1));
  }

  std::vector<std::unique_ptr<chunk>> chunks_;
  record_index free_ = no_record;
};

/// Hash and equality of a key and of the record that represents it.
struct key_of_record {
  using is_transparent = void;

  const record_pool* pool;

  const page_key& key(const page_key& x) const { return x; }

  const page_key& key(record_index x) const { return (*pool)[x].key; }
};

struct key_hash : key_of_record {
  template <class T>
  size_t operator()(const T& x) const {
    return std::hash<page_key>{}(key(x));
  }
};

struct key_equal : key_of_record {
  template <class T, class U>
  bool operator()(const T& x, const U& y) const {
    return key(x) == key(y);
  }
};

} // namespace hicache
