#pragma once

#include "base/check.hpp"
#include "hicache/ids.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace hicache {

/// Tokens inside a shared immutable buffer. Parts of a span share the buffer. A value; any thread.
class token_span {
public:
  token_span() = default;

  /// Shares `buffer`, but copies the part if it is less than half of the buffer. Otherwise a
  /// conversation that submits all tokens again with every turn would keep all these buffers alive.
  token_span(const token_buffer& buffer, size_t offset, size_t size)
    : buffer_(buffer), data_(buffer->data() + offset), size_(size) {
    HICACHE_CHECK(offset + size <= buffer->size());
    if (size < buffer->size() / 2) {
      const auto part = std::span{*buffer}.subspan(offset, size);
      buffer_ = std::make_shared<const std::vector<token_id>>(part.begin(), part.end());
      data_ = buffer_->data();
    }
  }

  const token_id* data() const noexcept { return data_; }

  size_t size() const noexcept { return size_; }

  std::span<const token_id> view() const noexcept { return {data(), size_}; }

  /// Cuts the span at `at` and returns the front part, with the first `overlap` tokens of the rest.
  token_span cut_front(size_t at, size_t overlap = 0) noexcept {
    auto front = *this;
    front.size_ = at + overlap;
    data_ += at;
    size_ -= at;
    return front;
  }

  /// True if `next` begins in the same buffer with the last `overlap` tokens of this span.
  bool continues_in(const token_span& next, size_t overlap) const noexcept {
    return buffer_ == next.buffer_ && data_ + size_ - overlap == next.data_;
  }

  /// Extends the span to the front. @pre front.continues_in(*this, overlap)
  void prepend(const token_span& front, size_t overlap) noexcept {
    data_ = front.data_;
    size_ += front.size_ - overlap;
  }

  /// Keeps the first `size` tokens.
  void truncate(size_t size) noexcept { size_ = size; }

private:
  token_buffer buffer_;
  /// Points into the buffer. Cached because every step of a walk needs it.
  const token_id* data_ = nullptr;
  size_t size_ = 0;
};

} // namespace hicache
