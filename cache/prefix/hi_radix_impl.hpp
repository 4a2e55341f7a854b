#pragma once

// The inside of hi_radix_tree: requests, copies in flight and the prefetch reserve around a
// radix_tree.

#include "cache/prefix/hi_radix_tree.hpp"
#include "cache/radix/radix_tree.hpp"

#include <absl/container/btree_set.h>
#include <absl/container/flat_hash_map.h>

#include <deque>
#include <map>
#include <string>

namespace hicache {

/// A request between match and release.
struct open_request {
  request_id id = 0;
  token_buffer tokens;
  /// Tokens of the match.
  uint64_t prompt_tokens = 0;
  /// Whole pages of `tokens` that may be answered from the cache.
  uint64_t limit_pages = 0;
  radix_node* root = nullptr;
  /// End of the device part, device-locked; the root if the part is empty.
  radix_node* device_end = nullptr;
  /// End of the host part, host-locked; null if the part is empty.
  radix_node* host_end = nullptr;
  /// Pages of the device part: the tree's.
  uint64_t device_pages = 0;
  uint64_t host_pages = 0;
  /// Pages after the device part that are this request's own.
  std::vector<page_index> owned;
  /// The device part's pages and then `owned`, as last told to the engine.
  page_list pages;
  /// Names of the pages of `keyed_tokens`, if they were computed.
  key_list keys;
  token_buffer keyed_tokens;
  /// The prefetch that it waits for, or 0.
  fetch_id fetch = 0;
  bool had_fetch = false;
  /// True once the engine wants to run it.
  bool is_scheduled = false;
  /// When its prefetch is over by the policy `timeout`; 0 until a step told the time.
  int64_t stop_ns = 0;
  /// True if that moment has passed.
  bool is_overdue = false;
  /// Pages of the prefix that hold valid bytes, if a load of its device part failed: then it can
  /// only be released.
  uint64_t valid_pages = UINT64_MAX;
  /// Tokens that the prefetch was asked for.
  uint64_t wanted_tokens = 0;
  /// Pages [from, to) of the prefix that prefetches brought.
  uint64_t fetched_from = 0;
  uint64_t fetched_to = 0;

  // For its provenance.

  /// Pages that it loaded from L2, and of these what L3 had brought for it.
  uint64_t loaded_pages = 0;
  uint64_t loaded_from_storage = 0;
  std::string storage_backend;
  /// Pages on the device when it first allocated pages to compute in.
  uint64_t served_pages = 0;
  bool has_computed = false;
  /// Pages of the prefix that L2 held or L3 was known to hold, and why they were not all used.
  uint64_t known_pages = 0;
  give_up why = give_up::none;

  uint64_t matched_pages() const noexcept { return device_pages + host_pages; }

  bool has_failed() const noexcept { return valid_pages != UINT64_MAX; }

  uint64_t digest() const noexcept;
};

/// A prefetch between its command and the step that ends it. Outlives its requests if they are
/// released early.
struct open_fetch {
  /// Who waits for it, in the order in which they came; a prefix of their keys is that of `keys`.
  std::vector<request_id> requests;
  cache_namespace ns;
  std::string backend;
  uint64_t epoch = 0;
  token_buffer tokens;
  key_list keys;
  /// Pages matched when it was issued: what arrives follows on them.
  uint64_t first = 0;
  bool is_terminated = false;

  uint64_t digest(fetch_id id) const noexcept;
};

/// A write to L3 between its command and the step that ends it.
struct open_backup {
  /// The last node of the path concerned; splits leave it so.
  radix_node* end = nullptr;
  uint64_t pages = 0;
  uint64_t epoch = 0;
  /// The last node above it that L2 lacks, device-locked, since what it keeps on the host hangs
  /// from there; null if L2 has the whole path.
  radix_node* device_end = nullptr;
  bool is_dropped = false;
  /// True after a rank's store did not answer in time: the backup is over, but its pages stay
  /// locked until no rank's store reads them any more.
  bool is_in_quarantine = false;
};

/// Operations of one kind: numbered, finished in issue order. `end` is the last node of the path
/// concerned; splits leave it so.
struct operation_queue {
  struct entry {
    operation_id id = 0;
    radix_node* end = nullptr;
    layer_progress_ptr progress;
  };

  uint64_t issued = 0;
  uint64_t done = 0;
  std::deque<entry> in_flight;

  operation_id begin(radix_node& end, layer_progress_ptr progress = nullptr) {
    in_flight.push_back({++issued, &end, std::move(progress)});
    return issued;
  }

  /// The oldest operation, removed.
  entry finish_oldest() {
    auto oldest = std::move(in_flight.front());
    in_flight.pop_front();
    ++done;
    return oldest;
  }
};

/// A lock that somebody holds by a node's handle: ends of what it covers.
struct handle_lock {
  radix_node* device_end = nullptr;
  /// Null if all was on the device.
  radix_node* host_end = nullptr;
};

/// A pin ends with a node and at a moment of logical time.
struct open_pin {
  radix_node* end = nullptr;
  int64_t expiry_ns = 0;
  /// False until the first step tells the time; then the pin is in `expiries`.
  bool is_timed = false;
  /// What was asked for since the last step, or 0: counts from the next one.
  int64_t asked_ttl_ns = 0;
  /// The longest that was ever asked for.
  int64_t ttl_ns = 0;
};

/// @relates open_pin
uint64_t pin_digest(node_id end, const open_pin& pin) noexcept;

struct hi_radix_tree::impl {
  explicit impl(const tree_options& opts);

  // -- operations of the engine, see hi_radix_tree ----------------------------

  result<match_result> match(const match_request& request);
  result<prefetch_result> prefetch(request_id id);
  result<schedule_result> schedule(request_id id);
  result<load_result> load_back(const load_request& asked);
  result<allocate_result> allocate(const allocate_request& asked);
  result<insert_result> insert(const insert_request& request);
  result<void> release(request_id id);
  evict_result evict(const evict_request& asked);
  result<pin_result> pin(const pin_request& asked);
  pin_result unpin(const unpin_request& asked);
  result<lock_result> lock(node_id id);
  result<lock_result> unlock(node_id id);
  result<backup_result> backup(node_id id);
  result<load_node_result> load_node(const load_node_request& asked);
  result<uint64_t> refer(node_id id);
  result<void> clear();
  void change_storage(const storage_change& change);
  request_provenance provenance(const open_request& request) const;
  std::vector<ready_request> step(const step_facts& facts, std::span<const page_list> arrived);

  // -- requests ---------------------------------------------------------------

  result<open_request*> find(request_id id);
  /// Sets the request's device and host part to the longest match of at most `limit` pages, and
  /// moves its locks there.
  void match_again(open_request& request, uint64_t limit);
  /// Moves the device part's end, and its lock, to `end`.
  void move_device_end(open_request& request, radix_node& end);
  void drop_host_part(open_request& request);
  /// Adds what others brought to the device meanwhile.
  void extend_device_part(open_request& request);
  void list_pages(open_request& request);
  /// Brackets every change of a request: keeps the sum of their digests.
  void before_change(const open_request& request) { requests_digest -= request.digest(); }
  void after_change(const open_request& request) { requests_digest += request.digest(); }
  result<void> check_insert(const open_request& request, const insert_request& asked) const;
  /// Gives the request's own pages to the nodes of the tokens, creating them where they lack.
  /// @returns the last node.
  radix_node& hand_over(open_request& request, const insert_request& asked, uint64_t pages,
                        uint64_t& duplicates);

  void copy_inserted(radix_node& end);

  // -- names ------------------------------------------------------------------

  /// Names of pages [from, to) of `tokens`, which follow on `parent`.
  std::vector<page_key> keys_of(const open_request& request, const token_buffer& tokens,
                                uint64_t from, uint64_t to, const radix_node& parent) const;
  key_list keys_of_prefix(const open_request& request) const;

  // -- copies -----------------------------------------------------------------

  /// Inserts along a node from which the write policy wants it in L2, and L3, while L1 has it.
  uint64_t least_hits() const noexcept;
  /// Takes L2 pages for a node that is written next. @returns false if there are none.
  bool take_copy(radix_node& node);
  /// Writes the nodes of the path that L2 lacks, root first, up to the first with fewer hits or for
  /// which there is no room. Without `may_evict` room is what is free, but for what is pinned,
  /// which could not leave L1 otherwise; and if L2 is lent, since then copies have a place in it.
  /// @returns how many pages.
  uint64_t write_path(radix_node& end, uint64_t least_hits, bool may_evict);
  /// Issues the write of nodes whose host pages were set, root first.
  void begin_write(const std::vector<radix_node*>& nodes);
  /// Begins to load the host part of the path to `end`, for which `pages` were taken.
  layer_progress_ptr begin_load(radix_node& end, std::vector<page_index> pages);
  error no_device_pages(std::string what, uint64_t pages) const;
  void finish_write(const operation_queue::entry& write);
  /// L2 does not get these pages.
  void fail_write(const operation_queue::entry& write);
  void finish_load(const operation_queue::entry& load);
  /// The pages of the load hold no valid bytes, nor does what was computed from them.
  void fail_load(const operation_queue::entry& load);
  /// Takes the node and all below it out of the tree, and tells the requests that use them.
  void discard(radix_node& top);
  layer_progress_ptr progress_on(const radix_node& end) const;
  /// Evicts ahead of requests where a tier is below its watermark.
  void make_room();

  // -- pins -------------------------------------------------------------------

  /// Pages that a pin on this path would keep beyond those that pins keep already.
  static uint64_t unpinned_pages(const path_end& end);
  bool fits_budget(const path_end& end) const;
  uint64_t retain(radix_node& end, std::chrono::nanoseconds ttl);
  void begin_pin(radix_node& end, std::chrono::nanoseconds ttl);
  void end_pin(node_id end);
  /// Begins the time of all pins anew that end on the path to `end`, if the options want that.
  void refresh_pins(const radix_node& end);
  void advance(int64_t now);

  // -- backups ----------------------------------------------------------------

  /// Begins to write to L3 what it lacks of the path to `end`: nodes whose parent it has, as far as
  /// L2 has them.
  void back_up_path(radix_node& end);
  /// Issues the backup of nodes of one path, each the parent of the next.
  void begin_backup(const std::vector<radix_node*>& nodes);
  void drop_backup(operation_id id, open_backup& backup);
  /// Has the path to `end` copied to L2 for L3's sake, as far as L3 lacks it, when its turn comes.
  void want_staged(const radix_node& end);
  /// Begins such copies as far as L2's share for them allows.
  void stage();
  /// Nodes of one path, each the parent of the next, that L3 takes as soon as L2 has them.
  std::vector<radix_node*> unstaged_run(radix_node& end) const;
  /// What all ranks agreed on about an open backup, as a step's facts say it.
  using backup_fact = std::pair<operation_id, int64_t>;
  /// Puts names to a step's facts, before anything else of the step: it may begin backups.
  std::vector<backup_fact> name_backups(std::span<const int64_t> stored) const;
  void finish_backups(std::span<const backup_fact> facts);
  void give_up_backup(operation_id id);
  void release_backup(operation_id id);
  void finish_backup(operation_id id, uint64_t stored);

  // -- prefetches -------------------------------------------------------------

  /// Pages of the prefix that the request could still get from L3, or 0 if that is not worth it.
  uint64_t wanted_pages(const open_request& request) const;
  /// Issues a fetch of what follows the request's match, or joins the one that brings it.
  void begin_fetch(open_request& request);
  /// Where the request stops agreeing with what the fetch brings, in pages of the prefix.
  static uint64_t shared_end(const open_request& request, const open_fetch& fetch);
  void terminate(fetch_id id, open_fetch& fetch);
  /// True if the request is to run with what has arrived.
  bool must_stop(const open_request& request) const noexcept;
  /// Ends the prefetches of scheduled requests whose time is over.
  void stop_overdue();
  void forget_stop_time(open_request& request);
  void finish_fetches(const step_facts& facts, std::span<const page_list> arrived,
                      std::vector<ready_request>& ready);
  /// Has the next step begin with this open prefetch.
  void turn_to(fetch_id id);
  /// A fetch that a request waited for has ended: it is ready, or goes on with the rest.
  void finish_waiting(open_request& request, const open_fetch& fetch, const fetch_fact& fact,
                      std::pair<uint64_t, uint64_t> taken, std::vector<ready_request>& ready);
  /// Enters pages that arrived as host nodes.
  /// @returns the part [from, to) of the prefix that the tree took.
  std::pair<uint64_t, uint64_t> place(const open_fetch& fetch, uint64_t count,
                                      const page_list& arrived);
  /// Gives the prefetcher the pages of `unused`, and as many more as its reserve lacks and L2 can
  /// spare.
  void refill(std::vector<page_index> unused);
  /// After a release of L3: takes the reserve back as soon as no fetch is open.
  void reclaim();

  uint64_t digest() const noexcept;
  void check_invariants() const;
  void check_locks() const;
  void check_pages() const;
  void check_pins() const;
  lock_result lock_sizes() const;

  uint64_t tokens(uint64_t pages) const noexcept { return pages * options.page_size; }

  tree_options options;
  radix_tree tree;
  absl::flat_hash_map<request_id, open_request> requests;
  /// In issue order, as is the list of the backups' numbers.
  std::map<fetch_id, open_fetch> fetches;
  /// In the order of their turns: the next step may end the first ones.
  std::vector<fetch_id> open_fetches;
  std::map<operation_id, open_backup> backups;
  /// In issue order; those in quarantine, of which there are `held_backups`, behind the others.
  std::vector<operation_id> open_backups;
  uint64_t held_backups = 0;
  /// Pages of backups in quarantine.
  uint64_t quarantined = 0;
  operation_queue writes;
  operation_queue loads;
  /// Pages of writes in flight.
  uint64_t writing_pages = 0;
  /// Ends of paths that wait to be staged, in the order in which they came.
  std::deque<node_id> unstaged;
  uint64_t fetches_issued = 0;
  uint64_t backups_issued = 0;
  /// Pages of backups that are not dropped.
  uint64_t backup_pages = 0;
  /// When prefetches are over by the policy `timeout`; and requests that wait to be told the time.
  absl::btree_set<std::pair<int64_t, request_id>> stop_times;
  std::vector<request_id> untimed;
  /// Counts attachments of L3: what was begun under an older one says nothing about this one.
  uint64_t storage_epoch = 0;
  /// True after L3 was released, until it is attached again.
  bool is_released = false;
  /// L2 pages that the prefetcher has, and which these are.
  uint64_t reserve = 0;
  std::vector<bool> in_reserve;
  std::vector<tree_effect> effects;
  /// Requests whose device part the last step lost.
  std::vector<request_id> failed;
  /// By the node that each ends with; and by the moment.
  std::map<node_id, open_pin> pins;
  absl::btree_set<std::pair<int64_t, node_id>> expiries;
  /// Pins whose `asked_ttl_ns` is set, in the order asked.
  std::vector<node_id> asked_pins;
  /// Pages that the pins of each tenant (salt) keep.
  std::map<std::string, uint64_t> pinned_pages;
  uint64_t pins_digest = 0;
  /// Logical time.
  int64_t now_ns = 0;
  std::map<node_id, std::deque<handle_lock>> handle_locks;
  uint64_t handle_locks_count = 0;
  bool is_stopped = false;
  uint64_t requests_digest = 0;
  uint64_t fetches_digest = 0;
};

} // namespace hicache
