#pragma once

#include "backends/cluster/index_link.hpp"
#include "base/batch_copier.hpp"
#include "messages/page_header.hpp"
#include "transport/memory_sharing.hpp"
#include "transport/page_channel.hpp"

#include <caf/actor_system.hpp>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

namespace hicache {

/// How a reader accesses the memory of other members.
enum class read_path : uint8_t {
  /// Mapped memory on the same machine, the network elsewhere.
  automatic,
  /// Always the network, even on the same machine: for tests and measurements.
  remote,
};

/// Settings of a reader. Everything referred to must outlive it.
struct page_reader_options {
  caf::actor_system* system = nullptr;
  index_link* index = nullptr;
  /// Returns the actor of a member, which may be in another process.
  std::function<member_actor(const member_info&)> reach;
  /// Calls back, on any thread, once a connection has ended; as rpc_network::watch.
  std::function<void(unique_fd, std::function<void()>)> watch;
  /// This process's member id and the memory that it exports; 0 and empty if it exports none.
  uint64_t member = 0;
  std::span<const std::byte> own_memory;
  /// Whether this process offers pages in demand that it has read: it has a segment.
  bool offers = false;
  read_path path = read_path::automatic;
  /// Network settings. Used by one reader only.
  page_channel_options network;
  const clock_source* clock = nullptr;
};

/// A page, its replicas, and the target of its object.
struct page_search {
  page_key key;
  uint64_t fingerprint = 0;
  /// Not owned; at most 64.
  std::span<const replica> replicas;
  /// Not owned.
  std::span<const std::span<std::byte>> parts;
  /// As in remote_range.
  bool insists = false;
};

struct page_source {
  uint64_t member = 0;
  /// Others read it from the same member a moment ago.
  bool in_demand = false;
  /// page_checksum of the object.
  uint64_t checksum = 0;
};

/// Pages by the member that has them.
using member_pages = std::map<uint64_t, std::vector<page_key>>;

/// A member as known to a reader.
struct known_member {
  member_info info;
  /// Own or mapped memory; empty if the member is read over the network.
  std::span<const std::byte> memory;
  /// Receives requests to the member.
  member_actor actor;

  /// Keeps `memory` mapped.
  std::shared_ptr<const mapped_peer_memory> mapping;
};

/// Reads pages from the memory of members and verifies each: generation, key, namespace, length and
/// checksum. Any thread; blocks. Helper threads copy from memory.
class page_reader {
public:
  explicit page_reader(page_reader_options options);

  /// Reads each page: from memory that this process can address if there is such a replica, else
  /// from members on other machines, several at a time, and from the next replica if the first one
  /// fails or is late. Readers differ in which replica they try first. Pages that cannot be read so
  /// and have replicas on disk are recalled by their members first. Afterwards nothing writes to
  /// the parts; those of a failed page are undefined. Reports doubtful pages to their members.
  /// @returns per page, for the replica tried last: not_found if the member or the page is gone;
  /// corrupt_page if the bytes do not verify; invalid_argument if the parts do not have the
  /// object's length; limit_reached as page_client::read; deadline_exceeded; peer_unreachable;
  /// io_failure.
  std::vector<result<page_source>> read(std::span<const page_search> wanted, time_point deadline);

  /// Notifies the members that these pages of theirs were read, which protects them from eviction.
  void tell_uses(member_pages pages);

  /// All members that the index knows now, including this process; empty if it is unreachable.
  std::vector<member_info> members(time_point deadline);

  /// The same, at most limits::member_list_memory old.
  std::vector<member_info> recent_members(time_point deadline);

  /// Null if the index does not know the member.
  std::shared_ptr<const known_member> find(uint64_t member, time_point deadline);

private:
  using route_map = std::map<uint64_t, std::shared_ptr<const known_member>>;

  /// The members met so far. Mapped ones are removed as soon as they end.
  struct route_table {
    std::mutex mutex; // Guards what follows; held for moments.
    route_map routes;
    /// When known members are queried next.
    time_point looked_after;
  };

  /// Routes to these members; queries the index for unknown ones.
  route_map routes_to(const std::set<uint64_t>& members, time_point deadline);

  /// Queries the index for these members, and every limits::member_list_memory for the known ones;
  /// drops members that are gone, and opens routes to the others.
  void renew(const std::set<uint64_t>& wanted, time_point deadline);

  /// Reachable shards in the order to query for members, which differs between readers.
  std::vector<index_actor> reached_shards() const;

  /// Adds a route to a member, and removes it when the owner of the mapped memory ends.
  void enter(std::shared_ptr<const known_member> found);

  std::shared_ptr<const known_member> open_route(const member_info& member) const;

  /// Reads pages from replicas in memory.
  std::vector<result<page_source>> read_memory(std::span<const page_search> wanted,
                                               time_point deadline);

  /// A page not read yet, and its untried replicas.
  struct open_page {
    size_t position = 0;
    std::vector<replica> left;
  };

  /// The pages that are not read and have replicas on disk.
  std::vector<open_page> on_disk_only(std::span<const page_search> wanted,
                                      std::span<const result<page_source>> outcome) const;

  /// Has members bring pages into their memory, each page by the member of its first untried
  /// replica, and at most limits::storage_batch_pages by each member.
  /// @returns their places in memory, by page; none for a page that is not there
  std::vector<replica_list> recall(std::span<const page_search> wanted,
                                   std::span<const open_page> open, time_point deadline);

  /// Bytes of the pages with a replica in memory that this process can address.
  static uint64_t bytes_near(const route_map& routes, std::span<const page_search> wanted);

  /// Reads a page from addressable memory if possible.
  /// @returns the replicas left to read over the network, all of which name an object.
  std::vector<replica> read_here(const route_map& routes, const page_search& what,
                                 result<page_source>& outcome, member_pages& doubtful) const;

  /// Reads one replica from addressable memory.
  /// @returns the page's checksum
  static result<uint64_t> read_copy(const known_member& owner, const page_search& what,
                                    const replica& from);

  /// Reads pages over the network, each from one of its untried replicas.
  /// @returns the pages that did not verify and may still be elsewhere
  std::vector<open_page> read_remote(const route_map& routes, std::span<const page_search> wanted,
                                     std::vector<open_page> open, time_point deadline,
                                     std::vector<result<page_source>>& outcome,
                                     member_pages& doubtful);

  /// Determines whether pages whose bytes do not verify are damaged or were overwritten during the
  /// read, in which case the head has changed.
  /// @param torn By position among the reads.
  static void explain(page_client& reader, const range_reads& reads,
                      const std::vector<result<range_answer>>& answers, time_point deadline,
                      std::map<size_t, error>& torn);

  /// The client, created on first use.
  result<page_client*> client();

  /// Compares a header with what was requested.
  static result<page_header> verify_header(std::span<const std::byte> bytes,
                                           const page_search& what, const replica& from);

  /// Logs a page that did not verify, and notes the member to notify.
  static void doubt(const page_search& what, const replica& from, const error& why,
                    member_pages& doubtful);

  /// Makes the members check pages that differ from what the index says.
  static void tell_corrupt(const route_map& routes, member_pages doubtful);

  page_reader_options options_;
  /// Makes readers differ.
  uint64_t salt_;
  const std::shared_ptr<route_table> table_ = std::make_shared<route_table>();
  std::mutex mutex_; // Guards what follows.
  /// The last list of all members, and until when it is valid.
  std::vector<member_info> members_;
  time_point members_until_;
  std::unique_ptr<page_client> client_;
  batch_copier copier_;
};

} // namespace hicache
