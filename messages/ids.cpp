#include "messages/ids.hpp"

namespace hicache {

std::string to_string(const page_key& key) {
  static constexpr char digits[] = "0123456789abcdef";
  auto text = std::string{};
  text.reserve(2 * key.bytes.size());
  for (const auto byte : key.bytes) {
    text.push_back(digits[byte >> 4]);
    text.push_back(digits[byte & 15]);
  }
  return text;
}

} // namespace hicache
