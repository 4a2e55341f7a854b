#include "cache/handoff/handoff_exports.hpp"

#include "base/check.hpp"
#include "messages/page_header.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace hicache {

page_key handoff_key(uint64_t nonce, uint64_t handoff, uint64_t slot) noexcept {
  auto key = page_key{};
  auto* to = key.bytes.data();
  for (const auto word : {nonce, handoff, slot}) {
    std::memcpy(to, &word, sizeof word);
    to += sizeof word;
  }
  return key;
}

handoff_exports::handoff_exports(const pool_shape& shape, uint32_t heads, uint32_t ranks,
                                 uint64_t bytes)
  : shape_(shape), heads_(heads), ranks_(ranks), extents_(bytes) {}

result<const handoff_exports::open_handoff*> handoff_exports::open(uint64_t handoff,
                                                                   uint64_t first_page,
                                                                   uint64_t tokens,
                                                                   uint32_t receiver_ranks) {
  const auto cut = handoff_cut::between(heads_, ranks_, receiver_ranks);
  if (!cut)
    return fail(ec::invalid_argument, "a receiver of " + std::to_string(receiver_ranks)
                                        + " ranks; expected a number that divides the model's "
                                        + std::to_string(heads_) + " KV heads, or a multiple");
  const auto pages = handoff_page_count(tokens, first_page, shape_.page_size);
  if (pages == 0 || open_.contains(handoff))
    return fail(ec::invalid_argument,
                pages == 0 ? "the receiver has the whole prompt" : "the handoff is open already");
  const auto slot = slot_bytes_for(handoff_object_bytes(shape_, cut->heads(), shape_.page_size));
  const auto slots = pages * shape_.layers * cut->objects();
  // Divided, because the number of tokens comes from another process.
  if (slots > extents_.capacity() / slot)
    return fail(ec::invalid_argument, "a prompt of " + std::to_string(tokens)
                                        + " tokens does not fit into the memory for handoffs");
  const auto offset = extents_.take(slots * slot);
  if (!offset)
    return fail(ec::limit_reached, "the memory for handoffs is occupied");
  auto made = open_handoff{
    {*offset, slot, pages, cut->objects()}, *cut, ++last_generation_, first_page, tokens,
    std::vector<uint64_t>(shape_.layers)};
  return &open_.emplace(handoff, std::move(made)).first->second;
}

handoff_exports::page_range handoff_exports::stage(uint64_t handoff, uint32_t layer,
                                                   uint64_t tokens) {
  const auto at = open_.find(handoff);
  HICACHE_CHECK(at != open_.end() && layer < shape_.layers);
  auto& which = at->second;
  // The last page is complete with the prompt.
  const auto whole = tokens / shape_.page_size;
  const auto end = tokens >= which.tokens     ? which.place.pages
                   : whole > which.first_page ? whole - which.first_page
                                              : 0;
  auto& staged = which.staged[layer];
  return {std::exchange(staged, std::max(staged, end)), std::max(staged, end)};
}

const handoff_exports::open_handoff* handoff_exports::find(uint64_t handoff) const {
  const auto at = open_.find(handoff);
  return at == open_.end() ? nullptr : &at->second;
}

void handoff_exports::close(uint64_t handoff) {
  const auto at = open_.find(handoff);
  if (at == open_.end())
    return;
  const auto& gone = at->second;
  extents_.give_back(gone.place.offset, gone.slots() * gone.place.slot_bytes);
  open_.erase(at);
}

} // namespace hicache
