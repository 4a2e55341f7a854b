#pragma once

#include "cache/prefix/prefix_cache.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace hicache::test {

/// A prefix in whole pages: the number of its namespace, then the number of each page's content.
using model_path = std::vector<uint32_t>;

inline uint64_t page_count(const model_path& path) {
  return path.empty() ? 0 : path.size() - 1;
}

inline model_path first_pages(const model_path& path, uint64_t pages) {
  return {path.begin(), path.begin() + static_cast<ptrdiff_t>(pages) + 1};
}

inline bool begins_with(const model_path& path, const model_path& part) {
  return part.size() <= path.size() && std::equal(part.begin(), part.end(), path.begin());
}

/// What is known of one cached page.
struct model_page {
  bool in_l1 = false;
  bool in_l2 = false;
  /// True while the page is written to L2 so that it can leave L1 (write_back).
  bool is_write_back_pending = false;
  /// Where it is on the device; 0 if no answer has told yet.
  page_index l1_page = 0;
  node_use use;
  /// Pages of one run stand in one node: what was inserted at once and not cut since.
  uint64_t run = 0;

  // Counted anew from the holders when needed.
  uint32_t l1_locks = 0;
  uint32_t l2_locks = 0;
  uint32_t pins = 0;
  uint32_t references = 0;
};

/// What prefix_cache promises, for one rank without L3 whose copies finish at once, written for
/// clarity: a map of pages by prefix, in which everything is found by looking at all of it. There
/// is no tree and nothing is kept that can be counted.
class model_cache {
public:
  explicit model_cache(const tree_options& options) : options_(options) {}

  /// Does what the operation asks for and compares the answer with what it should be. Numbers that
  /// are the cache's choice (nodes, pages, generations) are learned, and must be the same from then
  /// on.
  /// @returns what differs; empty if nothing does.
  std::string follow(const tree_operation& operation, const tree_answer& answer);

  /// A step: the time of new pins begins, that of others may be over.
  void advance(int64_t now_ns);

  /// Compares the state. @returns what differs; empty if nothing does.
  std::string compare(const prefix_cache& cache);

private:
  using page_map = std::map<model_path, model_page>;

  /// What keeps pages: a device part and the path as a whole; the latter is empty if all of it is
  /// on the device.
  struct holder {
    model_path device;
    model_path host;
  };

  struct open_request {
    model_path root;
    holder held;
    std::vector<page_index> owned;
    std::vector<token_id> tokens;
    session_id session = 0;
  };

  /// How long a pin keeps its path: until a moment, if a step has told the time since; and for so
  /// long from the next step on, if it was asked for since the last one.
  struct open_pin {
    std::optional<int64_t> expiry_ns;
    std::optional<int64_t> asked_ns;
  };

  struct open_session {
    uint64_t generation = 0;
    request_id request = 0;
    /// What the last turn inserted; empty for nothing.
    model_path reference;
  };

  // Each handler does one operation.
  void perform(const match_request& asked, const tree_answer& answer);
  void perform(const prefetch_request& asked, const tree_answer& answer);
  void perform(const schedule_request& asked, const tree_answer& answer);
  void perform(const load_request& asked, const tree_answer& answer);
  void perform(const allocate_request& asked, const tree_answer& answer);
  void perform(const insert_request& asked, const tree_answer& answer);
  void perform(const release_request& asked, const tree_answer& answer);
  void perform(const evict_request& asked, const tree_answer& answer);
  void perform(const pin_request& asked, const tree_answer& answer);
  void perform(const unpin_request& asked, const tree_answer& answer);
  void perform(const open_session_request& asked, const tree_answer& answer);
  void perform(const close_session_request& asked, const tree_answer& answer);
  void perform(const lock_request& asked, const tree_answer& answer);
  void perform(const unlock_request& asked, const tree_answer& answer);
  void perform(const write_request& asked, const tree_answer& answer);
  void perform(const load_node_request& asked, const tree_answer& answer);
  void perform(const clear_request& asked, const tree_answer& answer);

  // -- comparing --------------------------------------------------------------

  void same(std::string_view name, uint64_t expected, uint64_t found);
  /// @returns true if both succeed and the answer has the right kind.
  template <class T>
  const T* agreed(ec expected, const tree_answer& answer);
  /// The answer's pages must be those of `path`, then `owned`.
  void same_pages(const model_path& path, const std::vector<page_index>& owned,
                  const page_list& found);
  /// The node must be the one at the end of `path`, the same as ever.
  void same_node(const model_path& path, node_id found);
  void same_locks(const lock_result& found);
  void compare_stats(const tree_stats& found);
  /// @param path What the node ends with; `parent` is what its parent ends with.
  void compare_node(const node_view& found, const model_path& parent, const model_path& path);
  void compare_order(std::string_view name, std::vector<std::pair<uint64_t, uint64_t>> moments);

  // -- paths ------------------------------------------------------------------

  /// The whole pages of these tokens, at most `limit` tokens of them.
  model_path path_of(const model_path& root, const std::vector<token_id>& tokens, uint64_t limit);
  model_path root_of(const cache_namespace& ns);
  /// The longest beginning of `path` that is cached.
  model_path cached_part(const model_path& path) const;
  /// The part of `path` that is on the device.
  model_path l1_part(const model_path& path) const;
  /// What the node ends with, if any page of it is cached.
  std::optional<model_path> find_node(node_id node) const;
  const cache_namespace& namespace_of(const model_path& path) const;
  uint64_t whole_pages(uint64_t tokens) const;
  uint64_t tokens(uint64_t pages) const { return pages * options_.page_size; }

  // -- pages ------------------------------------------------------------------

  /// Ends a run with `path`; what follows keeps the run's number.
  void cut(const model_path& path);
  /// The longest run of pages that end with `path` and share its node, at most `most`.
  std::vector<model_path> tail_of(const model_path& path, uint64_t most) const;
  void forget(const model_path& path);
  void count_holders();
  uint64_t count(bool (*wanted)(const model_page&)) const;
  /// Places in which the model knows this device page.
  uint64_t uses_of(page_index page) const;
  uint64_t l1_free() const;
  uint64_t l2_free() const;
  uint64_t l1_evictable() const;
  uint64_t l2_evictable() const;
  template <class Predicate>
  bool has_below(page_map::const_iterator page, Predicate wanted) const;
  /// Where a page stands in the order of eviction: the smallest goes first.
  using place = std::tuple<int, eviction_rank, uint64_t, model_path>;

  std::optional<place> next_l1_victim() const;
  std::optional<place> next_l2_victim() const;
  uint64_t evict_l1(uint64_t count);
  void evict_tail(const place& first, std::vector<model_path> tail);
  void drop(const std::vector<model_path>& tail);
  uint64_t write_back_for(const place& page, uint64_t wanted);
  uint64_t evict_l2(uint64_t count);
  uint64_t evict_l2_tail(const model_path& victim, uint64_t most);
  /// Makes room, if it can be made. @returns false if there is none (yet).
  bool make_l1_room(uint64_t count);
  bool make_l2_room(uint64_t count);
  uint64_t pending_write_backs() const;
  void finish_copies();

  // -- parts of operations ----------------------------------------------------

  void load(const model_path& path);
  uint64_t least_hits() const;
  uint64_t write(const model_path& path, uint64_t least_hits, bool may_evict);
  uint64_t missing_in_l2(const model_path& path) const;
  bool fits_budget(const model_path& path);
  void begin_pin(const model_path& path, std::chrono::nanoseconds ttl);
  ec check_insert(const insert_request& asked) const;
  void give_pages(open_request& request, const model_path& path, int32_t priority,
                  uint64_t& duplicates);

  tree_options options_;
  page_map pages_;
  std::map<request_id, open_request> requests_;
  std::map<session_id, open_session> sessions_;
  std::map<node_id, std::deque<holder>> locks_;
  std::map<model_path, open_pin> pins_;
  /// Paths that an operation at hand works on.
  std::vector<holder> busy_;
  /// The run that each node stands for, and the node of each run.
  std::map<node_id, uint64_t> runs_;
  std::map<uint64_t, node_id> nodes_;
  std::map<cache_namespace, uint32_t> namespaces_;
  std::map<std::vector<token_id>, uint32_t> contents_;
  uint64_t last_run_ = 0;
  uint64_t last_generation_ = 0;
  uint64_t moment_ = 0;
  int64_t now_ns_ = 0;
  uint64_t evicted_l1_ = 0;
  uint64_t evicted_l2_ = 0;
  std::string difference_;
};

} // namespace hicache::test
