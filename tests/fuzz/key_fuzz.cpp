// Serialized keys: what op logs say of tokens and namespaces, how namespaces are framed, how pages
// are named.

#include "base/check.hpp"
#include "cache/hash/page_hash.hpp"
#include "cache/oplog/op_log.hpp"
#include "cache/prefix/cache_event.hpp"
#include "tests/cache/page_keys.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace hicache;

/// Takes an input apart.
class byte_reader {
public:
  explicit byte_reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  uint8_t byte() {
    const auto value = bytes_.empty() ? uint8_t{0} : bytes_.front();
    bytes_ = bytes_.subspan(bytes_.empty() ? 0 : 1);
    return value;
  }

  std::string text() {
    const auto size = std::min<size_t>(byte() % 16, bytes_.size());
    auto taken = std::string{bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(size)};
    bytes_ = bytes_.subspan(size);
    return taken;
  }

  std::vector<token_id> rest() {
    auto tokens = std::vector<token_id>{};
    for (; bytes_.size() >= sizeof(token_id); bytes_ = bytes_.subspan(sizeof(token_id)))
      std::memcpy(&tokens.emplace_back(), bytes_.data(), sizeof(token_id));
    return tokens;
  }

private:
  std::span<const uint8_t> bytes_;
};

/// What was read is written such that it reads the same.
void check_round_trip(std::string_view line) {
  const auto entry = parse_op_log_entry(line);
  if (!entry)
    return;
  const auto written = to_line(*entry);
  const auto again = parse_op_log_entry(written);
  HICACHE_CHECK(again && to_line(*again) == written && agree(*entry, *again));
}

void check_namespaces(const cache_namespace& a, const cache_namespace& b) {
  HICACHE_CHECK((namespace_seed(a) == namespace_seed(b)) == (a == b));
  HICACHE_CHECK(namespace_seed(a).has_value() == (a != cache_namespace{}));
}

void check_event_id(const page_key& key) {
  auto expected = uint64_t{0};
  for (auto i = 0; i < 8; ++i)
    expected = expected << 8 | key.bytes[static_cast<size_t>(i)];
  HICACHE_CHECK(event_id(key) == static_cast<int64_t>(expected));
}

/// Names do not depend on how many pages are named at a time.
void check_chain(const std::vector<token_id>& tokens, uint32_t size, uint32_t overlap,
                 uint64_t first_pages, const cache_namespace& ns) {
  const auto seed = namespace_seed(ns);
  const auto* start = seed ? &*seed : nullptr;
  const auto whole = hash_pages(tokens, size, start, overlap);
  HICACHE_CHECK(whole.size() == (std::max<size_t>(tokens.size(), overlap) - overlap) / size);
  const auto cut = std::min<uint64_t>(first_pages, whole.size());
  const auto all = std::span{tokens};
  auto parts
    = hash_pages(all.first(std::min(cut * size + overlap, all.size())), size, start, overlap);
  HICACHE_CHECK(parts.size() == cut);
  const auto rest
    = hash_pages(all.subspan(cut * size), size, cut == 0 ? start : &parts.back(), overlap);
  parts.insert(parts.end(), rest.begin(), rest.end());
  HICACHE_CHECK(parts == whole);
  if (overlap == 0 && !whole.empty())
    HICACHE_CHECK(whole.front() == hash_page(all.first(size), start));
  for (const auto& key : whole)
    check_event_id(key);
}

/// Two prefixes share as many pages as they share names.
void check_common_prefix(const std::vector<token_id>& tokens, uint32_t size, bool bigram,
                         size_t changed, const cache_namespace& ns) {
  auto other = tokens;
  if (changed < other.size())
    ++other[changed];
  const auto key = [&](const std::vector<token_id>& of) {
    return test::prefix_key{ns, std::make_shared<const std::vector<token_id>>(of), of.size(),
                            bigram};
  };
  const auto common = common_prefix(key(tokens), key(other), size);
  HICACHE_CHECK(common && *common == *common_prefix(key(other), key(tokens), size));
  const auto a = hash_pages(tokens, size, nullptr, bigram ? 1 : 0);
  const auto b = hash_pages(other, size, nullptr, bigram ? 1 : 0);
  const auto equal = std::ranges::mismatch(a, b).in1 - a.begin();
  HICACHE_CHECK(*common == static_cast<uint64_t>(equal) * size);
  HICACHE_CHECK(key(tokens).page_aligned(size).units() == a.size() * size);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0 && data[0] == '{') {
    check_round_trip({reinterpret_cast<const char*>(data), size});
    return 0;
  }
  auto reader = byte_reader{{data, size}};
  const auto kind = reader.byte();
  const auto page_size = uint32_t{1} << (kind & 7);
  const auto is_bigram = (kind & 8) != 0;
  const auto place = reader.byte();
  const auto a = cache_namespace{reader.text(), reader.text()};
  const auto b = cache_namespace{reader.text(), reader.text()};
  const auto tokens = reader.rest();
  check_namespaces(a, b);
  check_chain(tokens, page_size, is_bigram ? 1 : 0, place, a);
  check_common_prefix(tokens, page_size, is_bigram, place, b);
  return 0;
}
