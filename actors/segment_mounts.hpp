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

/// How a segment reaches the index.
struct segment_mounts_options {
  /// How the index and the readers see this member; each mount begins the next epoch.
  member_info member;
  /// The shards of the index as they can be reached now.
  std::function<index_view_ptr()> index;
  /// Another member itself.
  std::function<member_actor(const member_info&)> reach;
  /// Called when a request to a shard failed.
  std::function<void(const index_actor&)> index_lost;
  /// Called with the digest of the shard map that an answer names.
  std::function<void(uint64_t)> index_heard;
  /// What one request to a shard may take.
  caf::timespan timeout{};
  /// Called with pages that were announced and that the index does not take. Set by the segment.
  std::function<void(const std::vector<page_key>&)> refused;
  /// Called with pages whose copy elsewhere is lost. Set by the segment.
  std::function<void(const std::vector<page_key>&)> lost;
};

/// A segment at the shards of the index: mounts at each, keeps it informed of the pages whose keys
/// it keeps, and reports all of them to one that is new or has forgotten. Both keepers of a key are
/// told the same, each in the order in which it happened. Part of the segment actor.
///
/// When a shard is lost, a report stands still where the shard had confirmed it, and keys of which
/// the shard may or may not have heard are noted. A shard that is back and remembers the member
/// lets it resume: the report goes on, and then the shard hears how it stands with those keys.
class segment_mounts {
public:
  /// @param self, offered Must outlive this.
  segment_mounts(segment_actor::pointer self, segment_mounts_options options,
                 const offered_pages& offered);

  /// Takes the shards as they are now: mounts where this member is not mounted yet.
  void look_at_index();

  /// Tells every shard that this member is alive, and whether it takes no more pages.
  void send_heartbeat(const member_counters& counters, bool is_closed);

  /// Tells the index of pages that are offered from now on, or are elsewhere now. `then` is called
  /// when each shard that can be told has answered, or failed.
  void publish(const std::vector<announced_page>& pages, const std::function<void()>& then);

  /// Tells the index what is not offered any more.
  void withdraw(const std::vector<page_key>& keys);

  /// Tells every shard that this member ends; `then` is called when each that can be reached has
  /// answered, or failed.
  void leave(const std::function<void()>& then);

  /// Calls back when each shard that can be reached has heard of all pages.
  void when_settled(std::function<void()> then);

  /// How often the index wants to hear of this member.
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
  };

  /// Other shards keep the keys from now on: tells those that are not asked any more, and those
  /// that are.
  void reshard(const shard_set& now);

  /// By the number of the shard that keeps the key.
  template <class Page>
  std::map<uint32_t, kept_pages<Page>> by_shard(const std::vector<Page>& pages) const;

  /// Tells a shard of pages that it keeps; `then` is called when it has answered, or cannot be
  /// told.
  void tell(uint32_t number, kept_pages<announced_page> pages, const std::shared_ptr<void>& then);

  /// Mounts at a shard under a new epoch and reports the published pages that it keeps.
  void mount(uint32_t number, const index_actor& shard);

  /// Reports the published pages that a shard keeps, from where the report stands, one batch after
  /// the other; then what is unsettled.
  void report(uint32_t number);

  /// A shard may not have heard of a change to these keys: tells it, or notes them for later.
  void unsettle(uint32_t number, const std::vector<page_key>& keys);

  /// Tells a shard how it stands with its unsettled keys.
  void tell_unsettled(uint32_t number);

  /// Sends a batch of pages to a shard as this member's; `then` is called with whether the shard
  /// has taken it.
  void announce(uint32_t number, published_pages batch, std::function<void(bool)> then);

  /// Tells a shard that this member is alive, and has reported what it has.
  void heartbeat_at(uint32_t number);

  void withdraw_from(uint32_t number, const std::vector<page_key>& keys);

  /// Takes a shard's view of this member; mounts again if the shard does not know it.
  void apply_view(uint32_t number, uint64_t epoch, const membership& view);

  void on_index_error(uint32_t number, const index_actor& lost, const caf::error& err);

  /// A report has ended, well or not.
  void settle();

  segment_actor::pointer self_;
  segment_mounts_options options_;
  const offered_pages& offered_;
  /// By number.
  std::map<uint32_t, mounting> mounts_;
  /// Those of `mounts_`.
  shard_set shards_;
  member_counters counters_;
  caf::timespan heartbeat_pause_;
  std::vector<std::function<void()>> waiting_;
};

/// How others find a published page.
announced_page announce(const stored_page& page) noexcept;

} // namespace hicache
