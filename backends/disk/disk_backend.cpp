#include "backends/disk/disk_backend.hpp"

#include "backends/disk/disk_log.hpp"
#include "backends/disk/disk_objects.hpp"
#include "backends/disk/disk_recovery.hpp"
#include "backends/disk/disk_transfers.hpp"
#include "base/spare_pool.hpp"
#include "base/try.hpp"
#include "base/units.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

namespace hicache {

namespace {

/// Bytes of the objects in a record, unless it is one: what is left of a segment that has no room
/// for the next record is wasted.
constexpr auto record_bytes_max = uint64_t{8} << 20;

class disk_backend final : public blocking_store {
public:
  disk_backend(disk_options options, std::unique_ptr<disk_device> device, const clock_source& clock)
    : options_(std::move(options)), device_(std::move(device)), clock_(clock),
      log_(options_.segment_bytes, options_.segments, options_.live_bytes) {}

  result<void> recover() {
    cleaner_ = HICACHE_TRY(device_->open_channel(disk_channel_bytes));
    const auto torn = HICACHE_TRY(
      recover_log(log_, *device_, options_.name, options_.segments, options_.segment_bytes));
    const auto guard = std::scoped_lock{write_mutex_};
    HICACHE_TRY(append_removals(torn, true));
    return sync(log_.last_committed());
  }

  std::string name() const override { return options_.backend; }

  store_capabilities capabilities() const override {
    return {.survives_restarts = true,
            .tells_occupancy = true,
            .keeps_namespaces = true,
            .preferred_batch = 64};
  }

  bool watch_evictions(storage_backend::eviction_watch watch, bool wants_bytes) override {
    const auto lock = std::scoped_lock{mutex_};
    watch_ = std::move(watch);
    wants_bytes_ = wants_bytes;
    return true;
  }

  bool watch_losses(storage_backend::loss_watch watch) override {
    const auto lock = std::scoped_lock{mutex_};
    losses_ = std::move(watch);
    return true;
  }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
    auto answers = std::vector<bool>(keys.size(), false);
    if (clock_.now() >= deadline)
      return answers;
    const auto lock = std::scoped_lock{mutex_};
    for (auto i = size_t{0}; i < keys.size(); ++i)
      answers[i] = log_.find(keys[i]).has_value();
    return answers;
  }

  bool tells_lengths() const override { return true; }

  std::vector<result<uint64_t>> read(std::span<const page_read> pages, part_lengths rule,
                                     time_point deadline) override {
    auto objects = std::vector<disk_read>{};
    objects.reserve(pages.size());
    for (const auto& page : pages)
      objects.push_back({page.key, {}, page.parts, total_bytes(page.parts)});
    auto wanted = pointers_to(objects);
    // Again, those that were moved meanwhile.
    while (!wanted.empty() && clock_.now() < deadline) {
      find_all(wanted, rule);
      auto channel = borrow_channel();
      if (!channel) {
        for (auto* const x : wanted)
          x->outcome = tl::unexpected{channel.error()};
        break;
      }
      read_objects(**channel, wanted);
      channels_.give_back(std::move(*channel));
      const auto lock = std::scoped_lock{mutex_};
      std::erase_if(wanted, [&](disk_read* x) {
        const auto is_final = x->outcome || log_.find(x->key) == std::optional{x->where};
        if (!is_final)
          x->outcome = fail(ec::deadline_exceeded);
        return is_final;
      });
    }
    auto broken = std::vector<page_key>{};
    auto answers = std::vector<result<uint64_t>>{};
    {
      const auto lock = std::scoped_lock{mutex_};
      for (const auto& object : objects) {
        counters_.count_get(object.outcome);
        if (!object.outcome && object.outcome.error().code == ec::corrupt_page)
          broken.push_back(object.key);
        answers.push_back(object.outcome);
      }
    }
    if (!broken.empty())
      static_cast<void>(remove_all(broken));
    return answers;
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
    auto answers = std::vector<result<void>>(pages.size(), fail(ec::deadline_exceeded));
    auto written = std::vector<page_key>{};
    auto last = uint64_t{0};
    for (auto next = size_t{0}; next < pages.size() && clock_.now() < deadline;) {
      const auto guard = std::scoped_lock{write_mutex_};
      next = write_some(pages, next, answers, written);
      last = log_.last_committed();
    }
    const auto synced = sync(last);
    if (!synced)
      forget(written);
    const auto lock = std::scoped_lock{mutex_};
    for (auto& answer : answers) {
      if (answer && !synced)
        answer = synced;
      counters_.count_set(answer);
    }
    return answers;
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
    if (clock_.now() >= deadline)
      return std::vector<result<void>>(keys.size(), fail(ec::deadline_exceeded));
    return std::vector<result<void>>(keys.size(), remove_all(keys));
  }

  result<object_list> list(const std::string& from, time_point) override {
    const auto lock = std::scoped_lock{mutex_};
    return log_.list(from);
  }

  backend_health health() override {
    const auto lock = std::scoped_lock{mutex_};
    auto health = backend_health{};
    health.detail = options_.name + ": " + device_->description();
    health.objects = log_.size();
    health.bytes = log_.bytes();
    health.capacity_bytes = log_.capacity();
    health.counters = counters_;
    health.counters.evicted = log_.evictions() + dropped_;
    return health;
  }

private:
  // -- reading --------------------------------------------------------------------

  /// Leaves those that are to be read.
  void find_all(std::vector<disk_read*>& wanted, part_lengths rule) {
    const auto lock = std::scoped_lock{mutex_};
    log_.set_time(clock_.now());
    std::erase_if(wanted, [&](disk_read* x) {
      const auto found = log_.find(x->key);
      if (!found) {
        x->outcome = fail(ec::not_found);
        return true;
      }
      log_.use(x->key);
      x->where = *found;
      const auto fits = check_room(found->length, x->room, rule);
      if (!fits)
        x->outcome = tl::unexpected{fits.error()};
      return !fits;
    });
  }

  // -- writing --------------------------------------------------------------------

  /// Writes one record of the pages from number `next` on.
  /// @returns the number of the first page that is left
  /// @pre write_mutex_ is held
  size_t write_some(std::span<const page_write> pages, size_t next,
                    std::vector<result<void>>& answers, std::vector<page_key>& written) {
    auto objects = std::vector<written_object>{};
    auto positions = std::vector<size_t>{};
    auto gone = std::vector<disk_log::evicted>{};
    {
      const auto lock = std::scoped_lock{mutex_};
      log_.set_time(clock_.now());
      auto bytes = uint64_t{0};
      for (; next < pages.size() && objects.size() < disk_record_objects; ++next) {
        const auto& page = pages[next];
        const auto length = total_bytes(page.parts);
        const auto record_bytes
          = disk_header_bytes(objects.size() + 1, 0) + bytes + disk_blocks_for(length);
        if (!objects.empty() && bytes + disk_blocks_for(length) > record_limit())
          break;
        if (log_.find(page.key) || is_among(objects, page.key)) {
          log_.use(page.key);
          answers[next] = {};
        } else if (record_bytes > options_.segment_bytes
                   || !log_.begin_write(page.key, page.parent, length, gone)) {
          answers[next] = no_room(length);
        } else {
          objects.push_back(
            {{page.key, page.parent, length, 0, fingerprint_of(page), page.tenant}, page.parts});
          positions.push_back(next);
          bytes += disk_blocks_for(length);
        }
      }
    }
    tell(gone);
    if (objects.empty())
      return next;
    auto record = disk_record{};
    for (const auto& each : gone)
      record.removals.push_back(each.removal);
    const auto outcome = append(record, objects, false);
    const auto lock = std::scoped_lock{mutex_};
    for (auto i = size_t{0}; i < objects.size(); ++i) {
      log_.end_write(objects[i].entry.key, outcome.has_value());
      answers[positions[i]] = outcome;
      if (outcome)
        written.push_back(objects[i].entry.key);
    }
    return next;
  }

  /// Tells what is evicted to who wants to know.
  void tell(std::span<const disk_log::evicted> gone) {
    if (gone.empty())
      return;
    auto watch = storage_backend::eviction_watch{};
    auto losses = storage_backend::loss_watch{};
    auto wants_bytes = false;
    {
      const auto lock = std::scoped_lock{mutex_};
      watch = watch_;
      wants_bytes = wants_bytes_;
      losses = losses_;
    }
    if (losses)
      losses(std::ranges::max(gone, {}, &disk_log::evicted::used).used);
    if (!watch)
      return;
    if (wants_bytes)
      return tell_bytes(watch, gone);
    auto told = std::vector<evicted_object>{};
    for (const auto& each : gone)
      told.push_back(
        {each.removal.key, each.parent, {}, each.used, each.where.fingerprint, each.where.tenant});
    watch(told);
  }

  /// Reads evicted objects before their bytes are overwritten. Damaged ones are told without bytes.
  void tell_bytes(const storage_backend::eviction_watch& watch,
                  std::span<const disk_log::evicted> gone) {
    auto bytes = std::vector<std::vector<std::byte>>{};
    auto parts = std::vector<std::span<std::byte>>{};
    for (const auto& each : gone)
      parts.emplace_back(bytes.emplace_back(each.where.length));
    auto reads = std::vector<disk_read>{};
    for (auto i = size_t{0}; i < gone.size(); ++i)
      reads.push_back({gone[i].removal.key, gone[i].where, {&parts[i], 1}, parts[i].size()});
    read_objects(*cleaner_, pointers_to(reads));
    auto told = std::vector<evicted_object>{};
    for (auto i = size_t{0}; i < gone.size(); ++i)
      told.push_back({reads[i].key, gone[i].parent, reads[i].outcome ? parts[i] : parts[i].first(0),
                      gone[i].used, gone[i].where.fingerprint, gone[i].where.tenant});
    watch(told);
  }

  uint64_t fingerprint_of(const page_write& page) const {
    return page.fingerprint != 0 ? page.fingerprint : options_.fingerprint;
  }

  uint64_t record_limit() const { return std::min(record_bytes_max, options_.segment_bytes / 8); }

  tl::unexpected<error> no_room(uint64_t length) const {
    return fail(ec::store_full, "there is no room for an object of " + format_bytes(length) + " in "
                                  + options_.name + ", which has " + format_bytes(log_.capacity())
                                  + " for objects in segments of "
                                  + format_bytes(options_.segment_bytes));
  }

  result<std::unique_ptr<disk_channel>> borrow_channel() {
    if (auto spare = channels_.take())
      return spare;
    return device_->open_channel(disk_channel_bytes);
  }

  /// Appends a record of these objects and of the removals that it has, and commits it.
  /// @pre write_mutex_ is held
  result<void> append(disk_record& record, std::span<written_object> objects, bool is_cleaning) {
    record.objects.clear();
    for (const auto& object : objects)
      record.objects.push_back(object.entry);
    // That an evicted object comes back after a restart does no harm.
    if (record.removals.size() > disk_record_objects
        || disk_record_bytes(record) > options_.segment_bytes)
      record.removals.clear();
    const auto bytes = disk_record_bytes(record);
    HICACHE_TRY(make_room(bytes, is_cleaning));
    auto channel = HICACHE_TRY(borrow_channel());
    auto where = disk_log::slot{};
    {
      const auto lock = std::scoped_lock{mutex_};
      where = log_.allocate(bytes);
    }
    record.generation = where.generation;
    record.sequence = where.sequence;
    record.durable = where.durable;
    const auto failed = write_record(*channel, where, record, objects);
    channels_.give_back(std::move(channel));
    {
      const auto lock = std::scoped_lock{mutex_};
      if (failed == 0)
        log_.commit(where, record);
      else
        log_.abandon(where);
    }
    if (failed == 0)
      return {};
    // So that what was not stored does not come back, if the disk still takes that.
    static_cast<void>(clear_header(where.segment, where.offset));
    return write_failure(options_.name, failed);
  }

  /// Makes segments, and cleans some, until a record can be allocated.
  /// @pre write_mutex_ is held
  result<void> make_room(uint64_t bytes, bool is_cleaning) {
    // Each segment once, and some that are made.
    for (auto tries = 2 * options_.segments; tries > 0; --tries) {
      auto step = disk_log::step::none;
      {
        const auto lock = std::scoped_lock{mutex_};
        step = log_.next_step(bytes, is_cleaning);
      }
      switch (step) {
        case disk_log::step::none:
          return {};
        case disk_log::step::no_room:
          return full();
        case disk_log::step::create_segment:
          HICACHE_TRY(create_segment());
          break;
        case disk_log::step::clean_segment:
          HICACHE_TRY(clean_segment());
          break;
      }
    }
    return full();
  }

  tl::unexpected<error> full() const {
    return fail(ec::store_full, options_.name + " has no room for another record");
  }

  result<void> create_segment() {
    auto made = device_->create(log_.next_segment());
    if (!made && made.error().code != ec::store_full)
      return made;
    auto gone = std::vector<disk_log::evicted>{};
    {
      const auto lock = std::scoped_lock{mutex_};
      if (made)
        log_.add_segment(log_.next_segment());
      else
        log_.no_more_segments(gone);
    }
    if (!made)
      spdlog::warn("the disk of {} is full; until it is opened again it has {} for objects",
                   options_.name, format_bytes(log_.capacity()));
    tell(gone);
    return {};
  }

  // -- cleaning -------------------------------------------------------------------

  /// Writes what a segment still has of use to another one.
  /// @pre write_mutex_ is held
  result<void> clean_segment() {
    auto segment = uint32_t{0};
    auto has_contents = false;
    {
      const auto lock = std::scoped_lock{mutex_};
      segment = log_.victim();
      has_contents = log_.has_contents(segment);
    }
    auto outcome = result<void>{};
    if (has_contents) {
      visit_records(*cleaner_, segment, options_.segment_bytes,
                    [&](uint64_t offset, disk_record record) {
                      if (outcome)
                        outcome = move_record(segment, offset, std::move(record));
                    });
      if (outcome)
        outcome = sync(log_.last_committed());
    }
    if (outcome && has_live(segment))
      outcome = fail(ec::io_failure, options_.name + " cannot read all of a segment");
    if (outcome)
      outcome = clear_header(segment, 0);
    if (!outcome)
      return outcome;
    const auto lock = std::scoped_lock{mutex_};
    log_.free(segment);
    return {};
  }

  bool has_live(uint32_t segment) {
    const auto lock = std::scoped_lock{mutex_};
    return log_.live_bytes(segment) > 0;
  }

  /// What follows a place without a header does not come back. Of a whole segment, removals of its
  /// objects may be forgotten then, and its bytes overwritten.
  /// @pre write_mutex_ is held
  result<void> clear_header(uint32_t segment, uint64_t offset) {
    const auto block = cleaner_->memory().first(disk_block_bytes);
    std::memset(block.data(), 0, block.size());
    cleaner_->write(segment, offset, block, 0);
    const auto failed = cleaner_->wait().error;
    return failed == 0 ? device_->sync(segment) : write_failure(options_.name, failed);
  }

  /// Writes the live objects of a record, and its removals that are needed, again. If there is no
  /// room for them, or they cannot be read, the objects are gone.
  result<void> move_record(uint32_t segment, uint64_t offset, disk_record record) {
    auto live = std::vector<disk_read>{};
    auto parents = std::vector<page_key>{};
    {
      const auto lock = std::scoped_lock{mutex_};
      auto at = offset + disk_header_bytes(record);
      for (const auto& object : record.objects) {
        const auto where = disk_log::place{segment, at, object};
        if (log_.find(object.key) == std::optional{where}) {
          live.push_back({object.key, where, {}, object.length});
          parents.push_back(object.parent);
        }
        at += disk_blocks_for(object.length);
      }
      std::erase_if(record.removals, [&](const auto& x) { return !log_.is_needed(x); });
    }
    if (live.empty() && record.removals.empty())
      return {};
    return move_objects(live, parents, record.removals);
  }

  result<void> move_objects(std::vector<disk_read>& live, std::span<const page_key> parents,
                            const std::vector<disk_record::removal>& removals) {
    auto bytes = std::vector<std::vector<std::byte>>{};
    auto parts = std::vector<std::span<std::byte>>{};
    for (const auto& object : live)
      parts.emplace_back(bytes.emplace_back(object.where.length));
    for (auto i = size_t{0}; i < live.size(); ++i)
      live[i].parts = {&parts[i], 1};
    read_objects(*cleaner_, pointers_to(live));
    auto moved = std::vector<written_object>{};
    for (auto i = size_t{0}; i < live.size(); ++i)
      if (live[i].outcome)
        moved.push_back({{live[i].key, parents[i], live[i].where.length, 0,
                          live[i].where.fingerprint, live[i].where.tenant},
                         {parts[i]}});
    auto record = disk_record{};
    record.removals = removals;
    auto appended = append(record, moved, true);
    const auto has_room = appended || appended.error().code != ec::store_full;
    auto gone = std::vector<disk_log::evicted>{};
    {
      const auto lock = std::scoped_lock{mutex_};
      for (auto i = size_t{0}; i < live.size(); ++i)
        if (!live[i].outcome || !has_room)
          if (const auto removed = log_.remove(live[i].key))
            gone.push_back({*removed, parents[i], live[i].where, clock_.now()});
      dropped_ += gone.size();
    }
    if (!has_room && !std::exchange(has_warned_, true))
      spdlog::warn("{} had no room for objects that it was moving: it has evicted them",
                   options_.name);
    tell(gone);
    return has_room ? appended : result<void>{};
  }

  // -- removing -------------------------------------------------------------------

  /// Forgets objects whose record may not be on the disk. None of them is being moved meanwhile.
  void forget(std::span<const page_key> keys) {
    const auto guard = std::scoped_lock{write_mutex_, mutex_};
    for (const auto& key : keys)
      log_.remove(key);
  }

  result<void> remove_all(std::span<const page_key> keys) {
    auto last = uint64_t{0};
    {
      const auto guard = std::scoped_lock{write_mutex_};
      auto removals = std::vector<disk_record::removal>{};
      {
        const auto lock = std::scoped_lock{mutex_};
        for (const auto& key : keys)
          if (const auto removal = log_.remove(key))
            removals.push_back(*removal);
      }
      if (auto written = append_removals(removals, false); !written || removals.empty())
        return written;
      last = log_.last_committed();
    }
    return sync(last);
  }

  /// @pre write_mutex_ is held
  result<void> append_removals(std::span<const disk_record::removal> removals, bool is_cleaning) {
    while (!removals.empty()) {
      const auto some = removals.first(std::min(removals.size(), disk_record_objects));
      removals = removals.subspan(some.size());
      auto record = disk_record{};
      record.removals.assign(some.begin(), some.end());
      HICACHE_TRY(append(record, {}, is_cleaning));
    }
    return {};
  }

  // -- syncing --------------------------------------------------------------------

  /// Waits until all records up to this one are on the disk. Calls that wait for each other share
  /// one sync.
  result<void> sync(uint64_t sequence) {
    const auto guard = std::scoped_lock{sync_mutex_};
    auto segments = std::vector<uint32_t>{};
    auto target = uint64_t{0};
    {
      const auto lock = std::scoped_lock{mutex_};
      if (sequence > 0 && sequence <= failed_through_)
        return tl::unexpected{sync_failure_};
      if (sequence <= synced_through_)
        return {};
      segments = log_.take_unsynced();
      target = log_.last_committed();
    }
    auto outcome = result<void>{};
    for (const auto segment : segments)
      if (auto synced = device_->sync(segment); !synced)
        outcome = synced;
    const auto lock = std::scoped_lock{mutex_};
    if (!outcome) {
      failed_through_ = target;
      sync_failure_ = outcome.error();
      return outcome;
    }
    synced_through_ = target;
    log_.note_durable(target);
    return {};
  }

  const disk_options options_;
  const std::unique_ptr<disk_device> device_;
  const clock_source& clock_;
  spare_pool<disk_channel> channels_;
  /// Held while a record is written: one that is committed has all those before it on the disk.
  std::mutex write_mutex_;
  std::mutex sync_mutex_;
  std::mutex mutex_; // Guards what follows.
  storage_backend::eviction_watch watch_;
  bool wants_bytes_ = false;
  storage_backend::loss_watch losses_;
  disk_log log_;
  uint64_t synced_through_ = 0;
  uint64_t failed_through_ = 0;
  error sync_failure_;
  backend_counters counters_;
  /// Objects that cleaning could not move.
  uint64_t dropped_ = 0;
  /// For cleaning, with write_mutex_.
  std::unique_ptr<disk_channel> cleaner_;
  bool has_warned_ = false;
};

} // namespace

result<std::unique_ptr<blocking_store>> make_disk_backend(disk_options options,
                                                          std::unique_ptr<disk_device> device,
                                                          const clock_source& clock) {
  auto store = std::make_unique<disk_backend>(std::move(options), std::move(device), clock);
  HICACHE_TRY(store->recover());
  return store;
}

} // namespace hicache
