#include "runtime/shared_pools.hpp"

#include "base/check.hpp"
#include "base/try.hpp"
#include "messages/page_header.hpp"

#include <utility>

namespace hicache {

namespace {

constexpr auto cache_line = uint64_t{64};
/// Page size of the machine, the unit of pinning and NUMA placement.
constexpr auto machine_page = uint64_t{4096};

} // namespace

std::span<std::byte> shared_pools::l2() const {
  const auto& where = exported->objects();
  return memory.bytes().subspan(where.objects, where.count * where.object_bytes);
}

result<shared_pools> shared_pools::create(uint64_t segment_bytes, const pool_geometry& l2,
                                          uint32_t heads) {
  const auto objects_per_page = l2.shape().kv_heads / heads;
  auto where = exported_objects{};
  where.headers = segment_bytes / cache_line * cache_line;
  where.object_bytes = l2.object_bytes(heads);
  where.count = uint64_t{l2.pages()} * objects_per_page;
  const auto end = where.headers + where.count * slot_object_offset;
  where.objects = (end + machine_page - 1) / machine_page * machine_page;
  HICACHE_CHECK(where.count * where.object_bytes == l2.total_bytes());
  auto memory = HICACHE_TRY(
    shared_memory::create(where.objects + l2.total_bytes(), where.objects, "hicache-pools"));
  auto exported = std::make_shared<exported_pages>(memory.bytes(), where, objects_per_page);
  return shared_pools{std::move(memory), std::move(exported)};
}

} // namespace hicache
