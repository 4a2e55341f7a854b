#pragma once

#include "gpu/device.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hicache {

/// The most that one of `ranks_on_host` ranks may take of `available` bytes: an equal share of what
/// is left when 10 GiB, or half of it if that is less, stay free for the rest of the machine.
/// @pre ranks_on_host > 0
uint64_t host_memory_budget(uint64_t available, uint32_t ranks_on_host) noexcept;

/// Refuses a size that the machine, or the process's control group, cannot back with memory now
/// (available_memory), so that the user reads a sentence instead of meeting the kernel's
/// out-of-memory killer. Free huge pages of the kernel's pools do not count as available. Where the
/// kernel does not say what is available, nothing is refused.
/// @returns io_failure that names the size, what is available, and what was kept back and shared.
/// @pre ranks_on_host > 0
result<void> check_memory_available(uint64_t bytes, uint32_t ranks_on_host);

/// Pages of the machine's memory, by size.
enum class memory_pages : uint8_t { gigabyte, two_megabytes, plain };

/// A mapping of zeroed, resident memory for L2, unmapped with the object unless it was adopted.
/// Move-only.
class host_mapping {
public:
  /// Maps `bytes` bytes in the largest pages that the machine gives (hugetlb pages of 1 GiB and 2
  /// MiB if enough are free, else plain ones, in which the kernel is asked for transparent huge
  /// pages) and makes them resident, on several threads.
  /// @param numa_node Where the memory should lie; nothing leaves it to the kernel. A node that
  /// does not exist or has no room is not an error.
  /// @returns io_failure with a sentence: that of check_memory_available, unless free huge pages
  /// hold it all, or what the kernel said.
  /// @pre bytes > 0
  static result<host_mapping> create(uint64_t bytes, std::optional<int> numa_node,
                                     const host_memory_options& options);

  /// Takes a part of a mapping that others may share, such as that of a memfd, and makes it
  /// resident as create() does, in plain pages. It stays mapped when the object goes.
  /// @returns io_failure with a sentence
  /// @pre memory is not empty, begins with a plain page, and was not touched yet
  static result<host_mapping> adopt(std::span<std::byte> memory, std::optional<int> numa_node,
                                    const host_memory_options& options);

  host_mapping(host_mapping&& other) noexcept;

  host_mapping& operator=(host_mapping&& other) noexcept;

  ~host_mapping();

  std::span<std::byte> bytes() const noexcept { return bytes_; }

  memory_pages pages() const noexcept { return pages_; }

  /// "2 MiB huge pages on NUMA node 0".
  std::string description() const;

private:
  host_mapping(std::span<std::byte> bytes, uint64_t mapped, memory_pages pages,
               std::optional<int> node) noexcept;

  /// What was asked for.
  std::span<std::byte> bytes_;
  /// What was mapped: whole pages; 0 if it was adopted.
  uint64_t mapped_ = 0;
  memory_pages pages_ = memory_pages::plain;
  std::optional<int> node_;
};

/// L2 memory that the CPU alone uses: a host_mapping. Errors as for its create().
/// @pre bytes > 0
result<std::unique_ptr<device_memory>> allocate_host_memory(uint64_t bytes,
                                                            const host_memory_options& options);

/// The same in memory of the caller's: host_mapping::adopt().
result<std::unique_ptr<device_memory>> adopt_host_memory(std::span<std::byte> memory,
                                                         const host_memory_options& options);

/// L1 memory of the host device: zeroed, resident, can be shared with other processes.
/// @returns io_failure with a sentence.
/// @pre bytes > 0
result<std::unique_ptr<device_memory>> allocate_shared_memory(uint64_t bytes);

/// What allocate_shared_memory made in another process, by the text of its share(). Readable and
/// writable; stays when the owner frees it.
/// @returns invalid_argument if the text is none that share() writes, io_failure if the memory is
/// not there or not what the text says.
result<std::unique_ptr<device_memory>> open_shared_memory(std::string_view shared);

} // namespace hicache
