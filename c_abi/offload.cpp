// The offload functions of hicache.h: check arguments and submit batches to the client.

#include "c_abi/offload.hpp"

#include "base/about.hpp"
#include "base/try.hpp"
#include "c_abi/client.hpp"
#include "c_abi/guarded.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

using namespace hicache;

hc_offload::hc_offload(hc_client& of, block_table table, std::unique_ptr<block_device> device)
  : client(of), memory_(std::make_shared<block_memory>(std::move(table), std::move(device))) {}

result<hc_ticket> hc_offload::submit(batch what, std::span<const hc_offload_page> pages,
                                     void* event) {
  if (event != nullptr && memory_->device() == nullptr)
    return fail(ec::invalid_argument,
                "event: expected NULL, since blocks in host memory have no events");
  if (event != nullptr)
    HICACHE_TRY(memory_->device()->wait_for(event));
  const auto is_load = what.what == batch::kind::load;
  auto parents = std::vector<page_key>{};
  auto blocks = std::vector<uint32_t>{};
  for (const auto& page : pages) {
    if (!is_load)
      parents.push_back(key_of(page.parent));
    blocks.insert(blocks.end(), page.blocks, page.blocks + table().blocks_per_page());
  }
  const auto progress = is_load ? std::make_shared<load_progress>() : nullptr;
  what.blocks
    = std::make_shared<block_copy>(memory_, std::move(parents), std::move(blocks), progress);
  const auto guard = std::lock_guard{mutex_};
  if (loads_.size() >= most_loads_) {
    std::erase_if(loads_, [this](const auto& load) { return !client.done().has(load.first); });
    most_loads_ = std::max(most_loads_, 2 * loads_.size());
  }
  auto ticket = client.submit(std::move(what));
  if (ticket && is_load)
    loads_.emplace(*ticket, progress);
  return ticket;
}

result<std::shared_ptr<load_progress>> hc_offload::load_of(hc_ticket ticket) {
  const auto guard = std::lock_guard{mutex_};
  const auto at = loads_.find(ticket);
  if (at == loads_.end() || !client.done().has(ticket))
    return fail(ec::unknown_id);
  return at->second;
}

result<void> hc_offload::wait(hc_ticket ticket, uint32_t layer, time_point deadline) {
  const auto load = HICACHE_TRY(load_of(ticket));
  return load->wait(layer, deadline);
}

result<void> hc_offload::have_wait(hc_ticket ticket, uint32_t layer, void* stream,
                                   time_point deadline) {
  if (memory_->device() == nullptr)
    return fail(ec::unsupported, "blocks in host memory have no streams");
  const auto load = HICACHE_TRY(load_of(ticket));
  const auto mark = HICACHE_TRY(load->mark(layer, deadline));
  return mark ? memory_->device()->have_wait(stream, mark) : result<void>{};
}

namespace {

/// guarded() for an offload.
template <class Body>
int32_t guarded_offload(const hc_offload* offload, hc_error* to, Body body) noexcept {
  if (offload == nullptr)
    return refuse("offload: NULL; expected one that hc_offload_open opened", to);
  return guarded(&offload->client, to, body);
}

result<void> check(const block_table& table, std::span<const hc_offload_page> pages,
                   block_gaps gaps) {
  for (auto i = size_t{0}; i < pages.size(); ++i) {
    const auto name = "page " + std::to_string(i);
    if (std::ranges::any_of(pages[i].reserved, [](uint64_t x) { return x != 0; }))
      return fail(ec::unsupported, name + ": reserved: expected 0");
    if (pages[i].blocks == nullptr)
      return fail(ec::invalid_argument, name + ": blocks: NULL");
    HICACHE_TRY(about(name, table.check({pages[i].blocks, table.blocks_per_page()}, gaps)));
  }
  return {};
}

/// Submits a call.
int32_t submit(hc_offload* offload, batch::kind what, const hc_offload_page* pages, size_t count,
               const hc_call* call, void* event, hc_ticket* ticket, hc_error* to) noexcept {
  return guarded_offload(offload, to, [&]() -> result<void> {
    if ((pages == nullptr && count > 0) || ticket == nullptr)
      return fail(ec::invalid_argument,
                  ticket == nullptr ? "ticket: NULL" : "pages: NULL, though there are some");
    HICACHE_TRY(check_page_count(count));
    const auto how = HICACHE_TRY(taken(call, "call"));
    const auto given = std::span{pages, count};
    auto keys = std::vector<hc_key>{};
    std::ranges::transform(given, std::back_inserter(keys), &hc_offload_page::key);
    auto& client = offload->client;
    auto work = HICACHE_TRY(make_batch(what, keys, how, client.now()));
    const auto gaps = what == batch::kind::load ? block_gaps::allowed : block_gaps::refused;
    HICACHE_TRY(check(offload->table(), given, gaps));
    if (how.lease != nullptr)
      work.from = HICACHE_TRY(client.pages_of(how.lease));
    *ticket = HICACHE_TRY(offload->submit(std::move(work), given, event));
    return {};
  });
}

} // namespace

extern "C" {

int32_t hc_offload_open(hc_client* client, const hc_layout* layout, hc_offload** offload,
                        hc_error* error) {
  return guarded(client, error, [&]() -> result<void> {
    if (offload == nullptr)
      return fail(ec::invalid_argument, "offload: NULL; expected where the offload is put");
    *offload = nullptr;
    const auto how = HICACHE_TRY(taken(layout, "layout"));
    auto table = HICACHE_TRY(block_table::of(how));
    auto device = std::unique_ptr<block_device>{};
    if (how.device != HC_HOST) {
      auto opened = open_block_device(how.device);
      if (!opened)
        return fail(opened.error().code,
                    "layout: device: " + std::to_string(how.device) + "; " + opened.error().detail);
      device = std::move(*opened);
    }
    *offload
      = client->keep(std::make_unique<hc_offload>(*client, std::move(table), std::move(device)));
    return {};
  });
}

int32_t hc_offload_close(hc_offload* offload) {
  return guarded_offload(offload, nullptr, [&] {
    offload->close();
    offload->client.forget(offload);
  });
}

uint64_t hc_offload_page_bytes(const hc_offload* offload) {
  return offload != nullptr ? offload->table().page_bytes() : 0;
}

int32_t hc_offload_store(hc_offload* offload, const hc_offload_page* pages, size_t count,
                         const hc_call* call, void* event, hc_ticket* ticket, hc_error* error) {
  return submit(offload, batch::kind::store, pages, count, call, event, ticket, error);
}

int32_t hc_offload_load(hc_offload* offload, const hc_offload_page* pages, size_t count,
                        const hc_call* call, hc_ticket* ticket, hc_error* error) {
  return submit(offload, batch::kind::load, pages, count, call, nullptr, ticket, error);
}

int32_t hc_offload_wait_layer(hc_offload* offload, hc_ticket ticket, uint32_t layer,
                              uint32_t timeout_ms) {
  return guarded_offload(offload, nullptr, [&]() -> result<void> {
    if (layer >= offload->table().layers())
      return fail(ec::invalid_argument);
    return offload->wait(ticket, layer, deadline_after(offload->client.now(), timeout_ms));
  });
}

int32_t hc_offload_stream_wait(hc_offload* offload, hc_ticket ticket, uint32_t layer, void* stream,
                               uint32_t timeout_ms, hc_error* error) {
  return guarded_offload(offload, error, [&]() -> result<void> {
    if (layer >= offload->table().layers())
      return fail(ec::invalid_argument, "layer: " + std::to_string(layer) + "; there are "
                                          + std::to_string(offload->table().layers()));
    return offload->have_wait(ticket, layer, stream,
                              deadline_after(offload->client.now(), timeout_ms));
  });
}

} // extern "C"
