#pragma once

#include "base/unique_fd.hpp"
#include "hicache/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace hicache {

/// What a peer may do with memory that it maps.
enum class peer_access : uint8_t { read, write };

/// A peer's memory. It stays valid after the peer is gone. Move-only; may be read
/// from any thread.
class mapped_peer_memory {
public:
  /// Maps what `fd`, the descriptor of a `shared_memory` of any process, stands for. The descriptor
  /// is not needed afterwards.
  /// @returns io_failure if it cannot be mapped, or if it is neither sealed against shrinking (then
  /// reading it could end in a bus error) nor a file with a name, which cannot be sealed
  /// @param owner As owner().
  static result<mapped_peer_memory> open(const unique_fd& fd, unique_fd owner = {},
                                         peer_access access = peer_access::read);

  mapped_peer_memory(mapped_peer_memory&& other) noexcept;

  mapped_peer_memory& operator=(mapped_peer_memory&& other) noexcept;

  ~mapped_peer_memory();

  const std::byte* data() const noexcept { return bytes_.data(); }

  /// Bytes.
  uint64_t size() const noexcept { return bytes_.size(); }

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

  /// @pre mapped to be written
  std::span<std::byte> writable_bytes() const noexcept { return bytes_; }

  /// A connection to the owner that hangs up when the owner is gone, and when this object is. None
  /// if the owner keeps no connections.
  const unique_fd& owner() const noexcept { return owner_; }

private:
  mapped_peer_memory(std::span<std::byte> bytes, unique_fd owner) noexcept
    : bytes_(bytes), owner_(std::move(owner)) {}

  void unmap() noexcept;

  std::span<std::byte> bytes_;
  unique_fd owner_;
};

/// Memory that peers on the same host can map: a memfd, mapped read-write here, that vanishes with
/// its last user, even after kill -9. Move-only. Access from several threads or processes is not
/// synchronised.
class shared_memory {
public:
  /// Makes `bytes` bytes, zeroed and resident, so that a lack of memory shows now and never as a
  /// bus error later. Whole multiples of 2 MiB are huge pages if enough of them are reserved and
  /// free on this machine, which spares each peer that maps them gigabytes of page tables.
  /// @param name What /proc/PID/maps shows; need not be unique.
  /// @param access What any peer may do with it at most.
  /// @returns invalid_argument for no bytes; io_failure with the bytes asked for and those
  /// available
  static result<shared_memory> create(uint64_t bytes, const std::string& name,
                                      peer_access access = peer_access::read);

  /// The same, but only the first `resident` bytes are resident: whoever uses the others sees to
  /// that before, with whatever NUMA node and page size it wants for them.
  /// @pre resident <= bytes
  static result<shared_memory> create(uint64_t bytes, uint64_t resident, const std::string& name,
                                      peer_access access = peer_access::read);

  /// Maps a file of `bytes` bytes. Room for the first `resident` of them is reserved, so that a
  /// lack of room shows now and never as a bus error later. It is kept, unlike other memory, when
  /// its last user is gone. Whoever has its descriptor can shrink it: then all who use the rest
  /// die.
  /// @param fd Open for reading and writing.
  /// @returns io_failure if there is no room, or the file cannot be mapped
  static result<shared_memory> map_file(unique_fd fd, uint64_t bytes, uint64_t resident);

  shared_memory(shared_memory&& other) noexcept;

  shared_memory& operator=(shared_memory&& other) noexcept;

  ~shared_memory();

  std::byte* data() const noexcept { return bytes_.data(); }

  /// Bytes.
  uint64_t size() const noexcept { return bytes_.size(); }

  std::span<std::byte> bytes() const noexcept { return bytes_; }

  /// The descriptor that stands for the memory; stays with this object.
  int fd() const noexcept { return fd_.get(); }

private:
  shared_memory(unique_fd fd, std::span<std::byte> bytes) noexcept;

  void unmap() noexcept;

  unique_fd fd_;
  std::span<std::byte> bytes_;
};

} // namespace hicache
