#pragma once

#include "backends/object_parts.hpp"
#include "backends/redis/redis_object.hpp"
#include "base/page_checksum.hpp"
#include "hicache/storage_backend.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace hicache {

/// Puts the untrusted values of one object into the parts of a read, and verifies them. Does no
/// I/O: its user asks for the values `0 … chunks() - 1`, in order, in one pass or two. The first
/// pass assumes that the object lies in chunks of our size.
class object_reader {
public:
  /// @param page Must outlive this.
  object_reader(const page_read& page, std::optional<uint64_t> fingerprint, uint64_t chunk_bytes,
                part_lengths rule)
    : page_(page), rule_(rule), fingerprint_(fingerprint), length_(total_bytes(page.parts)),
      chunk_bytes_(chunk_bytes) {}

  /// Values to ask for.
  uint32_t chunks() const noexcept {
    return static_cast<uint32_t>(redis_chunks(length_, chunk_bytes_));
  }

  /// Their bytes.
  uint64_t expected_bytes() const noexcept { return redis_head_bytes + length_; }

  /// Begins with the first value again, as after a broken connection.
  void begin_pass() {
    head_.reset();
    trouble_.reset();
    next_ = 0;
    needs_another_pass_ = false;
  }

  /// Takes a value. One that does not exist is left out.
  void take(uint32_t chunk, std::span<const std::byte> value) {
    if (chunk == 0) {
      begin_pass();
      take_head(value);
      return;
    }
    if (trouble_ || !head_ || needs_another_pass_ || chunk != next_ || chunk >= head_->chunks)
      return;
    if (value.size() != redis_chunk_length(*head_, chunk)) {
      trouble_ = error{ec::corrupt_page, "a value of another length than its head says"};
      return;
    }
    copy(chunk, value);
  }

  /// Whether the object lies in chunks of another size, which `chunks()` now tells.
  bool needs_another_pass() const noexcept { return needs_another_pass_; }

  /// Whether the first value is there.
  bool has_head() const noexcept { return head_.has_value() || trouble_.has_value(); }

  /// The object's length.
  /// @returns not_found if a value is missing; corrupt_page; invalid_argument
  result<uint64_t> outcome() const {
    if (trouble_)
      return tl::unexpected{*trouble_};
    if (!head_ || next_ != head_->chunks)
      return fail(ec::not_found);
    if (sum_.value() != head_->page.checksum)
      return fail(ec::corrupt_page, "the checksum of the object does not match");
    return length_;
  }

private:
  void take_head(std::span<const std::byte> value) {
    const auto head = decode_redis_head(value, page_.key, fingerprint_);
    if (!head) {
      trouble_ = head.error();
      return;
    }
    if (value.size() - redis_head_bytes != redis_chunk_length(*head, 0)) {
      trouble_ = error{ec::corrupt_page, "a value of another length than its head says"};
      return;
    }
    if (auto fits = check_room(head->page.length, length_, rule_); !fits) {
      trouble_ = fits.error();
      return;
    }
    head_ = *head;
    length_ = head->page.length;
    needs_another_pass_ = head->chunks > 1 && head->chunk_bytes != chunk_bytes_;
    chunk_bytes_ = head->chunk_bytes;
    sum_ = {};
    copy(0, value.subspan(redis_head_bytes));
  }

  void copy(uint32_t chunk, std::span<const std::byte> bytes) {
    sum_.copy(bytes,
              part_of<std::byte>(page_.parts, uint64_t{chunk} * head_->chunk_bytes, bytes.size()));
    next_ = chunk + 1;
  }

  const page_read& page_;
  const part_lengths rule_;
  std::optional<uint64_t> fingerprint_;
  /// Of the parts, then of the object.
  uint64_t length_;
  uint64_t chunk_bytes_;
  std::optional<redis_head> head_;
  std::optional<error> trouble_;
  running_checksum sum_;
  /// The value that belongs behind those copied so far.
  uint32_t next_ = 0;
  bool needs_another_pass_ = false;
};

} // namespace hicache
