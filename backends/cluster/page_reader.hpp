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
#include <string>
#include <vector>

namespace hicache {

/// How readers reach the memory of other members.
enum class read_path : uint8_t {
  /// Mapped memory on the same machine, the network elsewhere.
  automatic,
  /// Always the network, also on the same machine: for tests and measurements.
  remote,
};

/// What a reader works with. Everything referred to outlives it.
struct page_reader_options {
  caf::actor_system* system = nullptr;
  index_link* index = nullptr;
  /// A member itself, which may be in another process.
  std::function<member_actor(const member_info&)> reach;
  /// Calls back, on any thread, once a connection has ended; as rpc_network::watch.
  std::function<void(unique_fd, std::function<void()>)> watch;
  /// This process as a member, and the memory that it exports; 0 and empty if it exports none.
  uint64_t member = 0;
  std::span<const std::byte> own_memory;
  /// Whether this process offers what it reads while many want it: it has a segment.
  bool offers = false;
  read_path path = read_path::automatic;
  /// How the network is used. Of one reader alone.
  page_channel_options network;
  const clock_source* clock = nullptr;
};

/// A page, who has it, and where its object goes.
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

/// How a page was found.
struct page_source {
  uint64_t member = 0;
  /// Others wanted it from the same member a moment ago, too.
  bool in_demand = false;
  /// page_checksum of the object.
  uint64_t checksum = 0;
};

/// Pages by the member that has them.
using member_pages = std::map<uint64_t, std::vector<page_key>>;

/// A member as a reader knows it.
struct known_member {
  member_info info;
  /// Own or mapped memory; empty if the member is read by the network.
  std::span<const std::byte> memory;
  /// Takes requests to the member.
  member_actor actor;

  /// Keeps `memory`.
  std::shared_ptr<const mapped_peer_memory> mapping;
};

/// Reads pages from the memory of members, and verifies each: generation, key, namespace, length
/// and checksum. Any thread; blocks. Threads of its own help with what is copied from memory.
class page_reader {
public:
  explicit page_reader(page_reader_options options);

  /// Reads each of these: from memory that this process can address, if there is such a replica,
  /// else from the members on other machines, several at a time and each page from the next one if
  /// the first fails or is late. Readers differ in whom they ask first. Afterwards nothing writes
  /// to the parts; those of a page that failed hold anything.
  /// @returns for each, of the replica tried last: not_found if the member is gone or its memory
  /// holds another page by now; corrupt_page if the bytes do not verify; invalid_argument if the
  /// parts have not the object's length; limit_reached as page_client::read; deadline_exceeded;
  /// peer_unreachable; io_failure. Members are told of pages that are not as the index says.
  std::vector<result<page_source>> read(std::span<const page_search> wanted, time_point deadline);

  /// Tells the members that these pages of theirs were read, which keeps them from eviction.
  void tell_uses(member_pages pages);

  /// All members that the index knows now, this process among them; none if it cannot be reached.
  std::vector<member_info> members(time_point deadline);

  /// The same as it was within limits::member_list_memory.
  std::vector<member_info> recent_members(time_point deadline);

  /// Null if the index does not know the member.
  std::shared_ptr<const known_member> find(uint64_t member, time_point deadline);

private:
  using route_map = std::map<uint64_t, std::shared_ptr<const known_member>>;

  /// The members met so far. Those whose memory was mapped leave as soon as they end.
  struct route_table {
    std::mutex mutex; // Guards what follows; held for moments.
    route_map routes;
    /// When those that are known are asked for next.
    time_point looked_after;
  };

  /// Knows how to read from these members, asking the index about those it has not met.
  route_map routes_to(const std::set<uint64_t>& members, time_point deadline);

  /// Asks the index for these members, and every limits::member_list_memory for those that are
  /// known; lets go of those that are gone, and opens ways to the others.
  void renew(const std::set<uint64_t>& wanted, time_point deadline);

  /// In the order in which they are asked for members. Readers differ in whom they ask first.
  std::vector<index_actor> reached_shards() const;

  /// Enters a way to a member, and takes it out when the owner of the memory that was mapped ends.
  void enter(std::shared_ptr<const known_member> found);

  std::shared_ptr<const known_member> open_route(const member_info& member) const;

  /// A page that is not read yet, and who may still be asked.
  struct open_search {
    size_t position = 0;
    std::vector<replica> left;
  };

  /// Bytes of those that there is a replica of in memory that this process can address.
  static uint64_t bytes_near(const route_map& routes, std::span<const page_search> wanted);

  /// Takes a page from memory if it can. @returns those that are left to be asked by the network,
  /// all of which name an object.
  std::vector<replica> read_here(const route_map& routes, const page_search& what,
                                 result<page_source>& outcome, member_pages& doubtful) const;

  /// Reads one replica from memory that this process can address. @returns the page's checksum
  static result<uint64_t> read_memory(const known_member& owner, const page_search& what,
                                      const replica& from);

  /// Reads pages of members on other machines by the network, each from one of those left. @returns
  /// the pages that did not verify and may still be elsewhere
  std::vector<open_search> read_remote(const route_map& routes, std::span<const page_search> wanted,
                                       std::vector<open_search> open, time_point deadline,
                                       std::vector<result<page_source>>& outcome,
                                       member_pages& doubtful);

  /// Says of pages whose bytes do not verify whether they are damaged, or were overwritten while
  /// they were read: then there is another head by now.
  /// @param torn By position among the reads.
  static void explain(page_client& reader, const range_reads& reads,
                      const std::vector<result<range_answer>>& answers, time_point deadline,
                      std::map<size_t, error>& torn);

  /// The client, made when it is needed first.
  result<page_client*> client();

  /// Compares a header with what was asked for.
  static result<page_header> verify_header(std::span<const std::byte> bytes,
                                           const page_search& what, const replica& from);

  /// Logs a page that did not verify, and notes whom to tell.
  static void doubt(const page_search& what, const replica& from, const error& why,
                    member_pages& doubtful);

  /// Has the members look at pages that are not as the index says.
  static void tell_corrupt(const route_map& routes, member_pages doubtful);

  page_reader_options options_;
  /// So that readers differ.
  uint64_t salt_;
  const std::shared_ptr<route_table> table_ = std::make_shared<route_table>();
  std::mutex mutex_; // Guards what follows.
  /// The last list of all, and until when it is taken for that.
  std::vector<member_info> members_;
  time_point members_until_;
  std::unique_ptr<page_client> client_;
  batch_copier copier_;
};

} // namespace hicache
