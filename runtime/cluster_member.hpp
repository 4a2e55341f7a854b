#pragma once

#include "backends/cluster/cluster_backend.hpp"
#include "backends/cluster/exported_pages.hpp"
#include "backends/cluster/index_link.hpp"
#include "backends/cluster/index_lookup.hpp"
#include "backends/cluster/lasting_memory.hpp"
#include "cache/store/segment_table.hpp"
#include "hicache/clock.hpp"
#include "rpc/network.hpp"
#include "transport/memory_sharing.hpp"
#include "transport/page_channel.hpp"
#include "transport/shared_memory.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hicache {

/// How a process takes part in the cluster store.
struct cluster_member_options {
  /// Where the index is, as parse_index_place reads it.
  std::string index;
  /// There is no index, and nobody reads what is exported but processes that get it otherwise.
  bool is_alone = false;
  /// Memory to export, beside L2; 0 exports none.
  uint64_t segment_bytes = 0;
  /// What gave that size, for people.
  std::string segment_flag = "--segment-size";
  /// Processes of this host may be let write to the segment.
  bool clients_write = false;
  /// How it is used.
  segment_policy policy;
  /// Bytes of the objects that this process stores: at least one has to fit.
  uint64_t object_bytes = 0;
  /// `fingerprint_of` the namespace of these objects.
  uint64_t fingerprint = 0;
  /// As in cluster_options.
  uint32_t replicas = 1;
  /// As in member_info; the machine's name if empty.
  std::string host;
  /// The memory outlives the process; see segment_options.
  std::optional<lasting_memory> lasting;
  /// Memory that begins with the segment, and all of which peers may read; null: the member takes
  /// memory of its own. Must outlive the member.
  const shared_memory* memory = nullptr;
  /// Pages of L2 that are offered where they lie, in that memory, behind the segment; null: none.
  std::shared_ptr<exported_pages> exported;
  /// Where peers on other machines read the segment, and ask this member for things.
  std::string listen_host;
  /// For all connections, those for pages included.
  tls_files tls;
  page_transport pages = page_transport::automatic;
  read_path path = read_path::automatic;
  /// Must outlive the member.
  const clock_source* clock = nullptr;
};

/// This process in the cluster store: the memory it exports, its connection to the index, and the
/// actor that owns the memory. Create and destroy on one thread.
class cluster_member {
public:
  /// Takes the memory, reaches the index (for up to limits::index_connect_time) and mounts.
  /// @param system Must outlive the member.
  /// @returns one sentence that names the flag: no memory, no address to listen on, no index.
  static result<std::unique_ptr<cluster_member>> join(caf::actor_system& system,
                                                      cluster_member_options options);

  /// Withdraws from the cluster and gives the memory back. Backends opened here must be gone.
  ~cluster_member();

  cluster_member(const cluster_member&) = delete;

  cluster_member& operator=(const cluster_member&) = delete;

  /// The cluster store as this process sees it.
  /// @pre not alone
  std::unique_ptr<blocking_store> open();

  uint64_t exported_bytes() const noexcept { return info_.capacity_bytes; }

  /// Bytes that this process sent to readers on other machines.
  uint64_t sent_bytes() const noexcept { return server_ ? server_->sent_bytes() : 0; }

  /// What it did since it joined.
  const member_figures& figures() const noexcept { return *figures_; }

  std::shared_ptr<const member_figures> shared_figures() const noexcept { return figures_; }

  /// The segment: its memory, what holds that, and the actor that owns it.
  /// @pre options.segment_bytes > 0, and memory of the member's own
  std::span<std::byte> segment_memory() const noexcept { return segment_memory_; }

  const shared_memory& memory() const noexcept { return *own_memory_; }

  const segment_actor& segment() const noexcept { return segment_; }

  /// Starts what brings pages of other members into the segment; it has to end before the member.
  /// Null if the member is alone.
  fetcher_actor start_fetcher();

private:
  cluster_member(caf::actor_system& system, cluster_member_options options);

  result<void> export_memory();

  /// Starts the actors that own the memory, and lets others ask for them.
  result<void> start();

  page_reader_options reader() const;

  /// For one server or client of pages.
  page_channel_options network() const;

  caf::actor_system& system_;
  const cluster_member_options options_;
  const std::shared_ptr<member_figures> figures_;
  /// Unless options_.memory is used.
  std::optional<shared_memory> own_memory_;
  /// What peers may read, the segment first; empty if nothing is exported.
  std::span<std::byte> memory_;
  std::span<std::byte> segment_memory_;
  std::unique_ptr<memory_offer> offer_;
  std::unique_ptr<page_server> server_;
  rpc_network network_;
  /// Actors that end a moment later use it still.
  std::shared_ptr<index_link> index_;
  std::unique_ptr<index_lookup> lookup_;
  member_info info_;
  segment_actor segment_;
  replicator_actor replicator_;
};

} // namespace hicache
