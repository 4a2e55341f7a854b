#include "cache/prefix/prefix_cache.hpp"

#include "cache/prefix/chunk_cache.hpp"
#include "cache/prefix/hi_radix_tree.hpp"
#include "cache/prefix/session_cache.hpp"

#include <utility>

namespace hicache {

namespace {

template <class... Handlers>
struct overload : Handlers... {
  using Handlers::operator()...;
};

template <class... Handlers>
overload(Handlers...) -> overload<Handlers...>;

template <class T>
tree_answer widen(result<T> outcome) {
  if (!outcome)
    return tl::unexpected{std::move(outcome.error())};
  return std::move(*outcome);
}

} // namespace

prefix_cache::~prefix_cache() = default;

std::unique_ptr<prefix_cache> make_prefix_cache(const tree_options& options) {
  auto inner = std::unique_ptr<prefix_cache>{};
  if (options.share_prefixes)
    inner = std::make_unique<hi_radix_tree>(options);
  else
    inner = std::make_unique<chunk_cache>(options);
  return std::make_unique<session_cache>(std::move(inner), options.page_size);
}

tree_answer apply(prefix_cache& cache, const tree_operation& operation) {
  return std::visit(
    overload{
      [&](const match_request& x) { return widen(cache.match(x)); },
      [&](const prefetch_request& x) { return widen(cache.prefetch(x.request)); },
      [&](const schedule_request& x) { return widen(cache.schedule(x.request)); },
      [&](const load_request& x) { return widen(cache.load_back(x)); },
      [&](const allocate_request& x) { return widen(cache.allocate(x)); },
      [&](const insert_request& x) { return widen(cache.insert(x)); },
      [&](const release_request& x) {
        auto provenance = cache.provenance(x.request);
        return widen(
          cache.release(x.request).map([&] { return release_result{std::move(*provenance)}; }));
      },
      [&](const evict_request& x) { return widen(cache.evict(x)); },
      [&](const pin_request& x) { return widen(cache.pin(x)); },
      [&](const unpin_request& x) { return widen(cache.unpin(x)); },
      [&](const open_session_request& x) { return widen(cache.open_session(x)); },
      [&](const close_session_request& x) { return widen(cache.close_session(x)); },
      [&](const lock_request& x) { return widen(cache.lock(x.node)); },
      [&](const unlock_request& x) { return widen(cache.unlock(x.node)); },
      [&](const backup_request& x) { return widen(cache.backup(x.node)); },
      [&](const load_node_request& x) { return widen(cache.load_node(x)); },
      [&](const clear_request&) { return widen(cache.clear().map([] { return clear_result{}; })); },
    },
    operation);
}

} // namespace hicache
