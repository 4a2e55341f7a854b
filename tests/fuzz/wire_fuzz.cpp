// Messages between processes: the first byte says what the rest is to be decoded as. What decodes
// has a size that its bytes account for, and encodes to something that decodes to the same.

#include "base/check.hpp"
#include "messages/wire.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace {

using namespace hicache;

template <class T>
void check(std::span<const uint64_t> words) {
  const auto value = wire::codec<T>::decode(words);
  if (!value) {
    HICACHE_CHECK(value.error().code == ec::malformed_message);
    return;
  }
  const auto again = wire::codec<T>::decode(wire::codec<T>::encode(*value));
  HICACHE_CHECK(again && *again == *value);
}

constexpr auto checks = std::array{
  check<member_info>,    check<shard_map>,       check<membership>,      check<heartbeat>,
  check<key_batch>,      check<published_pages>, check<withdrawn_pages>, check<placements>,
  check<member_query>,   check<member_list>,     check<status_query>,    check<index_status>,
  check<page_totals>,    check<page_pins>,       check<namespace_pages>, check<page_copies>,
  check<page_recall>,    check<drain_request>,   check<drain_report>,    check<drain_progress>,
  check<client_info>,    check<node_info>,       check<wanted_pages>,    check<reserved_pages>,
  check<complete_pages>, check<client_ticket>,   check<page_lookup>,     check<leased_pages>,
  check<page_prefetch>,  check<node_status>,     check<awaited_pages>,   check<store_hello>,
  check<store_welcome>,  check<store_request>,   check<store_answer>,
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  // Whole words, like the frames that arrive.
  auto words = std::vector<uint64_t>((size - 1) / sizeof(uint64_t));
  if (!words.empty())
    std::memcpy(words.data(), data + 1, words.size() * sizeof(words[0]));
  checks[data[0] % checks.size()](words);
  return 0;
}
