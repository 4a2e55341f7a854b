#pragma once

#include "backends/cluster/cluster_backend.hpp"
#include "backends/cluster/exported_pages.hpp"
#include "backends/cluster/index_link.hpp"
#include "backends/cluster/index_lookup.hpp"
#include "backends/cluster/lasting_memory.hpp"
#include "base/immovable.hpp"
#include "base/limits.hpp"
#include "cache/store/disk_table.hpp"
#include "cache/store/segment_table.hpp"
#include "hicache/clock.hpp"
#include "hicache/storage_policies.hpp"
#include "rpc/network.hpp"
#include "transport/memory_sharing.hpp"
#include "transport/page_channel.hpp"
#include "transport/shared_memory.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hicache {

/// Options of a process's membership in the cluster store.
struct cluster_member_options {
  /// Address of the index, as parse_index_place reads it.
  std::string index;
  /// How long to try to reach it before joining fails.
  duration index_connect_time = limits::index_connect_time;
  /// No index: exported memory is reachable only by processes that get it by other means.
  bool is_alone = false;
  /// Memory to export in addition to L2; 0 exports none.
  uint64_t segment_bytes = 0;
  /// Flag that set the size, for messages.
  std::string segment_flag = "--segment-size";
  /// Allows processes of this host to be given write access to the segment.
  bool clients_write = false;
  segment_policy policy;
  repair_policy repair;
  /// Object size of this process; the segment must hold at least one.
  uint64_t object_bytes = 0;
  /// `fingerprint_of` the namespace of these objects.
  uint64_t fingerprint = 0;
  /// As in cluster_options.
  uint32_t replicas = 1;
  /// As in member_info; empty: the machine's name.
  std::string host;
  /// Set if the memory outlives the process; see segment_options.
  std::optional<lasting_memory> lasting;
  /// The pages on the disk below the segment; null if there is none.
  std::shared_ptr<const disk_table> on_disk;
  /// Memory that starts with the segment, readable by peers in full; null: the member allocates its
  /// own. Must outlive the member.
  const shared_memory* memory = nullptr;
  /// Pages of L2 exported in place, behind the segment in `memory`; null: none.
  std::shared_ptr<exported_pages> exported;
  /// Address at which peers on other machines read the segment and send requests.
  std::string listen_host;
  /// For all connections, page transfers included.
  tls_files tls;
  page_transport pages = page_transport::automatic;
  read_path path = read_path::automatic;
  /// Must outlive the member.
  const clock_source* clock = nullptr;
};

/// How members send each other pages.
page_channel_options member_network(page_transport pages, const tls_files& tls);

/// This process in the cluster store: the exported memory, the connection to the index and the
/// actor that owns the memory. Create and destroy on one thread.
class cluster_member : immovable {
public:
  /// Allocates the memory, connects to the index (for up to options.index_connect_time) and mounts.
  /// @param system Must outlive the member.
  /// @returns one sentence that names the flag: no memory, no address to listen on, no index
  static result<std::unique_ptr<cluster_member>> join(caf::actor_system& system,
                                                      cluster_member_options options);

  /// Leaves the cluster and frees the memory. All stores from open() must be gone.
  ~cluster_member();

  /// Opens the cluster store for this process.
  /// @pre not alone
  std::unique_ptr<blocking_store> open();

  uint64_t exported_bytes() const noexcept { return info_.capacity_bytes; }

  /// Bytes sent to readers on other machines.
  uint64_t sent_bytes() const noexcept { return server_ ? server_->sent_bytes() : 0; }

  /// Counters since the member joined.
  std::shared_ptr<const member_figures> figures() const noexcept { return figures_; }

  /// The segment: its memory, the mapping that holds it, and the actor that owns it.
  /// @pre options.segment_bytes > 0, and options.memory is null
  std::span<std::byte> segment_memory() const noexcept { return segment_memory_; }

  const shared_memory& memory() const noexcept { return *own_memory_; }

  const segment_actor& segment() const noexcept { return segment_; }

  /// Starts the actor that copies other members' pages into the segment. It must end before the
  /// member. Null if the member is alone.
  fetcher_actor start_fetcher();

private:
  cluster_member(caf::actor_system& system, cluster_member_options options);

  result<void> export_memory();

  /// Starts the actors that own the memory, and serves peers' requests for them.
  result<void> start();

  page_reader_options reader() const;

  caf::actor_system& system_;
  const cluster_member_options options_;
  const std::shared_ptr<member_figures> figures_;
  /// Empty if options_.memory is used.
  std::optional<shared_memory> own_memory_;
  /// Memory readable by peers, the segment first; empty if nothing is exported.
  std::span<std::byte> memory_;
  std::span<std::byte> segment_memory_;
  std::unique_ptr<memory_offer> offer_;
  std::unique_ptr<page_server> server_;
  rpc_network network_;
  /// Shared, because actors still use it shortly after the member is gone.
  std::shared_ptr<index_link> index_;
  std::unique_ptr<index_lookup> lookup_;
  member_info info_;
  segment_actor segment_;
  replicator_actor replicator_;
};

} // namespace hicache
