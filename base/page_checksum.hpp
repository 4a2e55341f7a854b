#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace hicache {

/// XXH3-64 over the concatenation of the parts: the checksum of a page header.
uint64_t page_checksum(std::span<const std::span<const std::byte>> parts);

/// @copydoc page_checksum
uint64_t page_checksum(std::span<const std::span<std::byte>> parts);

/// The same checksum, computed incrementally.
class running_checksum {
public:
  running_checksum();

  void add(std::span<const std::byte> bytes);

  /// Adds the bytes and copies them, in one pass, to the parts, starting at byte `skip` of the
  /// first.
  /// @pre the parts have room for them
  void copy(std::span<const std::byte> bytes, std::span<const std::span<std::byte>> parts,
            size_t skip = 0);

  uint64_t value() const;

private:
  struct free_state {
    void operator()(XXH3_state_s* state) const noexcept;
  };

  std::unique_ptr<XXH3_state_s, free_state> state_;
};

/// Copies the parts into one object, in one pass.
/// @returns its checksum
/// @pre the object has the total length of the parts
uint64_t gather_object(std::span<const std::span<const std::byte>> parts,
                       std::span<std::byte> object);

/// Copies an object to its parts, in one pass.
/// @returns its checksum
/// @pre the parts have the object's length
uint64_t copy_object(std::span<const std::byte> object,
                     std::span<const std::span<std::byte>> parts);

} // namespace hicache
