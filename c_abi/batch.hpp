#pragma once

#include "backends/node_client.hpp"
#include "hicache.h"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "hicache/storage_backend.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace hicache {

/// Pages that a client has pinned.
struct pinned_pages {
  leased_view view;
  std::map<page_key, size_t> positions;
  bool in_place = false;
};

class block_copy;

/// A call of the C ABI in the runtime's own terms. The memory of its parts, and of its codes, is
/// the caller's.
struct batch {
  enum class kind { put, get, lookup, prefetch, pin, remove, store, load };

  kind what = kind::lookup;
  hc_ticket ticket = 0;
  void* user = nullptr;
  time_point deadline;
  bool is_chain = false;
  bool in_place = false;
  int32_t* codes = nullptr;
  /// Where to read, if not from the node.
  std::shared_ptr<const pinned_pages> from;
  /// Of these, the one that fits `what`.
  std::vector<page_write> writes;
  std::vector<page_read> reads;
  std::vector<page_key> keys;
  /// Of `store` and `load`: what copies the blocks of the keys.
  std::shared_ptr<block_copy> blocks;

  size_t size() const noexcept { return writes.size() + reads.size() + keys.size(); }
};

/// Whether a call may have so many pages.
/// @returns invalid_argument with a sentence
result<void> check_page_count(size_t count);

/// What a caller said of a batch, with the pages that it names.
/// @returns invalid_argument or unsupported, with a sentence
/// @param now The call's time runs from here.
result<batch> make_batch(batch::kind what, std::span<const hc_page> pages, const hc_call& call,
                         time_point now);

/// @copydoc make_batch
result<batch> make_batch(batch::kind what, std::span<const hc_key> keys, const hc_call& call,
                         time_point now);

page_key key_of(const hc_key& key);

/// A time that a caller gave.
time_point deadline_after(time_point now, uint32_t timeout_ms);

/// Says how it went, in the caller's terms; writes its codes.
/// @pre one outcome for each page
hc_completion complete(const batch& done, std::span<const result<void>> outcome);

/// Tells the caller what was wrong.
/// @returns its code
int32_t report(const error& what, hc_error* to) noexcept;

} // namespace hicache
