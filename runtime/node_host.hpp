#pragma once

#include "backends/disk_figures.hpp"
#include "backends/memory_file.hpp"
#include "cache/store/client_table.hpp"
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

/// What a node consists of.
struct node_host_options {
  /// Memory for pages.
  uint64_t memory_bytes = 0;
  /// A file that is the memory, and keeps its pages for the next node; empty: the memory ends with
  /// the node.
  std::string memory_file;
  /// The folder of the disk tier, empty if there is none, and the bound on its bytes.
  std::string disk;
  uint64_t disk_bytes = 0;
  /// Where clients connect: a path for a socket.
  std::string socket;
  /// What of it one client may use, and what all leases together keep from eviction.
  client_shares shares;
  double leased_share = 0.5;
  /// A socket that somebody has opened there already, and removes; null: the node opens it.
  std::shared_ptr<listener> opened;
  /// Whose processes are clients, besides those of this user.
  std::optional<gid_t> group;
  /// Where clients on other machines connect; null: there are none.
  std::optional<rpc::endpoint> listen;
  /// Where the index is, as parse_index_place reads it; empty: this host has no others.
  std::string index;
  /// As in cluster_member_options.
  std::string listen_host = "127.0.0.1";
  /// For members and for clients on other machines.
  tls_files tls;
  /// Must outlive the node.
  const clock_source* clock = nullptr;
};

/// A node of this process: memory, a member of the cluster store that exports it, and the actor
/// that clients ask. Create and destroy on one thread.
class node_host {
public:
  /// @param system Must outlive the node.
  /// @returns one sentence that names the flag: no memory, no socket, no index
  static result<std::unique_ptr<node_host>> start(caf::actor_system& system,
                                                  node_host_options options);

  /// Lets clients go, and leaves the cluster.
  ~node_host();

  node_host(const node_host&) = delete;

  node_host& operator=(const node_host&) = delete;

  const node_actor& actor() const noexcept { return node_; }

  /// Where clients on other machines connect, with the port that was chosen.
  const std::optional<rpc::endpoint>& listening() const noexcept { return listening_; }

  /// Whether all that clients wait for does its work within that time: the network, the node and
  /// its segment. Blocks for as long.
  bool answers(duration within) const;

private:
  node_host(caf::actor_system& system, node_host_options options);

  result<void> serve();

  /// The node as a member of the cluster.
  cluster_member_options member_settings();

  /// The node as its clients see it.
  /// @pre it is a member, and offers its memory
  node_options node_settings();

  result<void> open_memory();

  /// The memory of the segment, for those who shall map it.
  const shared_memory& memory() const;

  /// Has pages that an earlier node left in the memory found.
  void start_scan();

  /// Starts the tier below the memory, if there is one.
  result<void> start_disk();

  /// Gives the disk tier time to write what waits for that, and ends it.
  void stop_disk();

  /// Opens the port for clients on other machines, if there may be any.
  result<std::optional<listener>> open_port() const;

  void serve_port(listener port);

  /// Lets processes of the group open the socket.
  result<void> open_to_group() const;

  caf::actor_system& system_;
  const node_host_options options_;
  bool is_bound_ = false;
  /// Outlives the member.
  std::optional<memory_file> file_;
  std::unique_ptr<cluster_member> member_;
  page_scanner_actor scanner_;
  disk_tier_actor disk_;
  std::shared_ptr<disk_figures> on_disk_;
  fetcher_actor fetcher_;
  node_actor node_;
  /// Gives the memory to clients, who write there.
  std::unique_ptr<memory_offer> offer_;
  /// Apart from the member's, which may use TLS.
  std::unique_ptr<rpc_network> network_;
  /// A thread of its own: it copies and encrypts the bytes of clients on other machines.
  std::unique_ptr<rpc_network> remote_network_;
  std::optional<rpc::endpoint> listening_;
};

} // namespace hicache
