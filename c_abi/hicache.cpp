// The functions of hicache.h: check arguments, contain exceptions, and delegate to a client.

#include "hicache.h"

#include "base/try.hpp"
#include "c_abi/batch.hpp"
#include "c_abi/client.hpp"
#include "c_abi/guarded.hpp"
#include "c_abi/settings.hpp"
#include "identity/model_folder.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <string>

using namespace hicache;

namespace {

static_assert(HC_INVALID_ARGUMENT == static_cast<int>(ec::invalid_argument));
static_assert(HC_UNKNOWN_ID == static_cast<int>(ec::unknown_id));
static_assert(HC_NOT_FOUND == static_cast<int>(ec::not_found));
static_assert(HC_CORRUPT_PAGE == static_cast<int>(ec::corrupt_page));
static_assert(HC_DEADLINE_EXCEEDED == static_cast<int>(ec::deadline_exceeded));
static_assert(HC_STORE_FULL == static_cast<int>(ec::store_full));
static_assert(HC_IO_FAILURE == static_cast<int>(ec::io_failure));
static_assert(HC_PEER_UNREACHABLE == static_cast<int>(ec::peer_unreachable));
static_assert(HC_MALFORMED_MESSAGE == static_cast<int>(ec::malformed_message));
static_assert(HC_LIMIT_REACHED == static_cast<int>(ec::limit_reached));
static_assert(HC_UNSUPPORTED == static_cast<int>(ec::unsupported));
static_assert(HC_STOPPING == static_cast<int>(ec::stopping));

bool is_ec(int32_t code) noexcept {
  return code >= 0 && code < ec_count;
}

/// Submits a call.
template <class Item>
int32_t submit(hc_client* client, batch::kind what, const Item* items, size_t count,
               const hc_call* call, hc_ticket* ticket, hc_error* to) noexcept {
  return guarded(client, to, [&]() -> result<void> {
    if ((items == nullptr && count > 0) || ticket == nullptr)
      return fail(ec::invalid_argument,
                  ticket == nullptr ? "ticket: NULL" : "pages: NULL, though there are some");
    const auto how = HICACHE_TRY(taken(call, "call"));
    auto work = HICACHE_TRY(make_batch(what, std::span{items, count}, how, client->now()));
    if (how.lease != nullptr)
      work.from = HICACHE_TRY(client->pages_of(how.lease));
    *ticket = HICACHE_TRY(client->submit(std::move(work)));
    return {};
  });
}

hc_node_state state_of(const node_status& status) {
  auto state = hc_node_state{};
  state.clients = status.client_count;
  state.capacity_bytes = status.capacity_bytes;
  state.used_bytes = status.used_bytes;
  state.pages = status.pages;
  state.reserved_bytes = status.reserved_bytes;
  state.leased_bytes = status.leased_bytes;
  state.reservations = status.reservations;
  state.leases = status.leases;
  state.pages_evicted = status.evicted;
  state.pages_written = status.pages_written;
  state.pages_wanted = status.pages_wanted;
  state.pages_found = status.pages_found;
  state.expired_leases = status.expired_leases;
  state.refused_calls = status.refused;
  return state;
}

} // namespace

extern "C" {

uint32_t hc_abi_version(void) {
  return HC_ABI_VERSION;
}

const char* hc_version(void) {
  return HICACHE_VERSION;
}

const char* hc_code_name(int32_t code) {
  if (const auto* own = find_own(code))
    return own->name;
  return is_ec(code) ? to_string(static_cast<ec>(code)) : "unknown";
}

const char* hc_code_sentence(int32_t code) {
  if (const auto* own = find_own(code))
    return own->sentence;
  return is_ec(code) ? sentence(static_cast<ec>(code)) : "a code that this version does not know";
}

int32_t hc_open(const char* config_json, const hc_options* options, hc_client** client,
                hc_error* error) {
  if (client == nullptr)
    return refuse("client: NULL; expected where the client is put", error);
  *client = nullptr;
  if (config_json == nullptr)
    return refuse("configuration: NULL; expected a JSON object", error);
  return contained(error, [&]() -> result<void> {
    const auto none = hc_options{sizeof(hc_options), nullptr, nullptr};
    const auto how = HICACHE_TRY(taken(options == nullptr ? &none : options, "options"));
    auto settings = HICACHE_TRY(read_settings(config_json));
    auto opened = HICACHE_TRY(hc_client::open(std::move(settings), how));
    *client = opened.release();
    return {};
  });
}

int32_t hc_close(hc_client* client) {
  return guarded(client, nullptr, [&] { delete client; });
}

int32_t hc_connect(hc_client* client, uint32_t timeout_ms, hc_error* error) {
  return guarded(client, error,
                 [&] { return client->connect(deadline_after(client->now(), timeout_ms)); });
}

int32_t hc_names(const hc_client* client, const void* names, const size_t* lengths, size_t count,
                 hc_key* keys) {
  return guarded(client, nullptr, [&]() -> result<void> {
    if (count > 0 && (lengths == nullptr || keys == nullptr))
      return fail(ec::invalid_argument);
    const auto* name = static_cast<const char*>(names);
    for (auto i = size_t{0}; i < count; ++i) {
      if (name == nullptr && lengths[i] > 0)
        return fail(ec::invalid_argument);
      const auto made = client->key_of({name, lengths[i]});
      std::ranges::copy(made.bytes, keys[i].bytes);
      if (name != nullptr)
        name += lengths[i];
    }
    return {};
  });
}

int32_t hc_model_content(const char* path, char* text, size_t size, hc_error* to) {
  if (path == nullptr || text == nullptr)
    return refuse("path or json: NULL", to);
  return contained(to, [&]() -> result<void> {
    const auto found = to_json(HICACHE_TRY(read_model_content(path)));
    if (found.size() >= size)
      return fail(ec::limit_reached,
                  "json: expected room for " + std::to_string(found.size() + 1) + " bytes");
    std::memcpy(text, found.c_str(), found.size() + 1);
    return {};
  });
}

int32_t hc_put(hc_client* client, const hc_page* pages, size_t count, const hc_call* call,
               hc_ticket* ticket, hc_error* error) {
  return submit(client, batch::kind::put, pages, count, call, ticket, error);
}

int32_t hc_get(hc_client* client, const hc_page* pages, size_t count, const hc_call* call,
               hc_ticket* ticket, hc_error* error) {
  return submit(client, batch::kind::get, pages, count, call, ticket, error);
}

int32_t hc_lookup(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
                  hc_ticket* ticket, hc_error* error) {
  return submit(client, batch::kind::lookup, keys, count, call, ticket, error);
}

int32_t hc_prefetch(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
                    hc_ticket* ticket, hc_error* error) {
  return submit(client, batch::kind::prefetch, keys, count, call, ticket, error);
}

int32_t hc_pin(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
               hc_ticket* ticket, hc_error* error) {
  return submit(client, batch::kind::pin, keys, count, call, ticket, error);
}

int32_t hc_remove(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
                  hc_ticket* ticket, hc_error* error) {
  return submit(client, batch::kind::remove, keys, count, call, ticket, error);
}

int32_t hc_lease_pages(const hc_lease* lease, size_t first, size_t count, hc_leased_page* pages,
                       uint32_t* left_ms) {
  return guarded(lease == nullptr ? nullptr : lease->client, nullptr, [&]() -> result<void> {
    const auto of = HICACHE_TRY(lease->client->pages_of(lease));
    const auto& all = of->view.pages();
    if (first > all.size() || count > all.size() - first || (pages == nullptr && count > 0))
      return fail(ec::invalid_argument);
    for (auto i = size_t{0}; i < count; ++i) {
      const auto& page = all[first + i];
      pages[i] = {of->in_place ? page.data() : nullptr, page.size(), {}};
    }
    if (left_ms != nullptr) {
      const auto left = of->view.until() - lease->client->now();
      *left_ms = static_cast<uint32_t>(
        std::max<int64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count(), 0));
    }
    return {};
  });
}

int32_t hc_unpin(hc_lease* lease) {
  return guarded(lease == nullptr ? nullptr : lease->client, nullptr,
                 [&] { lease->client->unpin(lease); });
}

int hc_event_fd(const hc_client* client) {
  return client != nullptr && client->is_ours() ? client->done().event() : -1;
}

int32_t hc_poll(hc_client* client, hc_completion* completions, size_t capacity, uint32_t timeout_ms,
                size_t* count) {
  return guarded(client, nullptr, [&]() -> result<void> {
    if (count == nullptr || completions == nullptr || capacity == 0)
      return fail(ec::invalid_argument);
    *count = 0;
    *count = HICACHE_TRY(client->done().take(std::span{completions, capacity},
                                             deadline_after(client->now(), timeout_ms)));
    return {};
  });
}

int32_t hc_wait(hc_client* client, hc_ticket ticket, uint32_t timeout_ms,
                hc_completion* completion) {
  return guarded(client, nullptr, [&]() -> result<void> {
    if (completion == nullptr)
      return fail(ec::invalid_argument);
    *completion
      = HICACHE_TRY(client->done().take(ticket, deadline_after(client->now(), timeout_ms)));
    return {};
  });
}

int32_t hc_stats(const hc_client* client, hc_counters* counters) {
  return guarded(client, nullptr, [&] { return give(client->counters(), counters, "counters"); });
}

int32_t hc_clear(hc_client* client, int32_t evict_first, uint32_t timeout_ms, uint64_t* pages,
                 hc_error* error) {
  return guarded(client, error, [&]() -> result<void> {
    if (pages == nullptr)
      return fail(ec::invalid_argument, "pages is null");
    const auto deadline = deadline_after(client->now(), timeout_ms);
    *pages = HICACHE_TRY(client->clear(evict_first != 0, deadline)).pages;
    return {};
  });
}

int32_t hc_node_status(hc_client* client, uint32_t timeout_ms, hc_node_state* state,
                       hc_error* error) {
  return guarded(client, error, [&]() -> result<void> {
    const auto status = HICACHE_TRY(client->status(deadline_after(client->now(), timeout_ms)));
    return give(state_of(status), state, "state");
  });
}

} // extern "C"
