#include "c_tree/cache_ops.hpp"

#include "base/about.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

namespace hicache {

namespace {

/// A hundred years, so that no sum of times overflows.
constexpr auto most_ttl_ms = uint64_t{100} * 366 * 24 * 3600 * 1000;

result<token_buffer> tokens_of(const hc_op& op) {
  if (op.tokens == nullptr && op.token_count > 0)
    return fail(ec::invalid_argument, "tokens: NULL, though there are some");
  return std::make_shared<const std::vector<token_id>>(op.tokens, op.tokens + op.token_count);
}

result<cache_namespace> namespace_of(const hc_op& op) {
  if (op.extra_key == nullptr && op.extra_key_bytes > 0)
    return fail(ec::invalid_argument, "extra_key: NULL, though it has bytes");
  if (op.salt == nullptr && op.salt_bytes > 0)
    return fail(ec::invalid_argument, "salt: NULL, though it has bytes");
  auto ns = cache_namespace{};
  if (op.extra_key != nullptr)
    ns.extra_key.assign(op.extra_key, op.extra_key_bytes);
  if (op.salt != nullptr)
    ns.salt.assign(op.salt, op.salt_bytes);
  return ns;
}

result<std::chrono::nanoseconds> ttl_of(const hc_op& op) {
  if (op.ttl_ms > most_ttl_ms)
    return fail(ec::invalid_argument,
                "ttl_ms: " + std::to_string(op.ttl_ms) + "; expected a hundred years at most");
  return std::chrono::milliseconds{op.ttl_ms};
}

result<tree_operation> match_of(const hc_op& op) {
  auto tokens = HICACHE_TRY(tokens_of(op));
  auto ns = HICACHE_TRY(namespace_of(op));
  return match_request{
    op.request, std::move(ns), std::move(tokens), op.limit, {op.session, op.generation}};
}

result<tree_operation> insert_of(const hc_op& op) {
  auto tokens = HICACHE_TRY(tokens_of(op));
  const auto ttl = HICACHE_TRY(ttl_of(op));
  return insert_request{op.request, std::move(tokens), op.priority, (op.flags & HC_OP_CHUNKED) != 0,
                        ttl,        op.after};
}

result<tree_operation> evict_of(const hc_op& op) {
  if (op.tier != HC_TIER_L1 && op.tier != HC_TIER_L2)
    return fail(ec::invalid_argument,
                "tier: " + std::to_string(op.tier) + "; expected HC_TIER_L1 or HC_TIER_L2");
  return evict_request{op.tier == HC_TIER_L1 ? cache_tier::l1 : cache_tier::l2, op.limit};
}

result<tree_operation> pin_of(const hc_op& op) {
  auto tokens = HICACHE_TRY(tokens_of(op));
  auto ns = HICACHE_TRY(namespace_of(op));
  const auto ttl = HICACHE_TRY(ttl_of(op));
  if (op.kind == HC_OP_UNPIN)
    return unpin_request{std::move(ns), std::move(tokens)};
  return pin_request{std::move(ns), std::move(tokens), ttl};
}

uint32_t flags_of(uint32_t kind) {
  if (kind == HC_OP_INSERT)
    return HC_OP_CHUNKED;
  return kind == HC_OP_OPEN_SESSION ? uint32_t{HC_OP_STREAMING} : 0;
}

result<tree_operation> operation_of(const hc_op& op) {
  if (std::ranges::any_of(op.reserved, [](auto word) { return word != 0; }))
    return fail(ec::unsupported, "reserved: says more than this version of hicache knows");
  if (op.kind < HC_OP_MATCH || op.kind > HC_OP_CLEAR)
    return fail(ec::unsupported,
                "kind: " + std::to_string(op.kind) + "; expected one of enum hc_op_kind");
  if ((op.flags & ~flags_of(op.kind)) != 0)
    return fail(ec::unsupported,
                "flags: " + std::to_string(op.flags) + "; this kind has no such flag");
  switch (op.kind) {
    case HC_OP_MATCH:
      return match_of(op);
    case HC_OP_PREFETCH:
      return prefetch_request{op.request};
    case HC_OP_SCHEDULE:
      return schedule_request{op.request};
    case HC_OP_LOAD:
      return load_request{op.request, op.limit};
    case HC_OP_ALLOCATE:
      return allocate_request{op.request, op.limit};
    case HC_OP_INSERT:
      return insert_of(op);
    case HC_OP_RELEASE:
      return release_request{op.request, op.after};
    case HC_OP_EVICT:
      return evict_of(op);
    case HC_OP_PIN:
    case HC_OP_UNPIN:
      return pin_of(op);
    case HC_OP_OPEN_SESSION:
      return open_session_request{op.session, (op.flags & HC_OP_STREAMING) != 0};
    case HC_OP_CLOSE_SESSION:
      return close_session_request{{op.session, op.generation}};
    case HC_OP_LOCK:
      return lock_request{op.node};
    case HC_OP_UNLOCK:
      return unlock_request{op.node};
    case HC_OP_BACKUP:
      return write_request{op.node};
    case HC_OP_LOAD_NODE:
      return load_node_request{op.node, op.limit};
    default:
      return clear_request{};
  }
}

} // namespace

result<tree_operations> operations_of(std::span<const hc_op> ops) {
  if (ops.size() > HC_MAX_OPS)
    return fail(ec::limit_reached, "operations: " + std::to_string(ops.size()) + "; expected "
                                     + std::to_string(HC_MAX_OPS) + " at most");
  auto all = tree_operations{};
  all.list.reserve(ops.size());
  for (auto number = 0; const auto& op : ops)
    all.list.emplace_back()
      = HICACHE_TRY(about("operation " + std::to_string(number++), operation_of(op)));
  return all;
}

} // namespace hicache
