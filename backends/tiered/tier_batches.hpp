#pragma once

#include "backends/tiered/tiered_core.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// A place in a tier: what a tiered store's places refer to.
struct tier_place {
  /// Its index when the object was looked up, and `tier_state::id`.
  size_t tier = 0;
  uint64_t id = 0;
  store_place inner;
};

/// The items with these numbers.
template <class T>
std::vector<T> picked(const std::vector<T>& from, const std::vector<size_t>& wanted) {
  auto some = std::vector<T>{};
  some.reserve(wanted.size());
  for (const auto i : wanted)
    some.push_back(from[i]);
  return some;
}

/// A batch that is answered by an outcome of each object.
template <class Object, class Outcome = void>
class tier_outcomes : public tier_batch {
public:
  using outcomes_done = std::function<void(std::vector<result<Outcome>>)>;

  tier_outcomes(store_batch<Object> batch, time_point deadline, outcomes_done done)
    : tier_batch(deadline), batch_(std::move(batch)), done_(std::move(done)) {}

  void list() override {
    objects_ = make_list();
    has_list_ = true;
  }

  void refuse(const error& why) override {
    done_(std::vector<result<Outcome>>(batch_.size(), tl::unexpected{why}));
  }

protected:
  virtual std::vector<Object> make_list() { return batch_.list(); }

  /// Some objects, for a store. Without a list it makes and keeps that: then these are the first.
  /// @param self Owns this.
  store_batch<Object> batch_of(std::shared_ptr<tier_batch> self, std::vector<size_t> wanted) {
    const auto size = wanted.size();
    return {size, [this, self = std::move(self), wanted = std::move(wanted)] {
              if (has_list_)
                return picked(objects_, wanted);
              auto first = make_list();
              first.resize(wanted.size());
              return first;
            }};
  }

  const store_batch<Object> batch_;
  const outcomes_done done_;
  std::vector<Object> objects_;
  bool has_list_ = false;
};

/// Finds the first tier of each object.
class tier_lookup final : public tier_outcomes<page_key, store_place> {
public:
  using tier_outcomes::tier_outcomes;

  void begin(tiered_core& core) override;
  void answer(tiered_core& core) override;

private:
  /// Asks a tier for what is not found yet, or the next one if it is left out.
  void ask(tiered_core& core, size_t tier);

  /// Asks a tier for these objects.
  void ask(tiered_core& core, size_t tier, store_breaker::pass pass, std::vector<size_t> wanted);

  /// Objects that no tier has said to have.
  std::vector<size_t> missing();

  std::mutex mutex_; // Guards the places.
  std::vector<std::optional<tier_place>> places_
    = std::vector<std::optional<tier_place>>(batch_.size());
};

/// Reads each object from the tier where it was found, and what fails there from the next ones.
class tier_read final : public tier_outcomes<page_read> {
public:
  tier_read(store_batch<page_read> pages, time_point deadline, storage_backend::pages_done done,
            storage_backend::read_progress progress)
    : tier_outcomes(std::move(pages), deadline, std::move(done)), progress_(std::move(progress)) {}

  void begin(tiered_core& core) override;
  void answer(tiered_core& core) override;

private:
  std::vector<page_read> make_list() override;

  /// Takes the place in a tier out of that in the order.
  /// @returns the tier
  size_t take_place(page_read& page) const;

  /// Reads these objects from a tier, or the next one if it is left out.
  void read(tiered_core& core, size_t tier, std::vector<size_t> wanted);

  void finish(tiered_core& core, size_t tier, const std::vector<size_t>& wanted,
              const std::vector<result<void>>& outcomes);

  /// Reports objects whose parts nobody uses any more.
  void report(size_t tier, std::span<const size_t> wanted, std::span<const result<void>> outcomes);

  const storage_backend::read_progress progress_;
  /// The tier in which each object was found.
  std::vector<size_t> found_in_;
  /// Of each object; not counted if there is no other tier to copy it to.
  std::vector<uint32_t> uses_;
  /// Each object is read from one tier at a time, so its outcome needs no lock.
  std::vector<result<void>> outcomes_;
};

/// Writes to all tiers that take all writes.
class tier_write final : public tier_outcomes<page_write> {
public:
  using tier_outcomes::tier_outcomes;

  /// A budget is taken object by object.
  bool needs_list(const tier_state& only) const override {
    return only.rules.bytes_per_second > 0 || only.rules.bytes_per_day > 0;
  }

  void begin(tiered_core& core) override;
  void answer(tiered_core& core) override;

private:
  /// Notes the objects' bytes.
  std::vector<page_write> make_list() override;

  void write(tiered_core& core, size_t tier, store_breaker::pass pass);

  /// By object; 0 before there is a list.
  std::vector<uint64_t> bytes_ = std::vector<uint64_t>(batch_.size());
  std::mutex mutex_; // Guards the outcomes.
  std::vector<std::optional<result<void>>> outcomes_;
};

/// Removes from all tiers.
class tier_remove final : public tier_outcomes<page_key> {
public:
  using tier_outcomes::tier_outcomes;

  void begin(tiered_core& core) override;
  void answer(tiered_core& core) override;

private:
  std::mutex mutex_; // Guards the outcomes.
  std::vector<result<void>> outcomes_;
  size_t answers_ = 0;
};

/// Lists a part of the objects of one tier, without those that tiers above it have.
class tier_list final : public tier_batch {
public:
  tier_list(std::string from, time_point deadline, storage_backend::list_done done)
    : tier_batch(deadline), from_(std::move(from)), done_(std::move(done)) {}

  void list() override {}
  void begin(tiered_core& core) override;
  void answer(tiered_core& core) override;
  void refuse(const error& why) override { done_(tl::unexpected{why}); }

private:
  /// Where a part begins: object_list::next.
  struct position {
    size_t tier = 0;
    /// A tier before could not be listed.
    bool has_failed = false;
    /// Of that tier.
    std::string inner;
  };

  static position parse(const std::string& from);
  static std::string print(const position& at);

  /// Asks the tier, or the next one if it is left out.
  void ask(tiered_core& core, position at);

  void take(tiered_core& core, position at, result<object_list> part);

  /// Asks the tiers above that one which objects of the part they have.
  void look_above(tiered_core& core, size_t tier);

  const std::string from_;
  const storage_backend::list_done done_;
  result<object_list> part_ = fail(ec::deadline_exceeded);
  std::mutex mutex_; // Guards what follows.
  /// By object of the part.
  std::vector<bool> is_above_;
};

} // namespace hicache
