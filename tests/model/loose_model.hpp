#pragma once

#include "tests/model/model_cache.hpp"
#include "tests/model/sequence.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace hicache::test {

/// What must hold whenever copies finish: pages hold what they are said to hold, nothing is found
/// that was not inserted, and what somebody holds is found.
class loose_model {
public:
  explicit loose_model(const tree_options& options) : options_(options) {}

  /// Before the operation: writes what the engine computed into the pages that it inserts.
  void prepare(const tree_operation& operation, page_memory& memory);

  /// @returns what is wrong with the answer; empty if nothing is.
  std::string follow(const tree_operation& operation, const tree_answer& answer,
                     const page_memory& memory);

  void advance(int64_t now_ns);

  /// After a step: these requests hold nothing that can be relied on any more.
  /// @param has_failed True if a load failed, which may have ended pins.
  void lose(std::span<const request_id> requests, bool has_failed);

  /// Looks at the sizes after an operation. @returns what is wrong; empty if nothing is.
  std::string compare(const tree_stats& stats);

private:
  struct open_request {
    cache_namespace ns;
    /// Words of the prompt's pages, and of those in the device part.
    std::vector<uint64_t> prompt;
    std::vector<uint64_t> words;
    /// All pages that the request has.
    std::vector<page_index> pages;
    bool has_failed = false;
  };

  struct open_pin {
    std::vector<uint64_t> words;
    int64_t ttl_ns = 0;
    /// Set by the first step.
    std::optional<int64_t> expiry_ns;
  };

  std::string matched(const match_request& asked, const match_result& found,
                      const page_memory& memory);
  std::string allocated(const allocate_request& asked, const tree_answer& answer);
  /// A word for each whole page: stands for the namespace and all tokens up to the page's end.
  std::vector<uint64_t> words_of(const cache_namespace& ns,
                                 const std::vector<token_id>& tokens) const;
  std::string check_contents(const std::vector<uint64_t>& words, uint64_t count,
                             const page_list& pages, const page_memory& memory) const;

  tree_options options_;
  std::map<request_id, open_request> requests_;
  /// Every page that was ever inserted.
  std::set<uint64_t> inserted_;
  std::vector<open_pin> pins_;
  tree_stats before_;
};

} // namespace hicache::test
