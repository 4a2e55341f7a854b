#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hicache {

/// Commands encoded for sending, in order. Payloads are not copied: their memory must outlive this.
class redis_commands {
public:
  void add(std::span<const std::string_view> words);

  void add(std::initializer_list<std::string_view> words) { add(std::span{words}); }

  /// SET `name` to the concatenation of `head` and the payload.
  /// @param ttl When the server forgets it; 0: never.
  void add_set(std::string_view name, std::span<const std::byte> head,
               std::span<const std::span<const std::byte>> payload, std::chrono::milliseconds ttl);

  /// Commands, and so replies.
  size_t count() const noexcept { return count_; }

  /// Appends what to send. Valid until the next `add`.
  void append_to(std::vector<iovec>& pieces) const;

private:
  struct piece {
    /// Null: `size` bytes of `text_`, behind those of the pieces before.
    const std::byte* payload = nullptr;
    size_t size = 0;
  };

  void add_text(std::string_view text);
  void add_word(std::string_view word);

  std::string text_;
  std::vector<piece> pieces_;
  size_t count_ = 0;
};

} // namespace hicache
