#pragma once

#include "backends/store_outcomes.hpp"
#include "backends/tiered/tiered_backend.hpp"
#include "cache/store/store_breaker.hpp"
#include "cache/tiers/byte_budget.hpp"
#include "cache/tiers/use_history.hpp"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hicache {

class tiered_core;

/// A store of an order, and what is known of it. `tiered_core` guards what follows the rules.
struct tier_state {
  /// Differs from those of all other tiers, also of those that have left.
  uint64_t id = 0;
  std::unique_ptr<storage_backend> store;
  store_capabilities capabilities;
  tier_rules rules;
  store_breaker reads;
  store_breaker writes;
  byte_budget budget;
  /// As in tier_health.
  uint64_t written_bytes = 0;
  uint64_t over_budget = 0;
  /// It takes no calls.
  bool is_suspended = false;
  /// Calls in progress, and copies on their way to it.
  size_t running = 0;
  /// Calls past their deadline that have not returned.
  size_t late = 0;

  bool takes(tier_writes::rule which) const noexcept { return rules.writes.which == which; }
};

/// Tiers, the fastest first.
using tier_order = std::vector<std::shared_ptr<tier_state>>;

/// A call of a batch at a tier.
struct tier_call {
  /// Index in the batch's order, as in all functions with a batch.
  size_t tier = 0;
  store_call kind = store_call::exists;
  store_breaker::pass pass;
  /// The tier's number for it; 0 until it is known.
  storage_backend::batch_number number = 0;
  /// Its deadline has passed.
  bool is_late = false;
};

/// A batch of a tiered store that is not answered yet. `tiered_core` guards the members.
class tier_batch : public std::enable_shared_from_this<tier_batch> {
public:
  explicit tier_batch(time_point deadline) : until(deadline) {}

  virtual ~tier_batch() = default;

  /// Makes the list of objects. On a worker's thread; may throw what making it throws.
  virtual void list() = 0;

  /// Whether `begin` must follow `list` also if this tier is the only one. Else that tier's store
  /// makes the list: the change to a worker's thread would cost more than all the rest.
  virtual bool needs_list(const tier_state& only) const {
    static_cast<void>(only);
    return false;
  }

  /// Submits the first calls, after `list` or in place of it.
  virtual void begin(tiered_core& core) = 0;

  /// Answers. Called at most once, after the last call has ended.
  virtual void answer(tiered_core& core) = 0;

  /// Answers all objects with an error, instead of `begin`.
  virtual void refuse(const error& why) = 0;

  /// Its deadline.
  const time_point until;
  storage_backend::batch_number number = 0;
  /// The tiers in use when it began.
  std::shared_ptr<const tier_order> tiers;
  bool has_begun = false;
  bool is_expired = false;
  /// A tier has answered.
  bool has_outcome = false;
  /// Calls in progress, and steps that may submit more.
  size_t open = 0;
  std::map<uint64_t, tier_call> calls;
};

/// Objects on their way to a tier, in memory of their own.
struct tier_copies {
  struct object {
    page_key key;
    page_key parent;
    uint64_t tenant = 0;
    uint64_t fingerprint = 0;
    std::vector<std::byte> bytes;
  };

  std::vector<object> objects;
  uint64_t bytes = 0;
  /// They come from a tier below.
  bool are_promoted = false;
};

/// What happens to the batches of a tiered store: shared by the store, its threads and the
/// completions of the tiers. Any thread.
class tiered_core : public std::enable_shared_from_this<tiered_core> {
public:
  using batch_ptr = std::shared_ptr<tier_batch>;
  using batch_number = storage_backend::batch_number;
  using expiry = storage_backend::expiry;

  /// @param options Without their tiers, which `open` takes.
  tiered_core(const tiered_options& options, const clock_source& clock);

  bool looks_up_in_parallel() const noexcept { return looks_up_in_parallel_; }

  // -- tiers --------------------------------------------------------------------

  /// Takes in the first tiers. Call it once, first.
  /// @returns as make_tiered_backend
  result<void> open(std::vector<store_tier> tiers);

  /// The tiers in use.
  std::shared_ptr<const tier_order> order();

  /// Their names.
  tier_names names();

  result<void> attach_memory(std::span<const std::span<std::byte>> regions);

  /// As those of tiered_store.
  result<void> add(store_tier tier, size_t at);
  result<void> suspend(size_t at, std::chrono::nanoseconds time);
  void resume(size_t at);
  bool remove(size_t at, std::chrono::nanoseconds grace);
  bool is_shared_without(size_t at);

  // -- batches ------------------------------------------------------------------

  /// Who begins with a batch.
  enum class beginner : uint8_t {
    /// The submitting thread, if the only tier can make the list.
    submitter,
    /// A worker: the submitting thread may be a store's.
    worker,
  };

  batch_number submit(const batch_ptr& batch, beginner who = beginner::submitter);

  expiry expire(batch_number number);

  /// Closes all tiers; as storage_backend::close.
  bool close(std::chrono::nanoseconds grace);

  /// A worker's thread.
  void work();

  // -- steps of a batch ---------------------------------------------------------

  /// Asks a tier's breaker. Each pass must be shown to `call`.
  /// @returns nothing if the call must not reach the tier
  std::optional<store_breaker::pass> admit(tier_state& tier, store_call kind);

  /// Calls a tier.
  /// @param submit Called with the tier's store and completion; returns its number.
  /// @param on_answer Called with the tier's answer, on any thread, unless the call is withdrawn.
  template <class Answer, class Submit, class OnAnswer>
  void call(const batch_ptr& batch, size_t tier, store_call kind, store_breaker::pass pass,
            Submit submit, OnAnswer on_answer);

  bool is_expired(const batch_ptr& batch);

  // -- copies -------------------------------------------------------------------

  /// Counts a use of each object.
  /// @returns the uses of each so far
  std::vector<uint32_t> count_uses(std::span<const page_read> objects);

  /// Whether an object that a tier had is to be copied to others.
  static bool has_copies(const tier_order& tiers, size_t from, uint32_t uses) noexcept;

  /// Copies an object that a tier had, as far as memory and budgets allow.
  /// @param copies By tier; the copies are added.
  void copy(const tier_order& tiers, const page_read& object, size_t from, uint32_t uses,
            std::vector<tier_copies>& copies);

  /// As storage_backend::watch_losses. What an upper tier evicts is lost if the tier below was to
  /// take it and cannot; else what the last tier evicts that takes all or what is evicted.
  bool watch_losses(storage_backend::loss_watch watch);

  /// As storage_backend::watch_evictions, without bytes: of objects that no tier has any more.
  /// Those of tiers that do not tell are left out.
  bool watch_evictions(storage_backend::eviction_watch watch);

  /// Writes copies to their tiers, in the background.
  void write_copies(const tier_order& tiers, std::vector<tier_copies> copies);

  /// Takes the bytes of objects from a tier's budget, as far as it reaches. The others are counted.
  /// @returns the number of objects, from the first on
  size_t take_budget(tier_state& tier, std::span<const page_write> objects);

  /// Counts bytes that a tier has stored, and gives its budget those back that it has not.
  void end_write(tier_state& tier, uint64_t stored, uint64_t failed);

  // -- figures ------------------------------------------------------------------

  void count(const std::vector<result<void>>& outcomes, bool is_read);

  /// Sums up the tiers' healths. A tier that is left out is not usable.
  backend_health sum_of(const tier_order& tiers, std::vector<backend_health> healths);

private:
  std::shared_ptr<tier_state> make_tier(store_tier from);

  /// Checks an order, and has its stores tell what the tiers below them take, and what is lost.
  result<void> arrange(const tier_order& tiers);

  /// Has the last tier of an order that takes objects tell what it loses, and no other one.
  /// @returns whether it can
  bool arrange_losses(const tier_order& tiers);

  /// Gives new batches the tiers that are not suspended.
  /// @pre the lock is held
  void update_order();

  /// Copies what a tier evicts to the next one, if that takes it, as far as memory and budgets
  /// allow. What is not copied may be gone.
  void take_evicted(uint64_t from, std::span<const evicted_object> objects);

  /// Tells which of the objects no tier has. Nothing is told of those that cannot be looked up.
  void tell_gone(std::vector<page_key> keys);

  /// Gives a batch the tiers in use.
  /// @pre the lock is held
  void start(tier_batch& batch);

  /// Ends calls of a tier.
  /// @pre the lock is held
  void end_calls(tier_state& tier, size_t calls);

  /// Ends one of a batch's calls or steps, and answers it after the last one.
  void release(const batch_ptr& batch);

  /// Notes the tier's number of a call, and ends its wait if the batch has expired.
  void note(const batch_ptr& batch, uint64_t serial, batch_number number);

  /// Takes a finished call off the books.
  void finish(const batch_ptr& batch, uint64_t serial, ec failure);

  /// Ends the wait for a call whose deadline has passed.
  /// @returns whether the tier has withdrawn it
  bool expire_call(const batch_ptr& batch, uint64_t serial);

  /// Changes a breaker.
  /// @returns the sentence for the notice if reads or writes begin to be left out, or work again;
  /// else an empty text
  /// @pre the lock is held
  std::string with_breaker(tier_state& tier, store_call kind,
                           const std::function<void(store_breaker&)>& change);

  void notify(const std::string& sentence) const;

  /// Takes memory and budget for a copy.
  /// @returns false if there is none
  bool take_copy(tier_state& to, uint64_t bytes);

  const bool looks_up_in_parallel_;
  const uint64_t copy_bytes_;
  const duration copy_time_;
  const breaker_policy breaker_;
  const std::function<void(const std::string&)> notice_;
  const clock_source& clock_;
  /// Set before the first batch.
  storage_backend::loss_watch losses_;
  storage_backend::eviction_watch evictions_;
  /// Whether all tiers tell what they evict.
  bool tells_evictions_ = false;

  std::mutex mutex_; // Guards what follows, and the batches.
  std::condition_variable changed_;
  std::condition_variable idle_;
  /// All tiers, and those in use.
  tier_order tiers_;
  std::shared_ptr<const tier_order> order_;
  tier_names names_;
  uint64_t last_id_ = 0;
  std::vector<std::span<std::byte>> memory_;
  std::unordered_map<batch_number, batch_ptr> batches_;
  /// FIFO: a batch waits only until its list and those before it are made. What takes long are the
  /// calls, whose order is the tiers' own.
  std::deque<batch_ptr> waiting_;
  batch_number last_number_ = 0;
  uint64_t last_serial_ = 0;
  use_history history_;
  uint64_t copying_bytes_ = 0;
  backend_counters counters_;
  bool is_closing_ = false;
};

template <class Answer, class Submit, class OnAnswer>
void tiered_core::call(const batch_ptr& batch, size_t tier, store_call kind,
                       store_breaker::pass pass, Submit submit, OnAnswer on_answer) {
  auto serial = uint64_t{0};
  {
    const auto lock = std::scoped_lock{mutex_};
    serial = ++last_serial_;
    batch->calls.emplace(serial, tier_call{tier, kind, pass});
    ++batch->open;
  }
  auto done
    = [self = shared_from_this(), batch, serial, on_answer = std::move(on_answer)](Answer answer) {
        self->finish(batch, serial, failure_of(answer));
        on_answer(std::move(answer));
        self->release(batch);
      };
  note(batch, serial, submit(*(*batch->tiers)[tier]->store, std::move(done)));
}

} // namespace hicache
