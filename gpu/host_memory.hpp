#pragma once

#include "base/unique_mapping.hpp"
#include "gpu/device.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace hicache {

/// The most that one of `ranks_on_host` ranks may take of `available` bytes: an equal share of what
/// remains after reserving 10 GiB, or half if that is less, for the rest of the machine.
/// @pre ranks_on_host > 0
uint64_t host_memory_budget(uint64_t available, uint32_t ranks_on_host) noexcept;

/// Rejects a size that the machine or the process's control group cannot back now
/// (available_memory), so that the user gets a message instead of an out-of-memory kill. Free huge
/// pages of the kernel's pools do not count as available. Accepts all if the kernel reports
/// nothing.
/// @returns io_failure with the size, what is available, and what was kept back and shared.
/// @pre ranks_on_host > 0
result<void> check_memory_available(uint64_t bytes, uint32_t ranks_on_host);

/// Page sizes.
enum class memory_pages : uint8_t { gigabyte, two_megabytes, plain };

/// A mapping of zeroed, resident memory for L2; unmapped with the object unless adopted. Move-only.
class host_mapping {
public:
  /// Maps `bytes` bytes in the largest pages available (hugetlb pages of 1 GiB and 2 MiB if enough
  /// are free, else plain ones with transparent huge pages requested) and makes them resident, on
  /// several threads.
  /// @param numa_node Preferred node, if any. A missing or full node is not an error.
  /// @returns io_failure with the sentence of check_memory_available, unless free huge pages
  /// suffice, or with the kernel's error.
  /// @pre bytes > 0
  static result<host_mapping> create(uint64_t bytes, std::optional<int> numa_node,
                                     const host_memory_options& options);

  /// Adopts a part of a mapping that others may share, such as a memfd, and makes it resident like
  /// create(), in plain pages. It stays mapped when the object goes.
  /// @returns io_failure with a sentence
  /// @pre memory is not empty, aligned to a plain page, and untouched
  static result<host_mapping> adopt(std::span<std::byte> memory, std::optional<int> numa_node,
                                    const host_memory_options& options);

  std::span<std::byte> bytes() const noexcept {
    return memory_ ? memory_.bytes().first(requested_) : adopted_;
  }

  memory_pages pages() const noexcept { return pages_; }

  /// "2 MiB huge pages on NUMA node 0".
  std::string description() const;

private:
  host_mapping(unique_mapping memory, uint64_t requested, std::span<std::byte> adopted,
               memory_pages pages) noexcept
    : memory_(std::move(memory)), requested_(requested), adopted_(adopted), pages_(pages) {}

  /// Whole pages, of which these bytes were requested.
  unique_mapping memory_;
  uint64_t requested_ = 0;
  /// Memory of somebody else, instead.
  std::span<std::byte> adopted_;
  memory_pages pages_ = memory_pages::plain;
  std::optional<int> node_;
};

/// CPU-addressable memory.
class mapped_memory : public device_memory {
public:
  std::byte* data() noexcept final { return bytes_.data(); }

  uint64_t size() const noexcept final { return bytes_.size(); }

  result<void> write(uint64_t offset, std::span<const std::byte> bytes) final;

  result<void> read(uint64_t offset, std::span<std::byte> bytes) const final;

protected:
  explicit mapped_memory(std::span<std::byte> bytes) : bytes_(bytes) {}

private:
  std::span<std::byte> bytes_;
};

/// Allocates L2 memory for CPU use only: a host_mapping. Errors as for its create().
/// @pre bytes > 0
result<std::unique_ptr<device_memory>> allocate_host_memory(uint64_t bytes,
                                                            const host_memory_options& options);

/// The same with the caller's memory: host_mapping::adopt().
result<std::unique_ptr<device_memory>> adopt_host_memory(std::span<std::byte> memory,
                                                         const host_memory_options& options);

/// Allocates L1 memory of the host device: zeroed, resident, shareable with other processes.
/// @returns io_failure with a sentence.
/// @pre bytes > 0
result<std::unique_ptr<device_memory>> allocate_shared_memory(uint64_t bytes);

/// Opens memory that allocate_shared_memory made in another process, by the text of its share().
/// Readable and writable; outlives the owner's use.
/// @returns invalid_argument if the text is not from share(), io_failure if the memory is gone or
/// differs.
result<std::unique_ptr<device_memory>> open_shared_memory(std::string_view shared);

} // namespace hicache
