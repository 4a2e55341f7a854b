#pragma once

#include "cache/prefix/prefix_cache.hpp"
#include "tests/cache/tree_driver.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace hicache::test {

/// An engine with sessions, of one rank. Its memory holds a word per token that depends on all
/// tokens before it, so a token that is answered from the wrong place shows; so does a write to a
/// page that the cache shares. Copies are carried out as soon as they are asked for, and become
/// facts with a step.
class session_engine {
public:
  explicit session_engine(const tree_options& options);

  // -- requests ---------------------------------------------------------------

  session_ref open_session(session_id name, bool streaming);

  /// Matches all tokens but the last one and checks what the answer's slots hold.
  match_result match(request_id request, const tokens_t& tokens, const session_ref& session = {});

  load_result load(request_id request);

  /// Allocates slots for `tokens` and writes those that are not cached. @returns false if there are
  /// no pages.
  bool compute(request_id request, const tokens_t& tokens);

  insert_result insert(request_id request, const tokens_t& tokens);

  void release(request_id request);

  /// A whole turn. @returns false if there are no pages; then it ends without an insert.
  bool run(const tokens_t& tokens, const session_ref& session = {});

  /// Tokens of the prefix that an ordinary request finds on the device.
  uint64_t cached(const tokens_t& tokens);

  // -- steps ------------------------------------------------------------------

  /// All copies become facts, and every prefetch that is to end has brought `fetched` pages.
  std::vector<ready_request> step(uint64_t fetched = 0);

  /// Steps until nothing is in flight.
  void finish();

  prefix_cache cache;
  uint64_t terminates = 0;

private:
  struct open_request {
    /// Tokens that need not be computed, as the cache said.
    uint64_t known = 0;
    /// Pages that the engine knows of.
    page_list pages;
  };

  void check(const tokens_t& tokens, uint64_t count, const page_list& pages) const;
  void take_effects();

  uint32_t page_size_;
  request_id next_request_ = 1'000'000;
  std::map<request_id, open_request> requests_;
  std::vector<uint64_t> device_;
  std::vector<uint64_t> host_;
  /// Pages of the device that the cache may show to everyone.
  std::vector<bool> is_shared_;
  std::deque<page_index> reserve_;
  step_facts facts_;
  std::map<operation_id, int64_t> backed_up_;
};

} // namespace hicache::test
