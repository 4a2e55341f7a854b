#pragma once

#include "backends/disk_figures.hpp"
#include "backends/memory_file.hpp"
#include "base/immovable.hpp"
#include "cache/store/client_table.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/interfaces.hpp"
#include "runtime/cluster_member.hpp"

#include <caf/actor_system.hpp>

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hicache {

struct node_options;

/// Options of a node.
struct node_host_options {
  /// Page memory.
  uint64_t memory_bytes = 0;
  /// File used as page memory, which keeps its pages for the next node; empty: plain memory.
  std::string memory_file;
  /// Folder of a disk below the memory (empty: none) and its limit in bytes.
  std::string disk;
  uint64_t disk_bytes = 0;
  /// Instead of it: stores below the memory, as parse_storage_config reads them; only its tiers and
  /// what concerns these count. Empty: none.
  std::string extra_config;
  /// Path of the Unix socket for clients.
  std::string socket;
  /// Longest duration of a lease.
  duration lease_time = limits::node_lease_time;
  /// How long the disk tier keeps writing what is queued when the node ends.
  duration shutdown_grace = limits::disk_drain_time;
  /// Memory that one client may use, and the share that all leases may protect from eviction.
  client_shares shares;
  double leased_share = 0.5;
  /// Listening socket opened and removed by the service manager; null: the node opens it.
  std::shared_ptr<listener> opened;
  /// Group whose processes may connect, besides those of this user.
  std::optional<gid_t> group;
  /// TCP address for clients on other machines; null: none.
  std::optional<rpc::endpoint> listen;
  /// Address of the index, as parse_index_place reads it; empty: the node is alone.
  std::string index;
  /// As in cluster_member_options.
  duration index_connect_time = limits::index_connect_time;
  repair_policy repair;
  /// As in cluster_member_options.
  std::string listen_host = "127.0.0.1";
  /// For members and clients on other machines.
  tls_files tls;
  /// Must outlive the node.
  const clock_source* clock = nullptr;
};

/// A node of this process: memory, the cluster member that exports it, and the actor that serves
/// clients. Create and destroy on one thread.
class node_host : immovable {
public:
  /// @param system Must outlive the node.
  /// @returns one sentence that names the flag: no memory, no socket, no index
  static result<std::unique_ptr<node_host>> start(caf::actor_system& system,
                                                  node_host_options options);

  /// Disconnects the clients and leaves the cluster.
  ~node_host();

  const node_actor& actor() const noexcept { return node_; }

  /// The store below the memory; null if there is none.
  const std::shared_ptr<storage_backend>& below() const noexcept { return disk_store_; }

  /// Address for clients on other machines, with the actual port.
  const std::optional<rpc::endpoint>& listening() const noexcept { return listening_; }

  /// Health check: whether network, node and segment all respond in time. Blocks for as long.
  bool answers(duration within) const;

private:
  node_host(caf::actor_system& system, node_host_options options);

  result<void> serve();

  /// Options of the node's cluster member.
  cluster_member_options member_settings();

  /// Options of the node's actor.
  /// @pre it is a member and exports its memory
  node_options node_settings();

  /// Starts the scan for pages that an earlier node left in the memory file.
  void start_scan();

  /// Whether there is a store below the memory.
  bool has_disk() const noexcept {
    return !options_.disk.empty() || !options_.extra_config.empty();
  }

  /// Opens the store below the memory.
  result<std::unique_ptr<storage_backend>> open_disk();

  /// Opens the stores of the extra configuration.
  result<std::unique_ptr<storage_backend>> open_disk_tiers();

  /// Starts the disk tier, if there is one.
  result<void> start_disk();

  /// Opens the port for clients on other machines, if enabled.
  result<std::optional<listener>> open_port() const;

  /// Gives the group access to the socket.
  result<void> open_to_group() const;

  caf::actor_system& system_;
  const node_host_options options_;
  bool is_bound_ = false;
  /// Outlives the member.
  std::optional<memory_file> file_;
  std::unique_ptr<cluster_member> member_;
  page_scanner_actor scanner_;
  std::shared_ptr<storage_backend> disk_store_;
  /// Bound on its bytes, 0 if there is none; and names of its stores.
  uint64_t disk_bytes_ = 0;
  std::string disk_stores_;
  disk_tier_actor disk_;
  std::shared_ptr<disk_table> disk_table_;
  std::shared_ptr<disk_figures> on_disk_;
  fetcher_actor fetcher_;
  node_actor node_;
  /// Hands the memory to clients, who write to it.
  std::unique_ptr<memory_offer> offer_;
  /// Separate from the member's network, which may use TLS.
  std::unique_ptr<rpc_network> network_;
  /// Runs on its own thread, because it copies and encrypts pages for clients on other machines.
  std::unique_ptr<rpc_network> remote_network_;
  std::optional<rpc::endpoint> listening_;
};

} // namespace hicache
