#pragma once

#include "base/unique_fd.hpp"
#include "base/unique_mapping.hpp"
#include "hicache/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace hicache {

/// What a peer may do with memory that it maps.
enum class peer_access : uint8_t { read, write };

/// A peer's memory, mapped here; outlives the peer. Move-only; any thread may read it.
class mapped_peer_memory {
public:
  /// Maps the memory of `fd`, the descriptor of a `shared_memory`, which may then be closed.
  /// @param owner As owner().
  /// @returns io_failure if mapping fails, or if it is neither sealed against shrinking (reading
  /// could raise SIGBUS) nor a file with a name, which cannot be sealed
  static result<mapped_peer_memory> open(const unique_fd& fd, unique_fd owner = {},
                                         peer_access access = peer_access::read);

  mapped_peer_memory(mapped_peer_memory&& other) noexcept = default;

  ~mapped_peer_memory();

  const std::byte* data() const noexcept { return memory_.data(); }

  /// In bytes.
  uint64_t size() const noexcept { return memory_.size(); }

  std::span<const std::byte> bytes() const noexcept { return memory_.bytes(); }

  /// @pre mapped for writing
  std::span<std::byte> writable_bytes() const noexcept { return memory_.bytes(); }

  /// A connection to the owner that hangs up when the owner or this object is gone. Empty if the
  /// owner keeps no connections.
  const unique_fd& owner() const noexcept { return owner_; }

private:
  mapped_peer_memory(unique_mapping memory, unique_fd owner) noexcept
    : memory_(std::move(memory)), owner_(std::move(owner)) {}

  unique_mapping memory_;
  unique_fd owner_;
};

/// Memory that peers on the same host can map: a memfd, mapped read-write here, that vanishes with
/// its last user, even after kill -9. Move-only. Access is not synchronised.
class shared_memory {
public:
  /// Creates `bytes` bytes, zeroed and resident, so that a shortage of memory fails here and not as
  /// a SIGBUS later. Multiples of 2 MiB use huge pages if enough are reserved and free on this
  /// machine, which saves each peer gigabytes of page tables.
  /// @param name Shown in /proc/PID/maps; need not be unique.
  /// @param access The most that any peer may do with it.
  /// @returns invalid_argument for 0 bytes; io_failure with the bytes requested and available
  static result<shared_memory> create(uint64_t bytes, const std::string& name,
                                      peer_access access = peer_access::read);

  /// The same, but only the first `resident` bytes are resident. The user of the others must
  /// populate them first, on the NUMA node and with the page size of its choice.
  /// @pre resident <= bytes
  static result<shared_memory> create(uint64_t bytes, uint64_t resident, const std::string& name,
                                      peer_access access = peer_access::read);

  /// Maps a file of `bytes` bytes. Reserves room for the first `resident` of them, so that a
  /// shortage fails here and not as a SIGBUS later. Unlike other memory it outlives its last user.
  /// Any holder of the descriptor can shrink the file, which kills all users of the removed part.
  /// @param fd Open for reading and writing.
  /// @returns io_failure if there is no room, or mapping fails
  static result<shared_memory> map_file(unique_fd fd, uint64_t bytes, uint64_t resident);

  std::byte* data() const noexcept { return memory_.data(); }

  /// In bytes.
  uint64_t size() const noexcept { return memory_.size(); }

  std::span<std::byte> bytes() const noexcept { return memory_.bytes(); }

  /// The descriptor of the memory; owned by this object.
  int fd() const noexcept { return fd_.get(); }

private:
  shared_memory(unique_fd fd, unique_mapping memory) noexcept
    : fd_(std::move(fd)), memory_(std::move(memory)) {}

  static result<shared_memory> map(unique_fd fd, uint64_t bytes);

  unique_fd fd_;
  unique_mapping memory_;
};

} // namespace hicache
