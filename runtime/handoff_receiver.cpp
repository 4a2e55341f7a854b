#include "base/check.hpp"
#include "base/page_checksum.hpp"
#include "base/try.hpp"
#include "cache/handoff/handoff_arrival.hpp"
#include "cache/handoff/handoff_exports.hpp"
#include "cache/hash/page_hash.hpp"
#include "hicache/handoff.hpp"
#include "hicache/runtime.hpp"
#include "messages/page_header.hpp"
#include "runtime/cluster_member.hpp"
#include "runtime/handoff_messages.hpp"
#include "transport/memory_sharing.hpp"
#include "transport/page_channel.hpp"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

namespace hicache {

namespace {

/// Pages of one read: enough for a transfer of large pages, and few enough that a cancelled handoff
/// ends soon.
constexpr auto pages_per_read = uint64_t{32};

/// Time limit of one read; a slower one is repeated while the handoff is open.
constexpr auto read_time = std::chrono::seconds{1};

using mapping = std::shared_ptr<const mapped_peer_memory>;

/// Where a handoff goes.
struct arrival_target {
  uint64_t first_page = 0;
  uint64_t tokens = 0;
  /// From the first page on.
  std::vector<page_index> pages;
};

/// Where it comes from.
struct arrival_source {
  handoff_offer offer;
  handoff_place place;
  std::vector<handoff_source> sources;
  /// Of an object.
  uint32_t heads = 1;
  /// By sender rank; null: it is read over the network.
  std::vector<mapping> memories;
};

/// An object to read.
struct wanted_object {
  uint32_t sender = 0;
  range_claim claim;
  uint64_t begin = 0;
  uint64_t bytes = 0;
  std::vector<std::span<std::byte>> targets;
};

/// Compares a header with what is wanted.
result<uint64_t> verified_checksum(const range_head& head, const wanted_object& wanted,
                                   uint64_t fingerprint) {
  const auto header = decode_page_header(head);
  if (!header || range_claim{header->key, header->generation} != wanted.claim)
    return fail(ec::not_found, "the sender has ended the handoff");
  if (header->fingerprint != fingerprint || header->length != wanted.bytes)
    return fail(ec::corrupt_page, "a page of another model or shape");
  return header->checksum;
}

/// Reads an object from mapped memory.
result<void> read_memory(std::span<const std::byte> memory, const wanted_object& wanted,
                         uint64_t fingerprint) {
  if (wanted.begin > memory.size()
      || memory.size() - wanted.begin < slot_object_offset + wanted.bytes)
    return fail(ec::corrupt_page, "outside of its sender's memory");
  auto head = range_head{};
  std::memcpy(head.data(), memory.data() + wanted.begin, head.size());
  // Header before bytes; otherwise bytes of another handoff could be read with it.
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto expected = HICACHE_TRY(verified_checksum(head, wanted, fingerprint));
  const auto checksum
    = copy_object(memory.subspan(wanted.begin + slot_object_offset, wanted.bytes), wanted.targets);
  // The sender clears the header before it reuses the slot.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (std::memcmp(head.data(), memory.data() + wanted.begin, head.size()) != 0)
    return fail(ec::not_found, "the sender has ended the handoff");
  return checksum == expected ? result<void>{} : fail(ec::corrupt_page, "wrong checksum");
}

class receiver_impl final : public handoff_receiver {
public:
  receiver_impl(rank_runtime& runtime, const rank_config& config, std::function<void()> changed,
                std::unique_ptr<page_client> client)
    : pool_(runtime.device_buffers()), heads_(config.kv_heads), rank_(runtime.rank()),
      ranks_(runtime.ranks()), fingerprint_(fingerprint_of(config.fingerprint())),
      is_remote_(config.storage.force_remote_reads), changed_(std::move(changed)),
      client_(std::move(client)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

  void open(uint64_t handoff, uint64_t first_page, uint64_t tokens,
            std::span<const page_index> pages) override {
    const auto own = pages.subspan(std::min(first_page, pages.size()));
    const auto guard = std::lock_guard{mutex_};
    open_.try_emplace(handoff, open_handoff{{first_page, tokens, {own.begin(), own.end()}},
                                            {},
                                            {pool_.shape.layers, own.size()}});
  }

  void hear(uint64_t handoff, std::string_view message) override {
    auto heard = parse_handoff_message(message);
    auto lock = std::unique_lock{mutex_};
    const auto at = open_.find(handoff);
    if (at == open_.end())
      return;
    auto& which = at->second;
    auto why = error{};
    if (!heard)
      why = heard.error();
    else if (const auto* const offer = std::get_if<handoff_offer>(&*heard))
      why = note(which, *offer);
    else if (const auto* const failed = std::get_if<error>(&*heard))
      why = *failed;
    else if (!which.source)
      why = {ec::malformed_message, "the sender has offered nothing yet"};
    else if (const auto* const last = std::get_if<handoff_last>(&*heard))
      which.first_token = last->token;
    else if (const auto& progress = std::get<handoff_progress>(*heard);
             progress.layer >= pool_.shape.layers || progress.pages > which.target.pages.size())
      why = {ec::malformed_message, "the sender announces pages that it did not offer"};
    else
      which.arrival.announce(progress.layer, progress.pages);
    if (why.code != ec::none)
      which.arrival.fail(why);
    lock.unlock();
    news_.notify_all();
  }

  handoff_state state(uint64_t handoff) const override {
    const auto guard = std::lock_guard{mutex_};
    const auto at = open_.find(handoff);
    HICACHE_CHECK(at != open_.end());
    const auto& which = at->second;
    return {which.arrival.missing(), which.first_token, which.arrival.failure()};
  }

  void close(uint64_t handoff) override {
    auto lock = std::unique_lock{mutex_};
    const auto at = open_.find(handoff);
    if (at == open_.end())
      return;
    at->second.is_closing = true;
    quiet_.wait(lock, [&] { return !at->second.arrival.is_reading(); });
    open_.erase(at);
  }

private:
  struct open_handoff {
    arrival_target target;
    /// Once there is an offer; set once.
    std::optional<arrival_source> source{};
    handoff_arrival arrival;
    std::optional<token_id> first_token{};
    bool is_closing = false;
  };

  /// Takes an offer.
  /// @returns why it is of no use, or code `none`
  error note(open_handoff& which, const handoff_offer& offer) {
    const auto cut = handoff_cut::between(heads_, static_cast<uint32_t>(offer.senders.size()),
                                          offer.receiver_ranks);
    if (offer.fingerprint != fingerprint_)
      return {ec::invalid_argument, "the sender has another model, element type or page size"};
    const auto count = which.target.pages.size();
    if (!cut || which.source || offer.receiver_ranks != ranks_
        || offer.first_page != which.target.first_page || offer.tokens != which.target.tokens
        || count != handoff_page_count(offer.tokens, offer.first_page, page_size()))
      return {ec::invalid_argument, "the sender offers other pages than it was asked for"};
    const auto slot = slot_bytes_for(handoff_object_bytes(pool_.shape, cut->heads(), page_size()));
    auto made = arrival_source{
      offer, {offer.offset, slot, count, cut->objects()}, cut->sources(rank_), cut->heads(), {}};
    for (const auto& sender : offer.senders)
      made.memories.push_back(map(sender.memory));
    which.source = std::move(made);
    return {};
  }

  uint32_t page_size() const noexcept { return pool_.shape.page_size; }

  /// The memory of a sender on this machine, or null.
  mapping map(const std::string& name) {
    std::erase_if(maps_, [](const auto& known) {
      auto owner = pollfd{known.second->owner().get(), POLLIN, 0};
      return ::poll(&owner, 1, 0) != 0;
    });
    if (is_remote_)
      return nullptr;
    if (const auto known = maps_.find(name); known != maps_.end())
      return known->second;
    auto opened = open_peer_memory(name);
    if (!opened)
      return nullptr;
    auto made = std::make_shared<const mapped_peer_memory>(std::move(*opened));
    maps_.emplace(name, made);
    return made;
  }

  // -- the thread -------------------------------------------------------------

  void run(const std::stop_token& stop) {
    auto lock = std::unique_lock{mutex_};
    for (;;) {
      auto part = std::optional<handoff_arrival::part>{};
      auto number = uint64_t{0};
      news_.wait(lock, stop, [&] {
        for (auto at = open_.begin(); at != open_.end() && !part; ++at) {
          number = at->first;
          if (!at->second.is_closing)
            part = at->second.arrival.next(pages_per_read);
        }
        return part.has_value();
      });
      if (stop.stop_requested())
        return;
      auto& which = open_.at(number);
      lock.unlock();
      const auto why = read(which.target, *which.source, *part);
      lock.lock();
      which.arrival.finish(why);
      const auto is_over = which.arrival.is_over();
      quiet_.notify_all();
      if (is_over) {
        lock.unlock();
        changed_();
        lock.lock();
      }
    }
  }

  /// Reads the pages of a part.
  /// @returns code `none` if all arrived
  error read(const arrival_target& target, const arrival_source& from,
             const handoff_arrival::part& part) {
    auto remote = std::vector<wanted_object>{};
    for (auto page = part.first; page < part.end; ++page)
      for (const auto& source : from.sources) {
        auto wanted = object_of(target, from, part.layer, page, source);
        const auto& memory = from.memories[source.rank];
        if (!memory)
          remote.push_back(std::move(wanted));
        else if (auto done = read_memory(memory->bytes(), wanted, fingerprint_); !done)
          return done.error();
      }
    return remote.empty() ? error{} : read_remote(from, remote);
  }

  wanted_object object_of(const arrival_target& target, const arrival_source& from, uint32_t layer,
                          uint64_t page, const handoff_source& source) const {
    const auto rows = handoff_row_count(target.tokens, target.first_page + page, page_size());
    const auto slot = from.place.slot(layer, page, source.object);
    return {source.rank,
            {handoff_key(from.offer.senders[source.rank].nonce, from.offer.handoff, slot),
             from.offer.generation},
            from.place.begin(slot),
            handoff_object_bytes(pool_.shape, from.heads, rows),
            handoff_rows(pool_, layer, target.pages[page], source.heads, rows)};
  }

  error read_remote(const arrival_source& from, const std::vector<wanted_object>& wanted) {
    auto reads = range_reads{};
    for (const auto& sender : from.offer.senders)
      reads.servers.push_back(sender.address);
    auto places = std::vector<range_place>{};
    for (const auto& each : wanted)
      places.push_back({each.sender, each.begin, each.begin + slot_object_offset, each.claim});
    for (auto i = size_t{0}; i < wanted.size(); ++i)
      reads.ranges.push_back({std::span{places}.subspan(i, 1), wanted[i].targets, true});
    const auto answers = client_->read(reads, std::chrono::steady_clock::now() + read_time);
    for (auto i = size_t{0}; i < wanted.size(); ++i) {
      if (!answers[i])
        return answers[i].error();
      if (answers[i]->is_gone)
        return {ec::not_found, "the sender has ended the handoff"};
      const auto expected = verified_checksum(answers[i]->head, wanted[i], fingerprint_);
      if (!expected)
        return expected.error();
      if (answers[i]->checksum != *expected)
        return {ec::corrupt_page, "wrong checksum"};
    }
    return {};
  }

  const device_layers pool_;
  const uint32_t heads_;
  const uint32_t rank_;
  const uint32_t ranks_;
  const uint64_t fingerprint_;
  /// Reads over the network even on one machine.
  const bool is_remote_;
  const std::function<void()> changed_;
  const std::unique_ptr<page_client> client_;
  mutable std::mutex mutex_; // Guards what follows.
  /// By name; those whose owner is gone are dropped with the next offer.
  std::map<std::string, mapping> maps_;
  std::condition_variable_any news_;
  std::condition_variable quiet_;
  /// A read uses the target and the source of its handoff without the lock: neither changes until
  /// close(), which waits for the read.
  std::map<uint64_t, open_handoff> open_;
  std::jthread thread_;
};

} // namespace

result<std::unique_ptr<handoff_receiver>> handoff_receiver::start(rank_runtime& runtime,
                                                                  const rank_config& config,
                                                                  std::function<void()> changed) {
  if (!runtime.device_is_host_addressable())
    return fail(ec::unsupported, "handoffs need an L1 that the CPU can address");
  auto client = HICACHE_TRY(page_client::create(member_network(config.page_transport, config.tls)));
  return std::make_unique<receiver_impl>(runtime, config, std::move(changed), std::move(client));
}

} // namespace hicache
