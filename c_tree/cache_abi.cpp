// The functions of hicache_tree.h: check arguments, contain exceptions, and delegate to a cache.

#include "base/try.hpp"
#include "c_abi/batch.hpp"
#include "c_abi/guarded.hpp"
#include "c_tree/cache.hpp"
#include "c_tree/cache_ops.hpp"
#include "hicache/error.hpp"

#include <algorithm>
#include <chrono>
#include <span>

using namespace hicache;

namespace {

static_assert(HC_OUT_OF_DEVICE_PAGES == static_cast<int>(ec::out_of_device_pages));
static_assert(HC_OUT_OF_HOST_PAGES == static_cast<int>(ec::out_of_host_pages));
static_assert(HC_RANKS_DIVERGED == static_cast<int>(ec::ranks_diverged));
static_assert(HC_RANK_UNRESPONSIVE == static_cast<int>(ec::rank_unresponsive));
static_assert(HC_CONFIGURATION_MISMATCH == static_cast<int>(ec::configuration_mismatch));
static_assert(HC_COPY_FAILED == static_cast<int>(ec::copy_failed));
static_assert(HC_DEVICE_LOST == static_cast<int>(ec::device_lost));
static_assert(HC_STORE_UNAVAILABLE == static_cast<int>(ec::store_unavailable));

/// Caps a timeout at an hour.
std::chrono::milliseconds time_of(uint32_t timeout_ms) {
  return std::chrono::milliseconds{std::min(timeout_ms, uint32_t{3'600'000})};
}

/// contained() for a handle, which must belong to this process.
/// @param missing Error text for NULL.
template <class Handle, class Body>
int32_t contained(const Handle* handle, const char* missing, hc_error* to, Body body) noexcept {
  if (handle == nullptr)
    return refuse(missing, to);
  if (!handle->is_ours())
    return report(HC_FORKED, "the cache belongs to the process that this one was forked from", to);
  return hicache::contained(to, std::move(body));
}

/// The items of a list; none unless it belongs to this process.
template <class Item, class List>
const Item* items_of(const List* list, size_t* count) {
  const auto items = list != nullptr && list->is_ours() ? std::span<const Item>{list->items()}
                                                        : std::span<const Item>{};
  if (count != nullptr)
    *count = items.size();
  return items.empty() ? nullptr : items.data();
}

constexpr auto no_cache = "cache: NULL; expected one that hc_cache_open opened";
constexpr auto no_answers = "answers: NULL; expected those of hc_cache_apply";

/// Checks the layer asked of a load.
result<void> check(const hc_progress* progress, uint32_t layer) {
  if (layer >= progress->layers->layers())
    return fail(ec::invalid_argument, "layer: " + std::to_string(layer) + "; there are "
                                        + std::to_string(progress->layers->layers()));
  return {};
}

} // namespace

extern "C" {

uint32_t hc_cache_abi_version(void) {
  return HC_CACHE_ABI_VERSION;
}

int32_t hc_cache_open(const char* config_json, const hc_cache_options* options, hc_cache** cache,
                      hc_error* error) {
  if (cache == nullptr)
    return refuse("cache: NULL; expected where the cache is put", error);
  *cache = nullptr;
  if (config_json == nullptr)
    return refuse("configuration: NULL; expected a JSON object", error);
  return contained(error, [&]() -> result<void> {
    auto none = hc_cache_options{};
    none.size = sizeof(none);
    const auto how = HICACHE_TRY(taken(options == nullptr ? &none : options, "options"));
    auto settings = HICACHE_TRY(read_cache_settings(config_json));
    auto opened = HICACHE_TRY(hc_cache::open(std::move(settings), how));
    *cache = opened.release();
    return {};
  });
}

int32_t hc_cache_close(hc_cache* cache) {
  return contained(cache, no_cache, nullptr, [&] { delete cache; });
}

int32_t hc_cache_describe(const hc_cache* cache, hc_cache_info* info) {
  return contained(cache, no_cache, nullptr, [&] { return give(cache->info(), info, "info"); });
}

int32_t hc_cache_layer(const hc_cache* cache, uint32_t part, uint32_t layer, hc_layer* where) {
  return contained(cache, no_cache, nullptr, [&]() -> result<void> {
    if (where == nullptr)
      return fail(ec::invalid_argument);
    *where = HICACHE_TRY(cache->layer(part, layer));
    return {};
  });
}

int32_t hc_cache_apply(hc_cache* cache, const hc_op* ops, size_t count, uint32_t timeout_ms,
                       hc_answers** answers, hc_error* error) {
  return contained(cache, no_cache, error, [&]() -> result<void> {
    if (answers == nullptr)
      return fail(ec::invalid_argument, "answers: NULL; expected where the answers are put");
    *answers = nullptr;
    if (ops == nullptr && count > 0)
      return fail(ec::invalid_argument, "operations: NULL, though there are some");
    const auto given = std::span{ops, count};
    auto wanted = HICACHE_TRY(operations_of(given));
    auto kinds = std::vector<uint32_t>{};
    std::ranges::transform(given, std::back_inserter(kinds), &hc_op::kind);
    *answers = cache->apply(std::move(wanted), std::move(kinds)).release();
    return (*answers)->wait(time_of(timeout_ms));
  });
}

int32_t hc_answers_wait(hc_answers* answers, uint32_t timeout_ms, hc_error* error) {
  return contained(answers, no_answers, error, [&] { return answers->wait(time_of(timeout_ms)); });
}

const hc_answer* hc_answers_items(const hc_answers* answers, size_t* count) {
  return items_of<hc_answer>(answers, count);
}

int32_t hc_answers_free(hc_answers* answers) {
  return contained(answers, no_answers, nullptr, [&] { delete answers; });
}

int32_t hc_cache_step(hc_cache* cache, uint32_t wait_ms, hc_facts* facts, hc_error* error) {
  return contained(cache, no_cache, error, [&]() -> result<void> {
    if (facts == nullptr || facts->size < sizeof(hc_facts))
      return fail(ec::invalid_argument,
                  "facts: expected a struct whose size is " + std::to_string(sizeof(hc_facts)));
    const auto known = HICACHE_TRY(cache->step(time_of(wait_ms)));
    return give(known, facts, "facts");
  });
}

int32_t hc_progress_done(const hc_progress* progress, uint32_t* layers) {
  return contained(progress, "progress: NULL", nullptr, [&]() -> result<void> {
    if (layers == nullptr)
      return fail(ec::invalid_argument);
    *layers = progress->layers->done();
    return progress->layers->failed() ? fail(ec::copy_failed) : result<void>{};
  });
}

int32_t hc_progress_wait(const hc_progress* progress, uint32_t layer) {
  return contained(progress, "progress: NULL", nullptr, [&]() -> result<void> {
    HICACHE_TRY(check(progress, layer));
    return progress->layers->wait(layer) ? result<void>{} : fail(ec::copy_failed);
  });
}

int32_t hc_cache_wait_for_layer(hc_cache* cache, const hc_progress* progress, void* stream,
                                uint32_t layer, hc_error* error) {
  return contained(cache, no_cache, error, [&]() -> result<void> {
    if (progress == nullptr)
      return fail(ec::invalid_argument, "progress: NULL; expected that of an answer");
    HICACHE_TRY(check(progress, layer));
    return cache->wait_for_layer(*progress->layers, stream, layer);
  });
}

int hc_cache_event_fd(const hc_cache* cache) {
  return cache != nullptr && cache->is_ours() ? cache->news().event() : -1;
}

int32_t hc_cache_poll(hc_cache* cache, uint32_t timeout_ms, hc_news_list** news) {
  return contained(cache, no_cache, nullptr, [&]() -> result<void> {
    if (news == nullptr)
      return fail(ec::invalid_argument);
    *news = nullptr;
    auto taken = HICACHE_TRY(cache->news().take(cache->now() + time_of(timeout_ms)));
    *news = taken.release();
    return {};
  });
}

const hc_news* hc_news_items(const hc_news_list* news, size_t* count) {
  return items_of<hc_news>(news, count);
}

int32_t hc_news_free(hc_news_list* news) {
  return contained(news, "news: NULL; expected those of hc_cache_poll", nullptr,
                   [&] { delete news; });
}

int32_t hc_cache_stats(hc_cache* cache, hc_cache_counters* counters) {
  return contained(cache, no_cache, nullptr,
                   [&] { return give(cache->counters(), counters, "counters"); });
}

} // extern "C"
