#pragma once

#include "base/immovable.hpp"
#include "cache/store/extent_allocator.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

namespace hicache::serde {

/// The memory between objects and their encoded forms: one region, of which pieces are lent. Who
/// finds too little waits in one FIFO queue. Any thread.
class bounce_pool : public std::enable_shared_from_this<bounce_pool>, immovable {
public:
  /// Pieces begin and end at multiples of this, which stores may want of memory that they write
  /// from and read into.
  static constexpr size_t alignment = 4096;

  /// A borrowed piece, given back when destroyed. Keeps the pool alive. Move-only.
  class piece {
  public:
    piece() = default;
    piece(piece&& other) noexcept;
    piece& operator=(piece&& other) noexcept;
    ~piece();

    std::span<std::byte> bytes() const noexcept { return bytes_; }

  private:
    friend class bounce_pool;

    piece(std::shared_ptr<bounce_pool> pool, std::span<std::byte> bytes)
      : pool_(std::move(pool)), bytes_(bytes) {}

    std::shared_ptr<bounce_pool> pool_;
    std::span<std::byte> bytes_;
  };

  /// Receives a piece, on the thread that requests it or that gives memory back.
  using receiver = std::function<void(piece)>;

  /// @param bytes Rounded up to whole pieces. The system provides memory as it is used.
  static std::shared_ptr<bounce_pool> make(uint64_t bytes);

  ~bounce_pool();

  uint64_t capacity() const noexcept { return memory_.size(); }

  /// All of the memory, for stores that register it.
  std::span<std::byte> memory() const noexcept { return memory_; }

  /// Requests a piece. `receive` is called once, at once if there is room and nobody waits.
  /// @param owner Whom `cancel` names.
  /// @pre 0 < bytes <= capacity()
  void request(uint64_t owner, uint64_t bytes, receiver receive);

  /// Drops the waiting requests of an owner.
  void cancel(uint64_t owner);

  /// Bytes not lent.
  uint64_t free() const;

private:
  struct waiting {
    uint64_t owner = 0;
    uint64_t bytes = 0;
    receiver receive;
  };

  explicit bounce_pool(std::span<std::byte> memory) : memory_(memory), extents_(memory.size()) {}

  /// Serves those who wait, in order, until one finds too little.
  void serve();

  void give_back(std::span<std::byte> bytes);

  const std::span<std::byte> memory_;
  mutable std::mutex mutex_; // Guards what follows.
  extent_allocator extents_;
  std::deque<waiting> queue_;
};

} // namespace hicache::serde
