#include "backends/ask.hpp"
#include "backends/cluster/segment_memory.hpp"
#include "base/about.hpp"
#include "base/page_checksum.hpp"
#include "base/random_number.hpp"
#include "base/try.hpp"
#include "cache/handoff/handoff_exports.hpp"
#include "cache/hash/page_hash.hpp"
#include "hicache/handoff.hpp"
#include "hicache/runtime.hpp"
#include "messages/page_header.hpp"
#include "runtime/cluster_member.hpp"
#include "runtime/handoff_messages.hpp"
#include "transport/gather.hpp"
#include "transport/memory_sharing.hpp"
#include "transport/page_channel.hpp"
#include "transport/shared_memory.hpp"

#include <atomic>
#include <utility>

namespace hicache {

namespace {

/// 64-bit words in which a rank tells the others its endpoint: two names and a number.
constexpr auto endpoint_words = size_t{128};

/// Sends only bytes of the object that the reader names, which follows its header.
bool is_part_of_slot(const range_claim& claim, uint64_t head_offset, const range_head& head,
                     uint64_t offset, uint64_t length) {
  const auto header = decode_page_header(head);
  return header && range_claim{header->key, header->generation} == claim
         && offset >= head_offset + slot_object_offset
         && offset - head_offset - slot_object_offset <= header->length
         && length <= header->length - (offset - head_offset - slot_object_offset);
}

class sender_impl final : public handoff_sender {
public:
  sender_impl(rank_runtime& runtime, const rank_config& config, shared_memory memory)
    : pool_(runtime.device_buffers()), fingerprint_(fingerprint_of(config.fingerprint())),
      memory_(std::move(memory)),
      exports_(pool_.shape, config.kv_heads, runtime.ranks(), memory_.size()) {}

  result<void> serve(const rank_config& config) {
    offer_ = HICACHE_TRY(memory_offer::start(memory_));
    server_ = HICACHE_TRY(about(
      "--listen-host", page_server::start(memory_.bytes(), is_part_of_slot, config.listen_host,
                                          member_network(config.page_transport, config.tls))));
    return {};
  }

  /// Tells all ranks of the instance where each can be read.
  result<void> introduce(rank_runtime& runtime, const rank_config& config) {
    const auto mine
      = std::vector<std::string>{server_->address(), offer_->name(), std::to_string(nonce_)};
    auto values = gather_offer(runtime.rank(), runtime.ranks(), text_offer(mine, endpoint_words));
    const auto all = HICACHE_TRY(
      ask<reduced>(runtime.system(), runtime.rank_reduction(), caf::timespan{config.step_timeout},
                   atom::reduce_v, reduction{reduction_channel::engine, std::move(values)}));
    for (const auto& row : gathered(runtime.ranks(), all.values)) {
      const auto texts = offered_texts(row);
      senders_.push_back({texts.at(0), texts.at(1), std::stoull(texts.at(2))});
    }
    return {};
  }

  result<std::string> open(const handoff_request& wanted) override {
    const auto opened
      = exports_.open(wanted.handoff, wanted.first_page, wanted.tokens, wanted.receiver_ranks);
    used_bytes_ = exports_.used_bytes();
    const auto* const made = HICACHE_TRY(opened);
    return to_line(handoff_offer{wanted.handoff, made->generation, made->place.offset,
                                 wanted.first_page, wanted.tokens, wanted.receiver_ranks,
                                 fingerprint_, senders_});
  }

  std::string announce(uint64_t handoff, uint32_t layer) const override {
    return to_line(handoff_progress{layer, exports_.find(handoff)->staged[layer]});
  }

  void stage(uint64_t handoff, uint32_t layer, std::span<const page_index> pages,
             uint64_t tokens) override {
    const auto range = exports_.stage(handoff, layer, tokens);
    const auto& which = *exports_.find(handoff);
    for (auto page = range.first; page < range.end; ++page) {
      const auto rows
        = handoff_row_count(which.tokens, which.first_page + page, pool_.shape.page_size);
      for (auto object = uint32_t{0}; object < which.cut.objects(); ++object) {
        const auto from = handoff_rows(pool_, layer, pages[which.first_page + page],
                                       which.cut.heads_of(object), rows);
        const auto number = which.place.slot(layer, page, object);
        auto slot = segment_slot{};
        slot.key = handoff_key(nonce_, handoff, number);
        slot.offset = which.place.begin(number);
        slot.generation = which.generation;
        slot.length
          = static_cast<uint32_t>(handoff_object_bytes(pool_.shape, which.cut.heads(), rows));
        const auto parts = std::vector<std::span<const std::byte>>(from.begin(), from.end());
        const auto checksum = gather_object(parts, object_of(memory_.bytes(), slot));
        seal_slot(memory_.bytes(), slot, fingerprint_, checksum);
      }
    }
  }

  void close(uint64_t handoff) override {
    const auto* const which = exports_.find(handoff);
    if (which == nullptr)
      return;
    for (auto slot = uint64_t{0}; slot < which->slots(); ++slot)
      clear_header(memory_.bytes(), which->place.begin(slot));
    exports_.close(handoff);
    used_bytes_ = exports_.used_bytes();
  }

  uint64_t used_bytes() const noexcept override { return used_bytes_; }

private:
  const device_layers pool_;
  const uint64_t fingerprint_;
  const uint64_t nonce_ = random_number();
  shared_memory memory_;
  handoff_exports exports_;
  std::vector<handoff_endpoint> senders_;
  std::atomic<uint64_t> used_bytes_ = 0;
  std::unique_ptr<memory_offer> offer_;
  std::unique_ptr<page_server> server_;
};

} // namespace

result<std::unique_ptr<handoff_sender>>
handoff_sender::start(rank_runtime& runtime, const rank_config& config, uint64_t bytes) {
  if (!runtime.device_is_host_addressable())
    return fail(ec::unsupported, "handoffs need an L1 that the CPU can address");
  // Whole cache lines.
  auto memory = HICACHE_TRY(
    about("memory for handoffs", shared_memory::create(bytes / 64 * 64, "hicache-handoff")));
  auto made = std::make_unique<sender_impl>(runtime, config, std::move(memory));
  HICACHE_TRY(made->serve(config));
  HICACHE_TRY(made->introduce(runtime, config));
  return made;
}

} // namespace hicache
