#pragma once

#include "backends/blocking_store.hpp"
#include "backends/sized_reads.hpp"
#include "hicache/storage_backend.hpp"

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

namespace hicache {

/// Turns a blocking_store into a storage_backend; the only owner of threads for that. Batches wait
/// for a few worker threads in one queue: health, then look-ups and reads, then promotions, then
/// other writes, removals and lists. Look-ups and reads begin by deadline. The other classes are
/// FIFO whatever their deadlines: parents are written before their children, and writes and
/// removals of a key keep their order.
///
/// Look-ups and reads overtake writes that wait, and miss what these are to store. Writes starve
/// only while reads wait, and at most until their deadlines.
///
/// At most limits::storage_queue_batches wait; a further one fails with limit_reached on the
/// submitting thread. An exception of the store becomes io_failure. A read is executed in parts of
/// `store_capabilities::preferred_batch` objects, and each part is reported.
///
/// The queue keeps no time. A running call whose batch expires cannot be cancelled: another thread
/// replaces its worker, for limits::stuck_calls calls at most.
class storage_queue final : public storage_backend, public sized_reads {
public:
  /// @param threads Workers; 0: batches run on the submitting thread (deterministic tests).
  storage_queue(std::unique_ptr<blocking_store> store, size_t threads);

  /// Closes with limits::shutdown_grace.
  ~storage_queue() override;

  std::string name() const override { return name_; }

  store_capabilities capabilities() const override { return capabilities_; }

  bool watch_evictions(eviction_watch watch, bool wants_bytes) override;
  bool watch_losses(loss_watch watch) override;

  batch_number lookup(store_batch<page_key> keys, time_point deadline, lookup_done done) override;

  batch_number read(store_batch<page_read> pages, time_point deadline, pages_done done,
                    read_progress progress) override;

  bool tells_lengths() const override { return tells_lengths_; }

  batch_number read_sized(store_batch<page_read> pages, time_point deadline,
                          sizes_done done) override;

  batch_number write(store_batch<page_write> pages, time_point deadline, pages_done done) override;

  batch_number promote(store_batch<page_write> pages, time_point deadline,
                       pages_done done) override;

  batch_number remove(store_batch<page_key> keys, time_point deadline, pages_done done) override;

  batch_number list(std::string from, time_point deadline, list_done done) override;

  void health(health_done done) override;

  expiry expire(batch_number number) override;

  bool close(std::chrono::nanoseconds grace) override;

private:
  /// The first ones begin first.
  enum class batch_class : uint8_t {
    health,
    /// Look-ups, too.
    read,
    promotion,
    /// Removals and lists, too.
    write,
  };

  /// The least of all that wait is the next.
  struct turn {
    batch_class which = batch_class::write;
    /// The deadline, if the class goes by it.
    time_point until = {};
    batch_number number = 0;

    friend auto operator<=>(const turn&, const turn&) = default;
  };

  struct batch;
  struct shared_state;

  /// Queues a batch; a worker executes it with `call`.
  template <class Item, class Answer, class Call>
  batch_number submit_items(turn at, store_batch<Item> items, Call call,
                            std::function<void(std::vector<Answer>)> done);

  batch_number submit_writes(batch_class which, store_batch<page_write> pages, time_point deadline,
                             pages_done done);

  /// @param at Its number is set here.
  batch_number submit(turn at, batch next);
  static void start_worker(const std::shared_ptr<shared_state>& state);
  static void work(const std::shared_ptr<shared_state>& state);

  const std::string name_;
  const store_capabilities capabilities_;
  const bool tells_lengths_;
  const std::shared_ptr<shared_state> state_;
};

} // namespace hicache
