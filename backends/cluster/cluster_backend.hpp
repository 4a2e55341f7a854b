#pragma once

#include "backends/blocking_store.hpp"
#include "backends/cluster/exported_pages.hpp"
#include "backends/cluster/index_link.hpp"
#include "backends/cluster/index_lookup.hpp"
#include "backends/cluster/member_figures.hpp"
#include "backends/cluster/page_reader.hpp"
#include "hicache/storage_backend.hpp"

#include <caf/scoped_actor.hpp>

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

  std::string name() const override { return "cluster"; }

  store_capabilities capabilities() const override {
    return {.is_shared = true, .tells_occupancy = true};
  }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override;

  /// A place is the page's replicas as the index knew them.
  std::vector<result<store_place>> lookup(std::span<const page_key> keys,
                                          time_point deadline) override;

  std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) override;

  /// Looks nothing up: the index refuses what other members have when it is published. A page that
  /// cannot be replicated to enough hosts is stored anyway, and logged.
  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override;

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override;

  backend_health health() override;

private:
  /// Reads the pages at these positions.
  /// @param where The replicas of each page, by position.
  /// @returns positions of pages that owners refuse because other members will soon offer them
  std::vector<size_t> get_from(std::span<const replica_list> where,
                               std::span<const page_read> pages, std::span<const size_t> positions,
                               bool insists, time_point deadline,
                               std::vector<result<void>>& outcome);

  /// Offers pages just read to other members, because they are in demand.
  void offer(std::span<const page_read> pages, std::span<const size_t> positions,
             time_point deadline);

  /// Reserves slots in this process's segment, except for pages that L2 can export.
  /// @returns per page a slot: present, full, reserved, or exported without a place
  result<std::vector<segment_slot>> reserve(caf::scoped_actor& self,
                                            std::span<const page_write> pages);

  /// Writes or exports the pages with such slots, and publishes them.
  void write_and_publish(caf::scoped_actor& self, std::span<const page_write> pages,
                         const std::vector<segment_slot>& slots, time_point deadline,
                         std::vector<result<void>>& outcome);

  /// Writes an object to its slot, then the header.
  void write(const segment_slot& slot, std::span<const std::span<const std::byte>> parts);

  /// Fails the pages at these positions, for which there is no room, unless other members have
  /// them.
  void fail_unless_elsewhere(std::span<const page_write> pages, std::span<const size_t> positions,
                             time_point deadline, std::vector<result<void>>& outcome);

  /// The members for further replicas of pages that follow this one.
  std::vector<member_actor> replica_targets(const page_key& first, time_point deadline);

  cluster_options options_;
  page_reader reader_;
  index_lookup lookup_;
  std::mutex mutex_; // Guards what follows.
  backend_counters counters_;
};

} // namespace hicache
