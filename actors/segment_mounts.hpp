#pragma once

#include "actors/offered_pages.hpp"
#include "backends/cluster/index_link.hpp"
#include "cache/store/mount_progress.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace hicache {

/// How a segment reaches the index and other members.
struct segment_mounts_options {
  /// How the index and readers see this member; each mount increments the epoch.
  member_info member;
  /// The currently reachable shards of the index.
  std::function<index_view_ptr()> index;
  /// Resolves another member to its actor.
  std::function<member_actor(const member_info&)> reach;
  /// Called when a request to a shard failed.
  std::function<void(const index_actor&)> index_lost;
  /// Called with the shard map digest in a reply.
  std::function<void(uint64_t)> index_heard;
  /// Timeout of one request to a shard.
  caf::timespan timeout{};
  /// Called with announced pages that the index refuses. Set by the segment.
  std::function<void(const std::vector<page_key>&)> refused;
  /// Called with pages that lost a copy on another member. Set by the segment.
  std::function<void(const std::vector<page_key>&)> lost;
};

/// A segment's mounts at the shards of the index. Mounts at each shard, announces changes to the
/// pages whose keys the shard keeps, and reports all such pages to a shard that is new or has lost
/// its state. Both keepers of a key receive the same changes, each in order.
///
/// When a shard is lost, its report stops at the last confirmed page, and keys of unconfirmed
/// changes are recorded. If the shard returns and remembers the member, the report resumes there,
/// followed by the current state of those keys.
class segment_mounts {
public:
  /// @param self, offered Must outlive this.
  segment_mounts(segment_actor::pointer self, segment_mounts_options options,
                 const offered_pages& offered);

  /// Updates the shards; mounts where this member is not mounted.
  void look_at_index();

  /// Sends a heartbeat to every shard. @param is_closed Whether this member takes no more pages.
  void send_heartbeat(const member_counters& counters, bool is_closed);

  /// Announces pages that are new or have moved. Calls `then` when each reachable shard has
  /// answered or failed.
  /// @param only_new As in published_pages.
  void publish(const std::vector<announced_page>& pages, const std::function<void()>& then,
               bool only_new = false);

  void withdraw(const std::vector<page_key>& keys);

  /// Reports all pages on disk to every shard, again if they were.
  void report_disk();

  /// Mounts anew at every shard, which drops all announcements, and reports what is offered now.
  void start_over();

  /// Tells every shard that this member leaves. Calls `then` when each reachable one has answered
  /// or failed.
  void leave(const std::function<void()>& then);

  /// Calls `then` when each reachable shard has received a report of all pages.
  void when_settled(std::function<void()> then);

  /// The heartbeat interval that the index expects.
  caf::timespan heartbeat_pause() const noexcept { return heartbeat_pause_; }

  const segment_mounts_options& options() const noexcept { return options_; }

private:
  /// Pages of which a shard is the first keeper, and those of which it is the second.
  template <class Page>
  using kept_pages = std::array<std::vector<Page>, 2>;

  /// This member at one shard of the index.
  struct mounting {
    /// Null unless mounted.
    index_actor shard;
    mount_progress progress;
    /// As in membership.
    bool takes_disk = false;
  };

  /// Applies a changed shard set: announces pages to their new keepers and withdraws them from the
  /// old ones.
  void reshard(const shard_set& now);

  /// Groups pages by the numbers of the shards that keep their keys.
  /// @param key_of The key of a page, for std::invoke.
  template <class Page, class KeyOf>
  std::map<uint32_t, kept_pages<Page>> by_shard(const std::vector<Page>& pages, KeyOf key_of) const;

  /// Announces pages to a shard that keeps them. Releases `then` when it has answered or cannot be
  /// reached.
  void tell(uint32_t number, kept_pages<announced_page> pages, const std::shared_ptr<void>& then,
            bool only_new = false);

  /// Mounts at a shard under a new epoch and reports the published pages that it keeps.
  void mount(uint32_t number, const index_actor& shard);

  /// Reports the published pages that a shard keeps, batch by batch from the last confirmed one,
  /// then its unsettled keys.
  void report(uint32_t number);

  /// Records keys whose changes a shard may have missed; sends their state if it is mounted.
  void unsettle(uint32_t number, const std::vector<page_key>& keys);

  /// Sends a shard the current state of its unsettled keys.
  void tell_unsettled(uint32_t number);

  /// Sends a batch of this member's pages to a shard. Calls `then` with whether the shard has taken
  /// it.
  void announce(uint32_t number, published_pages batch, std::function<void(bool)> then);

  /// The same; records the keys if the shard has not taken it. Releases `then` at the end.
  void announce_or_unsettle(uint32_t number, published_pages batch,
                            const std::shared_ptr<void>& then);

  void heartbeat_at(uint32_t number);

  void withdraw_from(uint32_t number, const std::vector<page_key>& keys);

  /// Applies a shard's view of this member; remounts if the shard does not know it.
  /// @returns false for a view under an older epoch, which is ignored
  bool apply_view(uint32_t number, uint64_t epoch, const membership& view);

  void on_index_error(uint32_t number, const index_actor& lost, const caf::error& err);

  /// Calls the callbacks of when_settled() if no report is running.
  void settle();

  segment_actor::pointer self_;
  segment_mounts_options options_;
  const offered_pages& offered_;
  /// By number.
  std::map<uint32_t, mounting> mounts_;
  /// The keys of `mounts_`.
  shard_set shards_;
  member_counters counters_;
  caf::timespan heartbeat_pause_;
  std::vector<std::function<void()>> waiting_;
};

/// The index entry of a page in memory or on disk.
announced_page announce(const stored_page& page) noexcept;

} // namespace hicache
