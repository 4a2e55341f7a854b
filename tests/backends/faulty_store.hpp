#pragma once

#include "base/check.hpp"
#include "hicache/storage_backend.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace hicache::test {

/// What goes wrong with one batch.
enum class store_fault : uint8_t {
  none,
  /// Nothing happens before the test releases it. Then it is carried out, deadline or not.
  late,
  /// The same; but the first half of a read is carried out and reported at once.
  stuck,
  /// The first half is carried out; the other objects fail. A list fails.
  torn,
  /// A write is answered as if it were done. The objects of a lookup are removed after it, those of
  /// a read before it.
  lost,
  /// A read brings wrong bytes, which do not verify. A lookup answers the opposite. A write is done
  /// and answered as failed, a remove not done and answered as done.
  lying,
  /// There is no room for the objects of a write.
  full,
};

enum class batch_kind : uint8_t { lookup, read, write, remove, list };

/// A test double: a store in front of another one, in which things go wrong batch by batch. It has
/// no thread and no clock: what is late or stuck returns when the test says so, on the test's
/// thread. Any thread may call.
///
/// It keeps the contract of storage_backend as far as its user can tell: it touches the parts of a
/// batch until it has answered, and a read says which pages did not verify.
class faulty_store final : public storage_backend {
public:
  /// Says what goes wrong with the next batch. One thread at a time.
  using fault_source = std::function<store_fault(batch_kind)>;

  /// @param faults May be empty: nothing goes wrong.
  explicit faulty_store(std::unique_ptr<storage_backend> inner, fault_source faults = {})
    : inner_(std::move(inner)), faults_(std::move(faults)) {}

  void set_faults(fault_source faults) {
    const auto lock = std::scoped_lock{mutex_};
    faults_ = std::move(faults);
  }

  /// Lets the oldest late or stuck batch go on and end.
  /// @returns false if there is none
  bool release_one(store_fault fault) {
    auto lock = std::unique_lock{mutex_};
    const auto found = std::ranges::find(held_, fault, &held_batch::fault);
    if (found == held_.end())
      return false;
    const auto batch = std::move(*found);
    held_.erase(found);
    lock.unlock();
    batch.go_on();
    return true;
  }

  /// Late and stuck batches that wait.
  size_t held() {
    const auto lock = std::scoped_lock{mutex_};
    return held_.size();
  }

  /// Batches that were promotions. Their faults are those of writes.
  size_t promotions() {
    const auto lock = std::scoped_lock{mutex_};
    return promotions_;
  }

  /// Regions of memory that it was told of.
  size_t regions() {
    const auto lock = std::scoped_lock{mutex_};
    return regions_;
  }

  /// Lets all late and stuck batches go on.
  void release() {
    for (const auto fault : {store_fault::late, store_fault::stuck})
      while (release_one(fault))
        continue;
  }

  // -- storage_backend --------------------------------------------------------

  std::string name() const override { return inner_->name(); }

  store_capabilities capabilities() const override {
    return claimed_.value_or(inner_->capabilities());
  }

  /// Has it say that it is like this.
  void claim(const store_capabilities& what) { claimed_ = what; }

  tier_names tiers() const override { return inner_->tiers(); }

  result<void> attach_memory(std::span<const std::span<std::byte>> regions) override {
    const auto lock = std::scoped_lock{mutex_};
    regions_ = regions.size();
    return inner_->attach_memory(regions);
  }

  bool watch_evictions(eviction_watch watch, bool wants_bytes) override {
    return inner_->watch_evictions(std::move(watch), wants_bytes);
  }

  bool watch_losses(loss_watch watch) override { return inner_->watch_losses(std::move(watch)); }

  batch_number lookup(store_batch<page_key> keys, time_point deadline, lookup_done done) override {
    switch (const auto fault = draw(batch_kind::lookup)) {
      case store_fault::late:
      case store_fault::stuck:
        return hold(fault, [this, keys, done] { inner_->lookup(keys, time_point::max(), done); });
      case store_fault::torn:
        return inner_->lookup(keys, deadline, [done](std::vector<result<store_place>> found) {
          std::fill(found.begin() + half(found.size()), found.end(), torn());
          done(std::move(found));
        });
      case store_fault::lost: {
        auto list = keys.list();
        return inner_->lookup(list, deadline, [this, list, done](const auto& found) {
          inner_->remove(list, time_point::max(), [found, done](const auto&) { done(found); });
        });
      }
      case store_fault::lying:
        return inner_->lookup(keys, deadline, [done](std::vector<result<store_place>> found) {
          for (auto& object : found)
            object = object ? result<store_place>{fail(ec::not_found)} : store_place{};
          done(std::move(found));
        });
      case store_fault::none:
      case store_fault::full:
        break;
    }
    return inner_->lookup(std::move(keys), deadline, std::move(done));
  }

  batch_number read(store_batch<page_read> pages, time_point deadline, pages_done done,
                    read_progress progress) override {
    switch (draw(batch_kind::read)) {
      case store_fault::late:
        return hold(store_fault::late, [this, pages, done, progress] {
          const auto list = pages.list();
          spoil(list);
          inner_->read(list, time_point::max(), done, progress);
        });
      case store_fault::stuck:
        return read_and_stick(pages.list(), deadline, std::move(done), std::move(progress));
      case store_fault::torn: {
        auto list = pages.list();
        const auto middle = list.begin() + half(list.size());
        spoil({middle, list.end()});
        list.erase(middle, list.end());
        return inner_->read(std::move(list), deadline, completed(std::move(done), pages.size()),
                            std::move(progress));
      }
      case store_fault::lost: {
        const auto list = pages.list();
        inner_->remove(keys_of(list), time_point::max(),
                       [this, list, deadline, done, progress](const auto&) {
                         inner_->read(list, deadline, done, progress);
                       });
        return own_number();
      }
      case store_fault::lying: {
        const auto list = pages.list();
        spoil(list);
        const auto answers = outcomes(list.size(), fail(ec::corrupt_page));
        inner_->remove(keys_of(list), time_point::max(),
                       [answers, done](const auto&) { done(answers); });
        return own_number();
      }
      case store_fault::none:
      case store_fault::full:
        break;
    }
    return inner_->read(std::move(pages), deadline, std::move(done), std::move(progress));
  }

  batch_number write(store_batch<page_write> pages, time_point deadline, pages_done done) override {
    const auto size = pages.size();
    switch (const auto fault = draw(batch_kind::write)) {
      case store_fault::late:
      case store_fault::stuck:
        return hold(fault, [this, pages, done] { inner_->write(pages, time_point::max(), done); });
      case store_fault::torn:
        return inner_->write(first_half(pages), deadline, completed(std::move(done), size));
      case store_fault::lost:
        done(outcomes(size));
        return own_number();
      case store_fault::lying:
        return inner_->write(std::move(pages), deadline,
                             [done, size](const auto&) { done(outcomes(size, torn())); });
      case store_fault::full:
        done(outcomes(size, fail(ec::store_full)));
        return own_number();
      case store_fault::none:
        break;
    }
    return inner_->write(std::move(pages), deadline, std::move(done));
  }

  batch_number promote(store_batch<page_write> pages, time_point deadline,
                       pages_done done) override {
    {
      const auto lock = std::scoped_lock{mutex_};
      ++promotions_;
    }
    return write(std::move(pages), deadline, std::move(done));
  }

  batch_number remove(store_batch<page_key> keys, time_point deadline, pages_done done) override {
    const auto size = keys.size();
    switch (const auto fault = draw(batch_kind::remove)) {
      case store_fault::late:
      case store_fault::stuck:
        return hold(fault, [this, keys, done] { inner_->remove(keys, time_point::max(), done); });
      case store_fault::torn:
        return inner_->remove(first_half(keys), deadline, completed(std::move(done), size));
      case store_fault::lying:
        done(outcomes(size));
        return own_number();
      case store_fault::none:
      case store_fault::lost:
      case store_fault::full:
        break;
    }
    return inner_->remove(std::move(keys), deadline, std::move(done));
  }

  batch_number list(std::string from, time_point deadline, list_done done) override {
    if (draw(batch_kind::list) == store_fault::torn) {
      done(torn());
      return own_number();
    }
    return inner_->list(std::move(from), deadline, std::move(done));
  }

  void health(health_done done) override { inner_->health(std::move(done)); }

  expiry expire(batch_number number) override {
    if ((number & own) == 0)
      return inner_->expire(number);
    const auto lock = std::scoped_lock{mutex_};
    const auto is_held = std::ranges::find(held_, number, &held_batch::number) != held_.end();
    return is_held ? expiry::running : expiry::finished;
  }

  bool close(std::chrono::nanoseconds grace) override {
    auto lock = std::unique_lock{mutex_};
    const auto left_behind = std::exchange(held_, {});
    lock.unlock();
    return inner_->close(grace) && left_behind.empty();
  }

private:
  struct held_batch {
    store_fault fault = store_fault::none;
    batch_number number = 0;
    std::function<void()> go_on;
  };

  /// In the numbers of batches that are not the inner store's.
  static constexpr auto own = batch_number{1} << 63;

  static std::vector<result<void>> outcomes(size_t size, result<void> each = {}) {
    return std::vector<result<void>>(size, each);
  }

  static tl::unexpected<error> torn() { return fail(ec::io_failure, "as the test wants"); }

  static ptrdiff_t half(size_t size) { return static_cast<ptrdiff_t>(size / 2); }

  template <class T>
  static std::vector<T> first_half(const store_batch<T>& batch) {
    auto list = batch.list();
    list.erase(list.begin() + half(list.size()), list.end());
    return list;
  }

  static std::vector<page_key> keys_of(const std::vector<page_read>& pages) {
    auto keys = std::vector<page_key>{};
    for (const auto& page : pages)
      keys.push_back(page.key);
    return keys;
  }

  /// Fills the parts with bytes that belong to no object.
  static void spoil(const std::vector<page_read>& pages) {
    for (const auto& page : pages)
      for (const auto& part : page.parts)
        std::ranges::fill(part, std::byte{0xEE});
  }

  /// Answers the objects that the inner store was not asked for with a failure.
  static pages_done completed(pages_done done, size_t size) {
    return [done = std::move(done), size](std::vector<result<void>> answers) {
      answers.resize(size, torn());
      done(std::move(answers));
    };
  }

  batch_number read_and_stick(std::vector<page_read> first, time_point deadline, pages_done done,
                              read_progress progress) {
    const auto middle = first.begin() + half(first.size());
    const auto rest = std::vector<page_read>(middle, first.end());
    first.erase(middle, first.end());
    auto read = std::promise<std::vector<result<void>>>{};
    inner_->read(std::move(first), deadline, [&read](auto x) { read.set_value(std::move(x)); }, {});
    auto answers = read.get_future().get();
    if (progress)
      progress(0, answers);
    return hold(store_fault::stuck, [this, rest, answers, done] {
      spoil(rest);
      inner_->read(rest, time_point::max(),
                   [answers, done](std::vector<result<void>> others) {
                     others.insert(others.begin(), answers.begin(), answers.end());
                     done(std::move(others));
                   },
                   {});
    });
  }

  store_fault draw(batch_kind kind) {
    const auto lock = std::scoped_lock{mutex_};
    return faults_ ? faults_(kind) : store_fault::none;
  }

  batch_number own_number() {
    const auto lock = std::scoped_lock{mutex_};
    return own | ++last_number_;
  }

  batch_number hold(store_fault fault, std::function<void()> go_on) {
    const auto lock = std::scoped_lock{mutex_};
    held_.push_back({fault, own | ++last_number_, std::move(go_on)});
    return held_.back().number;
  }

  const std::unique_ptr<storage_backend> inner_;
  /// Set before it is used.
  std::optional<store_capabilities> claimed_;
  std::mutex mutex_; // Guards what follows.
  fault_source faults_;
  std::deque<held_batch> held_;
  size_t regions_ = 0;
  size_t promotions_ = 0;
  batch_number last_number_ = 0;
};

/// Something goes wrong with a share of the batches, each fault as often as the others.
inline faulty_store::fault_source faults_by_chance(uint64_t seed, double share) {
  return [random = std::mt19937_64{seed}, is_hit = std::bernoulli_distribution{share},
          which = std::uniform_int_distribution<int>{1, static_cast<int>(store_fault::full)}](
           batch_kind) mutable {
    return is_hit(random) ? static_cast<store_fault>(which(random)) : store_fault::none;
  };
}

} // namespace hicache::test
