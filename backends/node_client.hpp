#pragma once

#include "backends/remote_pages.hpp"
#include "base/batch_copier.hpp"
#include "hicache/clock.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/interfaces.hpp"
#include "transport/memory_sharing.hpp"

#include <caf/actor_system.hpp>
#include <caf/timespan.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// How a process uses a node. All referred to outlives the client and its views.
struct node_client_options {
  caf::actor_system* system = nullptr;
  /// Connects to nodes; see rpc_network::node_connector.
  connector_actor connector;
  /// Where the node is: unix:PATH for that of this host, HOST:PORT for one of another machine.
  std::string address;
  client_info who;
  /// How long leases are asked for; 0: as long as the node gives them.
  duration lease{};
  const clock_source* clock = nullptr;
};

/// What is looked at of pages before they are shown.
enum class page_check {
  /// All of it: what is shown may be read in place.
  whole,
  /// That it is the page, by its header: for those that will be copied, which verifies them.
  header,
};

/// Pages of a node that are leased. They stay where they are, and as they are, until this is
/// destroyed or its time is over, even if the node ends. Of a node on another machine they are
/// copies in this process, and nothing is leased any more. Move-only. Several threads may read it.
class leased_view {
public:
  leased_view(leased_view&& other) noexcept;

  leased_view& operator=(leased_view&& other) noexcept;

  /// Ends the lease. Waits for nobody.
  ~leased_view();

  /// The objects, key by key; empty where the node has none, or what it has does not verify.
  const std::vector<std::span<const std::byte>>& pages() const noexcept { return pages_; }

  /// Copies one of the pages, and verifies the copy.
  /// @returns not_found; corrupt_page; invalid_argument if the parts have not the object's length
  /// @pre position < pages().size()
  result<void> copy(size_t position, std::span<const std::span<std::byte>> parts) const;

  /// Looks whether all bytes of one of the pages are still those that were stored.
  /// @returns not_found; corrupt_page
  /// @pre position < pages().size()
  result<void> check(size_t position) const;

  /// From then on the bytes may change: whoever is still reading must not use what it read.
  time_point until() const noexcept { return until_; }

private:
  friend class node_client;

  /// A node that was attached to, and its memory; both last as long as anybody uses them.
  struct attached_node {
    node_actor node;
    /// One of the two: how bytes go.
    std::optional<mapped_peer_memory> memory;
    std::optional<remote_pages> remote;
  };

  leased_view() = default;

  void release() noexcept;

  std::shared_ptr<const attached_node> from_;
  uint64_t lease_ = 0;
  time_point until_;
  std::vector<std::span<const std::byte>> pages_;
  /// Where they are, if they are copies.
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  /// From the headers.
  std::vector<uint64_t> checksums_;
  /// Positions of those that the node has and that do not verify.
  std::vector<size_t> damaged_;
};

/// A process that stores pages in a node and reads them from there: bytes go by mapped memory, or
/// in messages if the node is on another machine, all else by messages. Any thread; calls block up
/// to their deadlines, those that read limits::node_answer_slack longer if the node hangs.
///
/// While the node is not there, everything is a miss and nothing is stored; a call finds the node
/// again once it is back, at the earliest limits::node_pause after the last try. What was stored
/// before is there only if the node kept it.
class node_client {
public:
  explicit node_client(node_client_options options);

  node_client(const node_client&) = delete;

  node_client& operator=(const node_client&) = delete;

  /// Connects if need be.
  /// @returns why the node cannot be used: peer_unreachable, or what it answered
  result<void> connect(time_point deadline);

  /// Copies the parts of a page into the node's memory.
  using page_writer = std::function<result<void>(size_t position, std::span<std::byte> object)>;

  /// Stores pages that the node has not yet.
  /// @param writer For parts that this process cannot read itself. Called by several threads.
  /// @returns for each: store_full if there is no room; limit_reached if this client or its tenant
  /// may not write as much at a time; peer_unreachable; deadline_exceeded; invalid_argument
  std::vector<result<void>> put(std::span<const page_write> pages, time_point deadline,
                                const page_writer& writer = {});

  /// Reads pages, in copies. Waits for those that other members have up to the deadline.
  /// @returns for each: not_found; corrupt_page if its bytes do not verify; invalid_argument if the
  /// parts have not the object's length; peer_unreachable; deadline_exceeded; limit_reached
  std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline);

  /// The same in place.
  /// @param is_chain Each page follows on from the one before, and none behind a gap is wanted.
  result<leased_view> view(std::span<const page_key> keys, bool is_chain, time_point deadline,
                           page_check check = page_check::whole);

  /// Brings pages of other members to the node, and leases none.
  /// @returns for each whether it is there
  result<std::vector<bool>> prefetch(std::span<const page_key> keys, bool is_chain,
                                     time_point deadline);

  /// Which pages the node has now. Waits for no other member.
  result<std::vector<bool>> exists(std::span<const page_key> keys, time_point deadline);

  /// Withdraws pages from the node. Views of them can be read to their end.
  /// @returns for each: peer_unreachable; deadline_exceeded. A page that is not there is no error.
  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline);

  result<node_status> status(const status_query& query, time_point deadline);

private:
  using attached_ptr = std::shared_ptr<const leased_view::attached_node>;

  /// The node, attached to.
  result<attached_ptr> attached(time_point deadline);

  result<attached_ptr> attach(time_point deadline);

  /// Asks the node, and forgets it if that shows that it is gone.
  template <class Answer, class Verb, class Request>
  result<Answer> ask_node(const attached_ptr& node, caf::timespan timeout, Verb verb,
                          Request request);

  /// How long the answer of a node is waited for that takes until the deadline itself: a moment
  /// more, so that it is not lost on the way.
  caf::timespan patience(time_point deadline) const;

  /// How much of the time that is left the node may wait for pages of other members: of one on
  /// another machine the bytes take the rest.
  duration time_to_wait(duration left) const;

  /// Has the next call attach anew; the connection ends with the last call and view that use it.
  void forget(const attached_ptr& node);

  /// Which pages the node has, after that many milliseconds at most in which it may bring them.
  result<std::vector<bool>> find(std::span<const page_key> keys, bool is_chain, uint64_t wait_ms,
                                 time_point deadline);

  /// The bytes of a leased page, if they are in the memory.
  static std::span<const std::byte> object_at(const leased_view::attached_node& node,
                                              const page_place& place);

  /// @returns the checksum in the page's header, or why it is not the page
  result<uint64_t> expected_checksum(const leased_view::attached_node& node, const page_key& key,
                                     const page_place& place) const;

  /// Copies pages to where they are reserved.
  /// @returns those that can be read there now; the others' outcome is set
  result<complete_pages> write(const leased_view::attached_node& node,
                               std::span<const page_write> pages, const reserved_pages& got,
                               const page_writer& writer, std::vector<result<void>>& outcome);

  /// The same for a node on another machine.
  /// @returns all of them, or why not all of them arrived
  static result<complete_pages> send(const leased_view::attached_node& node,
                                     std::span<const page_write> pages, const reserved_pages& got,
                                     time_point deadline);

  /// Copies a leased page, and verifies it.
  result<void> read(const leased_view::attached_node& node, const page_read& page,
                    const page_place& place) const;

  /// The same with those of the pages that a node on another machine has leased.
  void receive(const attached_ptr& node, std::span<const page_read> pages,
               const leased_pages& leased, std::vector<result<void>>& outcome, time_point deadline);

  /// Copies leased pages of a node on another machine, and ends the lease.
  leased_view copies_of(const attached_ptr& node, std::span<const page_key> keys,
                        const leased_pages& leased, time_point deadline);

  /// Tells the node of pages that are not what it says, and ends the lease.
  static void finish(const leased_view::attached_node& node, uint64_t lease,
                     std::vector<page_key> damaged);

  /// Has pages leased.
  result<leased_pages> look_up(const attached_ptr& node, std::span<const page_key> keys,
                               bool is_chain, time_point deadline);

  node_client_options options_;
  batch_copier copier_;
  std::timed_mutex mutex_; // Guards what follows; held while the node is connected to.
  attached_ptr attached_;
  /// After a failure: not before.
  std::optional<time_point> next_try_;
  error last_failure_;
};

} // namespace hicache
