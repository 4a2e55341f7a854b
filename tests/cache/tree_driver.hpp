#pragma once

#include "cache/hash/page_hash.hpp"
#include "cache/prefix/prefix_cache.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace hicache::test {

using tokens_t = std::vector<token_id>;

/// Tokens from..to-1.
tokens_t range(token_id from, token_id to);

tokens_t operator+(tokens_t a, const tokens_t& b);

token_buffer share(tokens_t tokens);

/// A tree of one rank with everything around it played by simple memory: a page holds one word that
/// stands for its bytes, copies move words when the test says so, and L3 is a map. So a page that
/// ends up in the wrong place shows.
class tree_driver {
public:
  /// (tokens on the device, tokens that follow on the host)
  using hit = std::pair<uint64_t, uint64_t>;

  explicit tree_driver(const tree_options& options);

  // -- whole requests ---------------------------------------------------------

  /// Matches all of `tokens`, and closes the request again.
  hit match(const tokens_t& tokens, const cache_namespace& ns = {});

  /// Runs a request that computes what the cache lacks and inserts it. @returns the length that was
  /// cached before.
  uint64_t insert(const tokens_t& tokens, const cache_namespace& ns = {});

  /// The same with priority, retention or as part of a prefill.
  uint64_t insert(const tokens_t& tokens, const cache_namespace& ns, insert_request hints);

  /// @returns the tokens evicted at once.
  uint64_t evict(uint64_t tokens);

  uint64_t evict_l2(uint64_t tokens);

  /// Loads the host part of `tokens` back and closes the request. @returns the tokens loading.
  uint64_t load_back(const tokens_t& tokens);

  // -- parts of requests ------------------------------------------------------

  request_id open(const tokens_t& tokens, const cache_namespace& ns = {});

  void close(request_id request);

  load_result load(request_id request);

  /// Allocates and "computes" pages for `tokens`. @returns false if there are no pages.
  bool compute(request_id request, const tokens_t& tokens);

  insert_result insert_open(request_id request, const tokens_t& tokens);

  insert_result insert_open(const insert_request& asked);

  const match_result& matched(request_id request) const { return requests_.at(request).matched; }

  // -- copies and steps -------------------------------------------------------

  /// Carries out the oldest `count` copies of a kind that are pending.
  void run_writes(size_t count = SIZE_MAX);
  void run_loads(size_t count = SIZE_MAX);
  void run_backups(size_t count = SIZE_MAX);
  /// The store does not return from the oldest backup in time; it may still read the pages.
  void give_up_backup();
  /// The store returns from all of those.
  void end_late_backups();

  void run_all();

  /// Lets the writes that make room in L1 become facts. @returns whether there were any.
  bool let_pages_leave();

  /// Everything that is in flight becomes a fact.
  void finish();

  /// A step of a single rank: what was carried out becomes a fact.
  std::vector<ready_request> poll();

  /// What this rank would offer.
  step_facts offer() const;

  /// Applies facts; `facts.fetches` and `facts.backups` may say less than was offered.
  std::vector<ready_request> apply(const step_facts& facts);

  /// Pages that the oldest fetch finds from now on at most; -1 keeps it running.
  std::function<int64_t(fetch_id, int64_t)> fetch_length
    = [](fetch_id, int64_t found) { return found; };

  /// Pages of a backup that L3 takes.
  std::function<uint64_t(operation_id, uint64_t)> backup_length
    = [](operation_id, uint64_t pages) { return pages; };

  /// Reads what L3 has of the fetches that are open into pages of the reserve.
  void run_fetches();

  // -- what happened ----------------------------------------------------------

  std::vector<uint64_t> writes;  ///< Pages of each write command.
  std::vector<uint64_t> loads;   ///< Pages of each load command.
  std::vector<uint64_t> backups; ///< Pages of each backup command.
  insert_result last_insert;     ///< The answer to the latest insert().
  int64_t now_ns = 0;            ///< This rank's clock.
  uint64_t terminates = 0;
  uint64_t drops = 0;
  bool is_reclaimed = false; ///< The tree took the reserve back.
  uint64_t fetches = 0;
  std::map<page_key, uint64_t> store;
  std::deque<page_index> reserve;

  uint64_t l2_free() const { return tree.stats().l2_free * page_size_; }
  uint64_t evictable() const { return tree.stats().l1_evictable * page_size_; }
  uint64_t protected_size() const { return tree.stats().l1_protected * page_size_; }
  uint64_t total() const { return evictable() + protected_size(); }

  /// The words that pages of these tokens must hold.
  std::vector<uint64_t> contents(const tokens_t& tokens, const cache_namespace& ns) const;

  /// Takes the tree's effects and checks it. Call after using `tree` directly.
  void settle();

  prefix_cache tree;

private:
  struct open_state {
    tokens_t tokens;
    cache_namespace ns;
    match_result matched;
  };

  struct open_fetch {
    fetch_command command;
    std::vector<page_index> arrived;
    int64_t found = 0;
    bool is_run = false;
  };

  void check_device(const open_state& request, const page_list& pages, uint64_t tokens) const;

  uint32_t page_size_;
  uint32_t overlap_;
  uint64_t layers_;
  request_id next_request_ = 1;
  std::map<request_id, open_state> requests_;
  std::map<fetch_id, open_fetch> fetches_;
  std::deque<write_command> pending_writes_;
  std::deque<load_command> pending_loads_;
  std::map<operation_id, backup_command> pending_backups_;
  std::vector<backup_command> late_backups_;
  /// What steps say of backups that ran, and those that the tree dropped.
  std::map<operation_id, int64_t> stored_;
  std::set<operation_id> dropped_;
  uint64_t writes_run_ = 0;
  uint64_t loads_run_ = 0;
  std::vector<uint64_t> device_memory_;
  std::vector<uint64_t> host_memory_;
  std::vector<bool> is_loading_;
};

} // namespace hicache::test
