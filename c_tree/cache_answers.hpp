#pragma once

#include "c_abi/own_process.hpp"
#include "hicache/error.hpp"
#include "hicache/operations.hpp"
#include "hicache_tree.h"
#include "messages/interfaces.hpp"

#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

struct hc_progress : hicache::own_process {
  hicache::layer_progress_ptr layers;
};

namespace hicache {

/// An outstanding request to the tree. One thread at a time.
class tree_call {
public:
  tree_call(caf::actor_system& system, const tree_actor& tree, tree_operations ops);

  /// @returns nothing if there is no answer within `time`
  std::optional<result<tree_answers>> wait(std::chrono::milliseconds time);

private:
  caf::scoped_actor self_;
  /// Takes the answer, which has arrived.
  std::function<result<tree_answers>()> take_;
};

/// Registry of a cache's answers that are not freed yet. Any thread.
class open_answers {
public:
  void add(hc_answers* answers);

  void remove(hc_answers* answers);

  /// Ends all answers when the cache is closed.
  void end();

private:
  std::mutex mutex_; // Guards what follows.
  std::unordered_set<hc_answers*> list_;
};

} // namespace hicache

/// Answers, or the call that waits for them.
struct hc_answers : hicache::own_process {
  template <class T>
  using result = hicache::result<T>;

  /// @param kinds Of the operations, one per answer.
  /// @param book Registers this object during its lifetime.
  hc_answers(std::vector<uint32_t> kinds, std::unique_ptr<hicache::tree_call> call,
             std::shared_ptr<hicache::open_answers> book);

  ~hc_answers();

  /// @returns deadline_exceeded if there is no answer within `time`; the tree's error, if it failed
  result<void> wait(std::chrono::milliseconds time);

  /// Called when the cache is closed: no answer will arrive. No thread may be in wait().
  void end();

  /// @returns empty until the answers have arrived
  std::span<const hc_answer> items() const;

private:
  void take(hicache::tree_answers answers);

  hc_answer view_of(uint32_t kind, const hicache::tree_answer& answer);

  const hc_l3_use* view_of(const hicache::request_provenance& from);

  const std::vector<uint32_t> kinds_;
  const std::shared_ptr<hicache::open_answers> book_;
  mutable std::mutex mutex_; // Guards what follows.
  std::unique_ptr<hicache::tree_call> call_;
  hicache::error failure_;
  /// Storage that the items point to.
  hicache::tree_answers answers_;
  std::deque<hc_progress> progress_;
  std::deque<std::vector<hc_tier_tokens>> tiers_;
  std::deque<hc_l3_use> uses_;
  std::vector<hc_answer> items_;
};
