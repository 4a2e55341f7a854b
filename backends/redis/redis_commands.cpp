#include "backends/redis/redis_commands.hpp"

#include "backends/object_parts.hpp"

namespace hicache {

void redis_commands::add_text(std::string_view text) {
  if (pieces_.empty() || pieces_.back().payload != nullptr)
    pieces_.emplace_back();
  pieces_.back().size += text.size();
  text_ += text;
}

void redis_commands::add_word(std::string_view word) {
  add_text("$" + std::to_string(word.size()) + "\r\n");
  add_text(word);
  add_text("\r\n");
}

void redis_commands::add(std::span<const std::string_view> words) {
  add_text("*" + std::to_string(words.size()) + "\r\n");
  for (const auto word : words)
    add_word(word);
  ++count_;
}

void redis_commands::add_set(std::string_view name, std::span<const std::byte> head,
                             std::span<const std::span<const std::byte>> payload,
                             std::chrono::milliseconds ttl) {
  const auto has_ttl = ttl.count() > 0;
  const auto size = head.size() + length_of(payload);
  add_text(has_ttl ? "*5\r\n" : "*3\r\n");
  add_word("SET");
  add_word(name);
  add_text("$" + std::to_string(size) + "\r\n");
  if (!head.empty())
    add_text({reinterpret_cast<const char*>(head.data()), head.size()});
  for (const auto& part : payload)
    if (!part.empty())
      pieces_.push_back({part.data(), part.size()});
  add_text("\r\n");
  if (has_ttl) {
    add_word("PX");
    add_word(std::to_string(ttl.count()));
  }
  ++count_;
}

void redis_commands::append_to(std::vector<iovec>& pieces) const {
  auto* text = const_cast<char*>(text_.data());
  for (const auto& each : pieces_) {
    if (each.payload != nullptr) {
      pieces.push_back({const_cast<std::byte*>(each.payload), each.size});
      continue;
    }
    pieces.push_back({text, each.size});
    text += each.size;
  }
}

} // namespace hicache
