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

/// Pages pinned by a client.
struct pinned_pages {
  leased_view view;
  std::map<page_key, size_t> positions;
  bool in_place = false;
};

class block_copy;

/// A call of the C ABI in internal types. The caller owns the memory of its parts and codes.
struct batch {
  enum class kind { put, get, lookup, prefetch, pin, remove, store, load };

  kind what = kind::lookup;
  hc_ticket ticket = 0;
  void* user = nullptr;
  time_point deadline;
  bool is_chain = false;
  bool in_place = false;
  int32_t* codes = nullptr;
  /// The lease to read from instead of the node, or null.
  std::shared_ptr<const pinned_pages> from;
  /// Only the list that matches `what` is used.
  std::vector<page_write> writes;
  std::vector<page_read> reads;
  std::vector<page_key> keys;
  /// For `store` and `load`: copies the blocks of the keys.
  std::shared_ptr<block_copy> blocks;

  size_t size() const noexcept { return writes.size() + reads.size() + keys.size(); }
};

/// Checks that a call may have `count` pages.
/// @returns invalid_argument with a sentence
result<void> check_page_count(size_t count);

/// Builds a batch from the caller's pages and options.
/// @returns invalid_argument or unsupported, with a sentence
/// @param now Start of the call's time limit.
result<batch> make_batch(batch::kind what, std::span<const hc_page> pages, const hc_call& call,
                         time_point now);

/// @copydoc make_batch
result<batch> make_batch(batch::kind what, std::span<const hc_key> keys, const hc_call& call,
                         time_point now);

page_key key_of(const hc_key& key);

/// The deadline after a caller's timeout, which is capped at an hour.
time_point deadline_after(time_point now, uint32_t timeout_ms);

/// Builds the completion for the caller and writes its codes.
/// @pre one outcome for each page
hc_completion complete(const batch& done, std::span<const result<void>> outcome);

/// The error's detail, or the sentence of its code.
const char* text_of(const error& what) noexcept;

/// Reports a code to the caller.
/// @param text Cut if it is too long.
/// @returns the code
int32_t report(int32_t code, const char* text, hc_error* to) noexcept;

/// Reports an error to the caller.
/// @returns its code
int32_t report(const error& what, hc_error* to) noexcept;

} // namespace hicache
