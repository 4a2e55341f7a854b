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

/// The outcome of `count` pages that all failed.
inline std::vector<result<void>> all_fail(size_t count, const error& why) {
  return std::vector<result<void>>(count, tl::unexpected{why});
}

/// Settings of a node client. Everything referred to must outlive the client and its views.
struct node_client_options {
  caf::actor_system* system = nullptr;
  /// Connects to nodes; see rpc_network::node_connector.
  connector_actor connector;
  /// Address of the node: unix:PATH on this host, HOST:PORT on another machine.
  std::string address;
  client_info who;
  /// Requested duration of leases; 0: the node's default.
  duration lease{};
  const clock_source* clock = nullptr;
};

/// What is verified before a page is shown.
enum class page_check {
  /// Everything: the page may be read in place.
  whole,
  /// The header only: for pages that will be copied, which verifies them.
  header,
};

/// Leased pages of a node. They stay in place and unchanged until this is destroyed or the lease
/// expires, even if the node ends. For a node on another machine they are copies in this process,
/// without a lease. Its destruction ends the lease, without waiting for an answer. Move-only.
/// Several threads may read it.
class leased_view {
public:
  leased_view(leased_view&& other) = default;

  leased_view& operator=(leased_view&& other) = default;

  /// The objects, key by key; empty if the node lacks the page or it does not verify.
  const std::vector<std::span<const std::byte>>& pages() const noexcept { return pages_; }

  /// Copies a page and verifies the copy.
  /// @returns not_found; corrupt_page; invalid_argument if the parts have another length
  /// @pre position < pages().size()
  result<void> copy(size_t position, std::span<const std::span<std::byte>> parts) const;

  /// Checks whether all bytes of a page are still those that were stored.
  /// @returns not_found; corrupt_page
  /// @pre position < pages().size()
  result<void> check(size_t position) const;

  /// End of the lease. The bytes may change from then on: discard unfinished reads.
  time_point until() const noexcept { return until_; }

private:
  friend class node_client;

  /// An attached node and its memory; both last as long as they are in use.
  struct attached_node {
    node_actor node;
    /// Exactly one is set: the transport of the bytes.
    std::optional<mapped_peer_memory> memory;
    std::optional<remote_pages> remote;
  };

  leased_view() = default;

  /// Its deleter ends the lease.
  std::shared_ptr<const attached_node> from_;
  time_point until_;
  std::vector<std::span<const std::byte>> pages_;
  /// Storage of the pages, if they are copies.
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  /// From the headers.
  std::vector<uint64_t> checksums_;
  /// Positions of pages that the node has and that do not verify.
  std::vector<size_t> damaged_;
};

/// Stores pages in a node and reads them from there. Bytes go through mapped memory, or in messages
/// if the node is on another machine; all else uses messages. Any thread; calls block up to their
/// deadlines, reads limits::node_answer_slack longer if the node hangs.
///
/// While the node is unreachable, everything is a miss and nothing is stored. A call reconnects
/// once the node is back, at the earliest limits::node_pause after the last attempt. Earlier pages
/// are there only if the node kept them.
class node_client {
public:
  explicit node_client(node_client_options options);

  /// Connects if not connected.
  /// @returns why the node cannot be used: peer_unreachable, or the node's error
  result<void> connect(time_point deadline);

  /// Copies the parts of a page into the node's memory.
  using page_writer = std::function<result<void>(size_t position, std::span<std::byte> object)>;

  /// Stores pages that the node does not have yet.
  /// @param writer For parts that this process cannot read itself. Called by several threads.
  /// @returns per page: store_full if there is no room; limit_reached if this client or its tenant
  /// may not write as much at a time; peer_unreachable; deadline_exceeded; invalid_argument
  std::vector<result<void>> put(std::span<const page_write> pages, time_point deadline,
                                const page_writer& writer = {});

  /// Copies pages out of the node. Waits up to the deadline for pages of other members.
  /// @returns per page: not_found; corrupt_page if its bytes do not verify; invalid_argument if the
  /// parts do not have the object's length; peer_unreachable; deadline_exceeded; limit_reached
  std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline);

  /// Leases pages to read in place.
  /// @param is_chain Whether each page continues the one before; then none after a gap is fetched.
  result<leased_view> view(std::span<const page_key> keys, bool is_chain, time_point deadline,
                           page_check check = page_check::whole);

  /// Fetches pages of other members to the node, without leases.
  /// @returns whether each page is there
  result<std::vector<bool>> prefetch(std::span<const page_key> keys, bool is_chain,
                                     time_point deadline);

  /// Which pages the node has now. Does not wait for other members.
  result<std::vector<bool>> exists(std::span<const page_key> keys, time_point deadline) {
    return find(keys, false, 0, deadline);
  }

  /// Removes pages from the node. Existing views of them stay readable.
  /// @returns per page: peer_unreachable; deadline_exceeded. A missing page is not an error.
  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline);

  /// Removes all pages of the client's namespace from the node, or has them leave its memory first.
  /// Existing views stay readable.
  /// @returns what was in memory; peer_unreachable; deadline_exceeded
  result<page_totals> clear(bool evict_first, time_point deadline);

  result<node_status> status(const status_query& query, time_point deadline);

private:
  using attached_ptr = std::shared_ptr<const leased_view::attached_node>;

  /// The attached node; attaches if necessary.
  result<attached_ptr> attached(time_point deadline);

  result<attached_ptr> attach(time_point deadline);

  /// Sends a request to the node, and detaches if the error shows that the node is gone.
  template <class Answer, class Verb, class Request>
  result<Answer> ask_node(const attached_ptr& node, caf::timespan timeout, Verb verb,
                          Request request);

  /// Timeout of a request that the node may work on until the deadline, plus time for the answer.
  caf::timespan patience(time_point deadline) const;

  /// How much of the remaining time the node may wait for pages of other members; for a node on
  /// another machine, transferring the bytes takes the rest.
  duration time_to_wait(duration left) const;

  /// Makes the next call attach again; the connection ends with the last call or view that uses it.
  void forget(const attached_ptr& node);

  /// Which pages the node has after fetching pages for at most `wait_ms` milliseconds.
  result<std::vector<bool>> find(std::span<const page_key> keys, bool is_chain, uint64_t wait_ms,
                                 time_point deadline);

  /// The bytes of a leased page, if they lie within the memory.
  static std::span<const std::byte> object_at(const leased_view::attached_node& node,
                                              const page_place& place);

  /// @returns the checksum in the page's header, or why it is not the page
  result<uint64_t> expected_checksum(const leased_view::attached_node& node, const page_key& key,
                                     const page_place& place) const;

  /// Copies pages to their reserved places.
  /// @returns the pages that are complete; sets the outcome of the others
  result<complete_pages> write(const leased_view::attached_node& node,
                               std::span<const page_write> pages, const reserved_pages& got,
                               const page_writer& writer, std::vector<result<void>>& outcome);

  /// The same for a node on another machine.
  /// @returns all of them, or an error if not all arrived
  static result<complete_pages> send(const leased_view::attached_node& node,
                                     std::span<const page_write> pages, const reserved_pages& got,
                                     time_point deadline);

  result<void> read(const leased_view::attached_node& node, const page_read& page,
                    const page_place& place) const;

  /// The same for leased pages of a node on another machine.
  void receive(const attached_ptr& node, std::span<const page_read> pages,
               const leased_pages& leased, std::vector<result<void>>& outcome, time_point deadline);

  /// Copies leased pages of a node on another machine, and ends the lease.
  leased_view copies_of(const attached_ptr& node, std::span<const page_key> keys,
                        const leased_pages& leased, time_point deadline);

  /// Reports damaged pages to the node, and ends the lease.
  static void finish(const leased_view::attached_node& node, uint64_t lease,
                     std::vector<page_key> damaged);

  result<leased_pages> look_up(const attached_ptr& node, std::span<const page_key> keys,
                               bool is_chain, time_point deadline);

  node_client_options options_;
  batch_copier copier_;
  std::timed_mutex mutex_; // Guards the following members; held while connecting.
  attached_ptr attached_;
  /// After a failure: earliest time of the next attempt.
  std::optional<time_point> next_try_;
  error last_failure_;
};

} // namespace hicache
