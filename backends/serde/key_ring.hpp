#pragma once

#include "backends/serde/aes_gcm.hpp"
#include "hicache/error.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

namespace hicache::serde {

/// The keys of tenants. Immutable; any thread.
class key_ring {
public:
  struct named_key {
    std::string id;
    secret_key key;
  };

  /// No keys.
  key_ring() = default;

  /// Parses lines of the form `TENANT KEY-ID KEY`, separated by spaces or tabs. TENANT is the salt
  /// of the tenant's requests (cache_namespace::salt; may contain spaces), or `*`: all tenants that
  /// have no line of their own, and requests without a salt. KEY is 64 hexadecimal digits. A
  /// tenant's last line has the key for new objects; objects under the keys of its other lines stay
  /// readable. Empty lines, and those that begin with '#', are skipped.
  /// @returns invalid_argument with the number of the line, never with its content
  static result<key_ring> parse(std::string_view text);

  /// The key with a name; null if there is none.
  const secret_key* find(std::string_view id) const noexcept;

  /// The key for new objects of a tenant (page_write::tenant); null if it has none.
  const named_key* newest(uint64_t tenant) const noexcept;

  size_t size() const noexcept { return keys_.size(); }

private:
  result<void> add_line(std::string_view line);

  /// By id. References to entries stay valid.
  std::map<std::string, named_key, std::less<>> keys_;
  std::unordered_map<uint64_t, const named_key*> newest_;
  const named_key* newest_of_others_ = nullptr;
};

/// Longest text of keys in bytes: some ten thousand lines.
inline constexpr size_t key_text_bytes = size_t{1} << 20;

} // namespace hicache::serde
