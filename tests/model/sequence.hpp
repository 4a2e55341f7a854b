#pragma once

#include "cache/oplog/op_log.hpp"
#include "cache/prefix/prefix_cache.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

namespace hicache::test {

/// Finishes the oldest copies of each kind, at most so many, and lets time pass.
struct step_action {
  uint64_t writes = 0;
  uint64_t loads = 0;
  int64_t passed_ns = 0;
  /// The last one of each kind that this step finishes fails.
  bool fail_write = false;
  bool fail_load = false;
};

/// One thing to do with a cache. Nodes and generations are known only when it is done, so an action
/// names the earlier action that answered them; an action can thus be left out without changing
/// what the others mean.
struct action {
  uint64_t number = 0;
  std::variant<tree_operation, step_action> what;
  /// The action whose answer holds the node or the generation that this one needs; 0 for none.
  uint64_t from = 0;
};

/// When copies become facts.
enum class copy_time : uint8_t {
  /// At once: after each operation until nothing is in flight.
  at_once,
  /// Only by step_action.
  late,
};

/// A cache and all that is done with it.
struct sequence {
  tree_options options;
  copy_time copies = copy_time::at_once;
  std::vector<action> actions;
};

/// What is wrong with an action of a sequence.
struct disagreement {
  /// Index into `sequence::actions`.
  size_t action = 0;
  std::string what;
};

/// Applies an operation: hicache::apply, or the same with a fault.
using apply_function = std::function<tree_answer(prefix_cache&, const tree_operation&)>;

/// What pages hold: a word that stands for the bytes. Words move when copies finish, so a page that
/// ends up in the wrong place shows.
struct page_memory {
  std::vector<uint64_t> device;
  std::vector<uint64_t> host;
  std::vector<bool> is_loading;
};

/// One cache and the copies around it, which finish when the sequence says so.
class cache_player {
public:
  /// @param log Where to write the op log to, line by line, each before it is done; may be null.
  explicit cache_player(const tree_options& options, std::ostream* log = nullptr,
                        apply_function apply = hicache::apply);

  /// The action's operation, with what it takes from earlier answers filled in.
  /// @pre The action is no step.
  tree_operation complete(const action& each) const;

  /// Carries out what was completed.
  tree_answer perform(const action& each, const tree_operation& operation);

  /// A step in which the oldest copies become facts, at most so many of each kind.
  void step(const step_action& facts);

  /// Finishes all that is in flight. @returns true if that took a step.
  bool settle();

  const prefix_cache& cache() const noexcept { return cache_; }

  page_memory& memory() noexcept { return memory_; }

  int64_t now_ns() const noexcept { return done_.now_ns; }

private:
  struct copy {
    page_list from;
    page_list to;
  };

  void note(op_log_event event);
  void take_effects();

  prefix_cache cache_;
  apply_function apply_;
  std::ostream* log_;
  page_memory memory_;
  std::deque<copy> writes_;
  std::deque<copy> loads_;
  step_facts done_;
  /// The node or generation that each action answered.
  std::map<uint64_t, uint64_t> answered_;
};

/// Plays a sequence against the models and checks every invariant after each action. Aborts where
/// the cache's own checks do.
/// @returns nothing if cache and models agree to the end.
std::optional<disagreement> play(const sequence& played,
                                 const apply_function& apply = hicache::apply);

/// Plays a sequence without models.
/// @param log Where to write the op log to; may be null.
/// @returns the digest after the last action.
uint64_t play_alone(const sequence& played, std::ostream* log = nullptr,
                    const apply_function& apply = hicache::apply);

/// The options in one line, for messages.
std::string describe(const sequence& played);

} // namespace hicache::test
