#include "backends/external/external_backend.hpp"

#include "backends/external/store_link.hpp"
#include "backends/external/store_process.hpp"
#include "backends/headed_object.hpp"
#include "backends/written_objects.hpp"
#include "base/spare_pool.hpp"
#include "base/try.hpp"
#include "base/units.hpp"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace hicache {

namespace {

using std::chrono::milliseconds;

/// Objects begin at whole pages of memory, which stores may write to disks directly.
constexpr auto slot_alignment = uint64_t{4096};

/// How long the store is asked how it is.
constexpr auto health_time = std::chrono::seconds{2};

/// How long a process whose connections broke may take to end.
constexpr auto dying_time = milliseconds{100};

/// Bounds on a window: an object of a few tokens, and what a machine may lock away by mistake.
constexpr auto window_min = uint64_t{64} << 10;
constexpr auto window_max = uint64_t{64} << 30;

constexpr uint64_t aligned(uint64_t bytes) {
  return (bytes + slot_alignment - 1) / slot_alignment * slot_alignment;
}

/// What a page takes in a window and in the store.
uint64_t stored_bytes(const auto& page) {
  return page_header_bytes + total_bytes(page.parts);
}

/// An error by the outcome of one object.
error error_of(const store_outcome& outcome) {
  switch (outcome.status) {
    case store_status::absent:
      return {ec::not_found, outcome.detail};
    case store_status::full:
      return {ec::store_full, outcome.detail};
    case store_status::unsupported:
      return {ec::unsupported, outcome.detail};
    case store_status::misfit:
      return {ec::invalid_argument, outcome.detail};
    default:
      return {ec::io_failure, outcome.detail};
  }
}

/// Whether a write has stored its object, or found it.
bool is_stored(const store_outcome& outcome) {
  return outcome.status == store_status::done || outcome.status == store_status::present;
}

/// Makes the connections to the process, and starts the process if that is its task. Any thread.
class store_connector {
public:
  explicit store_connector(external_options options) : options_(std::move(options)) {}

  result<std::unique_ptr<store_link>> connect(milliseconds time) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    auto asked = HICACHE_TRY(process_to_ask());
    auto link = connect_to(asked.address).and_then([&](unique_fd socket) {
      return store_link::open(std::move(socket), options_.window_bytes, options_.options, time);
    });
    if (link)
      return link;
    const auto ended
      = end_of_process(link.error().code == ec::peer_unreachable ? dying_time : milliseconds{0});
    const auto left = std::chrono::floor<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (ended && !asked.is_new && left > milliseconds{0})
      return connect(left); // It was about to end; its successor is asked.
    return fail(link.error().code,
                options_.name + ": "
                  + (ended ? "the store's process " + *ended : link.error().detail + where()));
  }

private:
  struct listening_process {
    socket_address address;
    bool is_new = false;
  };

  result<listening_process> process_to_ask() {
    if (!options_.socket.empty())
      return unix_address_of(options_.socket).map([](const socket_address& address) {
        return listening_process{address};
      });
    const auto lock = std::scoped_lock{mutex_};
    const auto is_new = !process_ || process_->end(milliseconds{0});
    if (is_new) {
      process_.reset();
      auto started = HICACHE_TRY(store_process::start(options_.command));
      process_.emplace(std::move(started));
    }
    return listening_process{process_->address(), is_new};
  }

  /// How the process ended, if this one started it and it does so within this time.
  std::optional<std::string> end_of_process(milliseconds time) {
    const auto lock = std::scoped_lock{mutex_};
    return process_ ? process_->end(time) : std::nullopt;
  }

  std::string where() const {
    return options_.socket.empty() ? "" : " (socket " + options_.socket + ")";
  }

  const external_options options_;
  std::mutex mutex_; // Guards what follows.
  std::optional<store_process> process_;
};

class external_backend final : public blocking_store {
public:
  external_backend(external_options options, std::unique_ptr<store_connector> connector,
                   std::unique_ptr<store_link> first, const clock_source& clock)
    : options_(std::move(options)), connector_(std::move(connector)), clock_(clock),
      welcome_(first->welcome()), own_(options_.max_bytes) {
    idle_.give_back(std::move(first));
  }

  std::string name() const override { return options_.name; }

  store_capabilities capabilities() const override {
    return {.survives_restarts = welcome_.survives_restarts,
            .is_shared = welcome_.is_shared,
            .tells_occupancy = own_.is_bounded(),
            .preferred_object_bytes = welcome_.preferred_object_bytes,
            .preferred_batch = welcome_.preferred_batch};
  }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
    auto answers = std::vector<bool>{};
    for (const auto& outcome : ask_each(store_request_kind::lookup, keys, deadline))
      answers.push_back(outcome && outcome->status == store_status::done);
    return answers;
  }

  bool tells_lengths() const override { return welcome_.tells_lengths; }

  std::vector<result<uint64_t>> read(std::span<const page_read> pages, part_lengths rule,
                                     time_point deadline) override {
    auto answers = std::vector<result<uint64_t>>(pages.size(), fail(ec::deadline_exceeded));
    auto broken = std::vector<page_key>{};
    const auto take = [&](const page_read& page, std::span<const std::byte> slot,
                          const store_outcome& outcome) -> result<uint64_t> {
      if (outcome.status != store_status::done)
        return tl::unexpected{error_of(outcome)};
      auto reader = headed_object_reader{page, options_.fingerprint, rule};
      if (outcome.bytes > slot.size())
        return fail(ec::invalid_argument, "the object is longer than its parts");
      reader.take(0, slot.first(outcome.bytes));
      auto length = reader.outcome(outcome.bytes);
      if (!length && length.error().code == ec::corrupt_page && !options_.keeps_broken)
        broken.push_back(page.key);
      return length;
    };
    in_windows(
      pages, deadline, answers,
      [&](store_link& link, const std::vector<store_slot>& slots, milliseconds time, size_t first) {
        auto answer = link.call({.kind = store_request_kind::read, .objects = slots}, time);
        for (auto i = size_t{0}; answer && i < slots.size(); ++i)
          answers[first + i]
            = take(pages[first + i], link.window().subspan(slots[i].offset, slots[i].bytes),
                   answer->objects[i]);
        return answer;
      });
    forget(broken, deadline);
    own_.count_reads(pages, answers);
    return answers;
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
    return own_.count_writes(pages.size(), clock_.now() >= deadline,
                             [&](auto& answers) { write(pages, answers, deadline); });
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
    auto answers = std::vector<result<void>>{};
    for (const auto& outcome : ask_each(store_request_kind::remove, keys, deadline)) {
      const auto& key = keys[answers.size()];
      const auto is_gone
        = outcome
          && (outcome->status == store_status::done || outcome->status == store_status::absent);
      if (is_gone)
        own_.remove(key);
      answers.push_back(is_gone    ? result<void>{}
                        : !outcome ? result<void>{tl::unexpected{outcome.error()}}
                                   : tl::unexpected{error_of(*outcome)});
    }
    return answers;
  }

  bool watch_evictions(storage_backend::eviction_watch watch, bool) override {
    return own_.watch_evictions(std::move(watch));
  }

  result<object_list> list(const std::string& from, time_point deadline) override {
    if (!welcome_.lists)
      return blocking_store::list(from, deadline);
    if (clock_.now() >= deadline)
      return fail(ec::deadline_exceeded);
    auto answer = HICACHE_TRY(with_link(deadline, [&](store_link& link, milliseconds time) {
      return link.call({.kind = store_request_kind::list, .start = from}, time);
    }));
    if (!from.empty() && answer.next == from)
      return fail(ec::io_failure, name() + " lists the same part again");
    auto listed = object_list{{}, std::move(answer.next)};
    for (const auto& [key, bytes] : answer.listed) {
      if (bytes > options_.window_bytes)
        return fail(ec::io_failure, name() + " lists " + to_string(key) + " with "
                                      + format_bytes(bytes) + "; expected at most window_bytes, "
                                      + format_bytes(options_.window_bytes));
      // What is shorter is no object.
      if (bytes >= page_header_bytes)
        listed.objects.push_back({key, {}, bytes - page_header_bytes});
    }
    return listed;
  }

  backend_health health() override {
    auto health = backend_health{};
    const auto answer
      = with_link(clock_.now() + health_time, [](store_link& link, milliseconds time) {
          return link.call({.kind = store_request_kind::health}, time);
        });
    health.ok = answer && answer->is_ok;
    health.detail = answer ? answer->detail : answer.error().detail;
    own_.tell(health);
    return health;
  }

private:
  /// Calls with a link of its own, which is kept unless it breaks. If one that was idle proves to
  /// be broken, which is how the end of the process shows, calls once more with a new one.
  template <class Call>
  result<store_answer> with_link(time_point deadline, Call call) {
    auto link = idle_.take();
    const auto was_idle = link != nullptr;
    if (!link) {
      link = HICACHE_TRY(connector_->connect(time_until(deadline)));
    }
    auto answer = call(*link, time_until(deadline));
    if (!link->is_broken()) {
      idle_.give_back(std::move(link));
    } else if (was_idle && answer.error().code == ec::peer_unreachable) {
      idle_.clear();
      return with_link(deadline, call);
    }
    return answer;
  }

  /// Never 0, so that a call that has begun is sent.
  milliseconds time_until(time_point deadline) const {
    constexpr auto longest = std::chrono::hours{1};
    const auto now = clock_.now();
    if (deadline - now > longest)
      return longest;
    return std::max(std::chrono::ceil<milliseconds>(deadline - now), milliseconds{1});
  }

  /// Asks something about objects whose bytes do not move.
  std::vector<result<store_outcome>> ask_each(store_request_kind kind,
                                              std::span<const page_key> keys, time_point deadline) {
    auto outcomes = std::vector<result<store_outcome>>{};
    while (outcomes.size() < keys.size()) {
      const auto some = keys.subspan(outcomes.size());
      auto slots = std::vector<store_slot>{};
      for (const auto& key : some.first(std::min(some.size(), store_request_objects)))
        slots.push_back({key});
      const auto answer = clock_.now() < deadline
                            ? with_link(deadline,
                                        [&](store_link& link, milliseconds time) {
                                          return link.call({.kind = kind, .objects = slots}, time);
                                        })
                            : result<store_answer>{fail(ec::deadline_exceeded)};
      if (!answer) {
        outcomes.resize(keys.size(), tl::unexpected{answer.error()});
        break;
      }
      outcomes.insert(outcomes.end(), answer->objects.begin(), answer->objects.end());
    }
    return outcomes;
  }

  /// Removes what is broken or has no room. What cannot be removed stays.
  void forget(std::span<const page_key> keys, time_point deadline) {
    if (keys.empty())
      return;
    ask_each(store_request_kind::remove, keys, deadline);
    for (const auto& key : keys)
      own_.remove(key);
  }

  /// Divides pages into runs that fit into a window, and calls once for each run.
  /// @param call (link, slots, time, number of the first page): fills the answers of its run, and
  /// may be called once more
  template <class Page, class Answer, class Call>
  void in_windows(std::span<const Page> pages, time_point deadline,
                  std::vector<result<Answer>>& answers, Call call) {
    for (auto first = size_t{0}; first < pages.size() && clock_.now() < deadline;) {
      auto slots = std::vector<store_slot>{};
      auto used = uint64_t{0};
      while (first + slots.size() < pages.size() && slots.size() < store_request_objects) {
        const auto& page = pages[first + slots.size()];
        const auto bytes = stored_bytes(page);
        if (bytes > options_.window_bytes - used)
          break;
        slots.push_back({page.key, page.parent, used, bytes});
        used = std::min(used + aligned(bytes), options_.window_bytes);
      }
      if (slots.empty()) {
        answers[first]
          = fail(ec::invalid_argument, "an object of " + format_bytes(stored_bytes(pages[first]))
                                         + " does not fit into window_bytes of "
                                         + format_bytes(options_.window_bytes));
        ++first;
        continue;
      }
      const auto called = with_link(deadline, [&](store_link& link, milliseconds time) {
        return call(link, slots, time, first);
      });
      if (!called) {
        // The store is in trouble, and the others would wait in vain.
        std::fill(answers.begin() + static_cast<ptrdiff_t>(first), answers.end(),
                  tl::unexpected{called.error()});
        return;
      }
      first += slots.size();
    }
  }

  void write(std::span<const page_write> pages, std::vector<result<void>>& answers,
             time_point deadline) {
    auto written = std::vector<page_write>{};
    auto numbers = std::vector<size_t>{};
    auto is_known = std::vector<bool>{};
    auto evicted = std::vector<page_key>{};
    for (auto i = size_t{0}; i < pages.size(); ++i) {
      const auto was_written = own_.use(pages[i].key);
      if (!was_written) {
        auto [has_room, removed] = own_.begin_write(pages[i], stored_bytes(pages[i]));
        for (const auto& gone : removed)
          evicted.push_back(gone.key);
        answers[i] = has_room;
        if (!has_room)
          continue;
      }
      written.push_back(pages[i]);
      numbers.push_back(i);
      is_known.push_back(was_written);
    }
    ask_each(store_request_kind::remove, evicted, deadline);
    own_.tell_evicted(evicted);
    const auto outcomes = send(written, deadline);
    auto undone = std::vector<page_key>{};
    for (auto i = size_t{0}; i < written.size(); ++i) {
      const auto& outcome = outcomes[i];
      answers[numbers[i]] = outcome.map([](store_status) {});
      // What others wrote is not counted.
      const auto is_ours = outcome && *outcome == store_status::done;
      if (!is_known[i] && !own_.end_write(written[i].key, is_ours))
        undone.push_back(written[i].key);
    }
    ask_each(store_request_kind::remove, undone, deadline);
  }

  /// Copies objects into windows and has them stored: whether each is new.
  std::vector<result<store_status>> send(std::span<const page_write> pages, time_point deadline) {
    auto outcomes = std::vector<result<store_status>>(pages.size(), fail(ec::deadline_exceeded));
    in_windows(
      pages, deadline, outcomes,
      [&](store_link& link, const std::vector<store_slot>& slots, milliseconds time, size_t first) {
        fill_window(link.window(), slots, pages.subspan(first));
        auto answer = link.call({.kind = store_request_kind::write, .objects = slots}, time);
        for (auto i = size_t{0}; answer && i < slots.size(); ++i) {
          const auto& outcome = answer->objects[i];
          outcomes[first + i] = is_stored(outcome) ? result<store_status>{outcome.status}
                                                   : tl::unexpected{error_of(outcome)};
        }
        return answer;
      });
    return outcomes;
  }

  void fill_window(std::span<std::byte> window, std::span<const store_slot> slots,
                   std::span<const page_write> pages) const {
    for (auto i = size_t{0}; i < slots.size(); ++i) {
      const auto target = window.subspan(slots[i].offset, slots[i].bytes);
      std::ranges::copy(header_of(pages[i], options_.fingerprint.value()), target.begin());
      gather(pages[i].parts, target.data() + page_header_bytes);
    }
  }

  const external_options options_;
  const std::unique_ptr<store_connector> connector_;
  const clock_source& clock_;
  const store_welcome welcome_;
  written_objects own_;
  spare_pool<store_link> idle_;
};

} // namespace

result<std::unique_ptr<blocking_store>> make_external_backend(external_options options,
                                                              const clock_source& clock) {
  if (options.window_bytes < window_min || options.window_bytes > window_max)
    return fail(ec::invalid_argument, "key 'window_bytes' is " + format_bytes(options.window_bytes)
                                        + "; expected " + format_bytes(window_min) + " to "
                                        + format_bytes(window_max));
  auto connector = std::make_unique<store_connector>(options);
  auto link = HICACHE_TRY(connector->connect(options.start_time));
  if (options.max_bytes > 0 && !link->welcome().removes)
    return fail(ec::invalid_argument, "key 'max_bytes': the store cannot remove what it holds; "
                                      "expected none");
  return std::make_unique<external_backend>(std::move(options), std::move(connector),
                                            std::move(link), clock);
}

} // namespace hicache
