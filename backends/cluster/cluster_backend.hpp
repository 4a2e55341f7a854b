#pragma once

#include "backends/blocking_store.hpp"
#include "backends/cluster/exported_pages.hpp"
#include "backends/cluster/index_link.hpp"
#include "backends/cluster/index_lookup.hpp"
#include "backends/cluster/member_figures.hpp"
#include "backends/cluster/page_reader.hpp"
#include "backends/cluster/recent_placements.hpp"
#include "base/limits.hpp"
#include "hicache/storage_backend.hpp"

#include <caf/actor_system.hpp>

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// Settings of the `cluster` backend. Everything referred to must outlive it.
struct cluster_options {
  page_reader_options reader;
  /// This process's segment; null if it exports no memory: then set fails with store_full.
  segment_actor segment;
  /// The memory of that segment; this backend writes to it between reserve and publish.
  std::span<std::byte> segment_memory;
  /// Exports whole objects of L2 in place; other pages, or all if this is null, are copied.
  std::shared_ptr<exported_pages> exported;
  /// `fingerprint_of` the namespace; pages with another one are not served.
  uint64_t fingerprint = 0;
  /// Replicas of each page that this process stores, its own included, on different hosts.
  uint32_t replicas = 1;
  /// As in member_info.
  std::string host;
  /// Updated and reported here; not null.
  std::shared_ptr<member_figures> figures;
};

/// L3 as the pooled memory of all members (docs/cluster.md): writes go to this process's own
/// segment, reads come from any owner of the page. Further replicas are pulled by their new owners,
/// so only its owner ever writes to a segment.
class cluster_backend final : public blocking_store {
public:
  explicit cluster_backend(cluster_options options);

  ~cluster_backend() override;

  std::string name() const override { return "cluster"; }

  store_capabilities capabilities() const override {
    return {.is_shared = true, .tells_occupancy = true};
  }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override;

  std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) override;

  /// A page that cannot be replicated to enough hosts is stored anyway, and logged.
  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override;

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override;

  backend_health health() override;

private:
  /// Reads the pages at these positions.
  /// @param where The replicas of each of them.
  /// @returns positions of pages that owners refuse because other members will soon offer them
  std::vector<size_t> get_from(const placements& where, std::span<const page_read> pages,
                               std::span<const size_t> positions, bool insists, time_point deadline,
                               std::vector<result<void>>& outcome);

  /// Offers pages just read to other members, because they are in demand.
  void offer(std::span<const page_read> pages, std::span<const size_t> positions,
             time_point deadline);

  /// Reserves slots in this process's segment for pages that are not there, and writes them.
  /// `parts_of` returns the parts of a page by position.
  template <class PartsOf>
  result<segment_slots> write_slots(segment_pages pages, PartsOf parts_of);

  /// Whether a page need not be stored: one of these replicas lasts as long as a new one would.
  bool is_stored(const page_write& page, std::span<const replica> replicas) const;

  /// Exports these pages in place where L2 can, and writes the others to the segment.
  /// @returns the outcome of each
  result<segment_slots> place(std::span<const page_write> pages, std::span<const size_t> positions);

  /// Looks keys up in the index, and remembers the answer.
  placements locate(std::span<const page_key> keys, time_point deadline);

  /// What the index answered for these keys within limits::placement_memory.
  placements recall(std::span<const page_key> keys);

  /// Makes other hosts copy pages that are published here.
  void replicate(const page_copies& pages, time_point deadline);

  cluster_options options_;
  page_reader reader_;
  index_lookup lookup_;
  std::mutex mutex_; // Guards what follows.
  backend_counters counters_;
  recent_placements recent_{limits::placements_remembered};
};

} // namespace hicache
