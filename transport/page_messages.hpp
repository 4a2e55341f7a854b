#pragma once

#include "base/limits.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

/// What page_client and page_server say to each other, as active messages. Internal to transport/.
/// Fields travel in the machine's byte order.
namespace hicache {

static_assert(std::endian::native == std::endian::little,
              "hosts exchange these structs as they are in memory");

/// Numbers of the active messages.
enum page_message : unsigned { page_request_message = 1, page_reply_message = 2 };

/// Changes when these structs do, so that different versions refuse each other.
inline constexpr uint32_t page_protocol = 0x48435031;

/// Header of a request; `count` page_spans follow as its data.
struct page_request_head {
  uint32_t protocol = page_protocol;
  uint32_t count = 0;
  uint64_t id = 0;
};

/// A piece of the owner's memory, in bytes.
struct page_span {
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// Header of a reply; the bytes of the spans follow as its data, without gaps. Nothing follows if
/// status is not 0.
struct page_reply_head {
  uint32_t protocol = page_protocol;
  /// An `ec`.
  uint32_t status = 0;
  uint64_t id = 0;
};

/// Buffers of limits::transfer_bytes, kept for reuse: their pages are faulted in once. Not
/// thread-safe.
class staging_pool {
public:
  using buffer = std::unique_ptr<std::byte[]>;

  buffer take() {
    if (spare_.empty())
      return std::make_unique_for_overwrite<std::byte[]>(limits::transfer_bytes);
    auto taken = std::move(spare_.back());
    spare_.pop_back();
    return taken;
  }

  void give_back(buffer used) {
    if (used && spare_.size() < limits::transfers_in_flight)
      spare_.push_back(std::move(used));
  }

private:
  std::vector<buffer> spare_;
};

} // namespace hicache
