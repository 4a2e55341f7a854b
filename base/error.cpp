#include "hicache/error.hpp"

#include <array>
#include <cstddef>

namespace hicache {

namespace {

struct entry {
  const char* name;
  const char* sentence;
};

constexpr std::array<entry, ec_count> entries = {{
  {"none", "no error"},
  {"invalid_argument", "a value is not allowed"},
  {"out_of_device_pages", "the device pool has not enough pages, even after eviction"},
  {"out_of_host_pages", "the host pool has not enough pages, even after eviction"},
  {"unknown_id", "the request, node or operation is not known"},
  {"ranks_diverged", "the ranks of the instance hold different trees"},
  {"rank_unresponsive", "a rank did not take part in a reduction in time"},
  {"not_found", "the page is not in the store"},
  {"corrupt_page", "a stored page failed verification"},
  {"deadline_exceeded", "the deadline passed first"},
  {"store_full", "the store has no room and nothing it may evict"},
  {"io_failure", "the operating system refused a read, write, map or allocation"},
  {"peer_unreachable", "a peer process cannot be reached"},
  {"malformed_message", "received bytes do not decode to the expected message"},
  {"limit_reached", "a fixed bound was reached"},
  {"unsupported", "this backend, device or build does not offer the operation"},
  {"stopping", "the part that should answer is shutting down"},
  {"configuration_mismatch", "the ranks were started with different settings"},
  {"copy_failed", "the copy engine reported a failure"},
  {"device_lost", "the device takes no copies any more"},
  {"store_unavailable", "the store is suspended for a while because its calls failed"},
  {"not_permitted", "the role in the client's certificate does not allow it"},
}};

const entry& lookup(ec code) noexcept {
  static constexpr auto unknown = entry{"unknown_error", "an error code of a newer version"};
  const auto i = static_cast<size_t>(code);
  return i < entries.size() ? entries[i] : unknown;
}

} // namespace

const char* to_string(ec code) noexcept {
  return lookup(code).name;
}

const char* sentence(ec code) noexcept {
  return lookup(code).sentence;
}

std::string to_string(const error& err) {
  return std::string{to_string(err.code)} + ": "
         + (err.detail.empty() ? std::string{sentence(err.code)} : err.detail);
}

} // namespace hicache
