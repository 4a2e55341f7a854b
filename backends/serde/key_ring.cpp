#include "backends/serde/key_ring.hpp"

#include "cache/hash/page_hash.hpp"

#include <charconv>
#include <utility>

namespace hicache::serde {

namespace {

constexpr auto blanks = std::string_view{" \t\r"};

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos)
    return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

/// Cuts the last word off.
std::string_view take_last_word(std::string_view& text) {
  const auto blank = text.find_last_of(blanks);
  const auto word = blank == std::string_view::npos ? text : text.substr(blank + 1);
  text = trimmed(text.substr(0, text.size() - word.size()));
  return word;
}

bool parse_hex(std::string_view digits, secret_key& key) {
  if (digits.size() != 2 * secret_key::size)
    return false;
  for (auto i = size_t{0}; i < secret_key::size; ++i) {
    const auto* const pair = digits.data() + 2 * i;
    auto byte = uint8_t{0};
    if (std::from_chars(pair, pair + 2, byte, 16).ptr != pair + 2)
      return false;
    key.bytes()[i] = std::byte{byte};
  }
  return true;
}

} // namespace

result<key_ring> key_ring::parse(std::string_view text) {
  auto ring = key_ring{};
  for (auto number = 1; !text.empty(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#')
      continue;
    if (const auto added = ring.add_line(line); !added)
      return fail(ec::invalid_argument,
                  "line " + std::to_string(number) + " of the keys " + added.error().detail);
  }
  if (ring.keys_.empty())
    return fail(ec::invalid_argument, "the keys are empty; expected lines of TENANT KEY-ID KEY");
  return ring;
}

result<void> key_ring::add_line(std::string_view line) {
  auto rest = line;
  const auto digits = take_last_word(rest);
  const auto id = take_last_word(rest);
  if (rest.empty())
    return fail(ec::invalid_argument, "has less than three words; expected TENANT KEY-ID KEY");
  // A key in the wrong place must not be quoted.
  if (!is_key_id(id))
    return fail(ec::invalid_argument, "has no valid name before its key; expected 1 to "
                                        + std::to_string(key_id_bytes)
                                        + " letters, digits, '.', '_' or '-'");
  auto key = secret_key{};
  if (!parse_hex(digits, key))
    return fail(ec::invalid_argument, "does not end with a key; expected "
                                        + std::to_string(2 * secret_key::size)
                                        + " hexadecimal digits");
  const auto [entry, is_new]
    = keys_.try_emplace(std::string{id}, named_key{std::string{id}, std::move(key)});
  if (!is_new)
    return fail(ec::invalid_argument,
                "uses the name '" + std::string{id} + "' again; each key needs its own");
  if (rest == "*")
    newest_of_others_ = &entry->second;
  else
    newest_[tenant_of(rest)] = &entry->second;
  return {};
}

const secret_key* key_ring::find(std::string_view id) const noexcept {
  const auto found = keys_.find(id);
  return found == keys_.end() ? nullptr : &found->second.key;
}

const key_ring::named_key* key_ring::newest(uint64_t tenant) const noexcept {
  const auto found = newest_.find(tenant);
  return found == newest_.end() ? newest_of_others_ : found->second;
}

} // namespace hicache::serde
