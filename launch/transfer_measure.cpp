#include "launch/transfer_measure.hpp"

#include "base/check.hpp"
#include "base/try.hpp"
#include "launch/transfer_probe.hpp"
#ifdef HICACHE_HAVE_CUDA
#include "launch/transfer_cuda.hpp"
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

namespace hicache {

namespace {

using std::chrono::steady_clock;

constexpr auto least_rounds = uint32_t{9};

result<std::unique_ptr<transfer_probe>> make_probe([[maybe_unused]] const device& where,
                                                   probe_target target) {
#ifdef HICACHE_HAVE_CUDA
  if (!where.host_addressable())
    return make_cuda_probe(std::move(target));
#endif
  return make_host_probe(std::move(target));
}

/// All pages except the padding page.
page_list page_order(uint32_t pages, bool fragmented, uint64_t seed) {
  auto list = std::vector<page_index>(pages);
  std::iota(list.begin(), list.end(), page_index{1});
  auto random = std::mt19937_64{seed};
  if (fragmented)
    std::shuffle(list.begin(), list.end(), random);
  return std::make_shared<const std::vector<page_index>>(std::move(list));
}

/// Seconds per round.
struct direction_samples {
  std::vector<double> engine;
  std::vector<double> whole;
  std::vector<double> by_page;

  direction_figures figures(uint64_t bytes) const {
    const auto rate = [bytes](double seconds) {
      return seconds > 0 ? static_cast<double>(bytes) / seconds / (1 << 30) : 0;
    };
    return {rate(median(engine)), rate(median(whole)), median_ratio(whole, engine),
            rate(median(by_page)), median_ratio(by_page, engine)};
  }
};

/// The pools of one case, the engine between them, and the probe.
class transfer_run {
public:
  explicit transfer_run(const transfer_case& what)
    : what_(what), l1_(what.shape, host_layout::layer_first, what.pages + 1),
      l2_(what.shape, what.layout, what.pages + 1),
      bytes_(l2_.page_bytes() * uint64_t{what.pages}) {}

  result<void> open() {
    device_ = HICACHE_TRY(make_device(what_.device));
    l1_memory_ = HICACHE_TRY(device_->allocate(l1_.total_bytes()));
    own_l1_ = HICACHE_TRY(device_->allocate(bytes_));
    l2_memory_ = HICACHE_TRY(device_->allocate_host(l2_.total_bytes(), {}));
    own_l2_ = HICACHE_TRY(device_->allocate_host(bytes_, {}));
    const auto layers = device_layers::of(l1_, reinterpret_cast<uint64_t>(l1_memory_->data()));
    engine_ = HICACHE_TRY(device_->make_copy_engine(layers, l2_, *l2_memory_, what_.copies));
    l1_pages_ = page_order(what_.pages, what_.fragmented, 1);
    l2_pages_ = page_order(what_.pages, what_.fragmented, 2);
    auto target
      = probe_target{own_l1_->data(),
                     own_l2_->data(),
                     bytes_,
                     make_copy_strips(layers, l2_, reinterpret_cast<uint64_t>(l2_memory_->data())),
                     *l1_pages_,
                     *l2_pages_,
                     what_.copies.host_threads};
    probe_ = HICACHE_TRY(make_probe(*device_, std::move(target)));
    return {};
  }

  /// Copies all pages to L2 and back and counts those that changed.
  result<void> check_round_trip() {
    HICACHE_TRY(write_l1(true));
    static_cast<void>(store());
    HICACHE_TRY(write_l1(false));
    static_cast<void>(load());
    return compare_l1();
  }

  result<transfer_figures> measure() {
    // The first round warms up caches and clocks and is discarded.
    HICACHE_TRY(round());
    stores_ = loads_ = {};
    hidden_.clear();
    const auto begin = steady_clock::now();
    auto rounds = uint32_t{0};
    for (; rounds < least_rounds || seconds_since(begin) < what_.seconds; ++rounds)
      HICACHE_TRY(round());
    return transfer_figures{
      device_->name(),         l2_.page_bytes(),       seconds_since(begin), rounds,
      stores_.figures(bytes_), loads_.figures(bytes_), median(hidden_),      errors_};
  }

private:
  void count(const result<void>& done) { errors_ += done ? 0 : 1; }

  /// @returns seconds
  double store() {
    const auto begin = steady_clock::now();
    engine_->store({write_command{++last_id_, l1_pages_, l2_pages_}},
                   [this](operation_id, const result<void>& done) { count(done); });
    engine_->drain();
    return seconds_since(begin);
  }

  /// @returns seconds
  double load() {
    const auto begin = steady_clock::now();
    begin_load(std::make_shared<layer_progress>(what_.shape.layers));
    engine_->drain();
    return seconds_since(begin);
  }

  void begin_load(layer_progress_ptr progress) {
    engine_->load({load_command{++last_id_, l2_pages_, l1_pages_, std::move(progress)}},
                  [this](operation_id, const result<void>& done) { count(done); });
  }

  /// Runs every measurement next to its baseline.
  result<void> round() {
    for (const auto direction : {copy_direction::store, copy_direction::load}) {
      const auto storing = direction == copy_direction::store;
      auto& samples = storing ? stores_ : loads_;
      samples.whole.emplace_back() = HICACHE_TRY(probe_->copy_whole(direction));
      samples.engine.push_back(storing ? store() : load());
      samples.by_page.emplace_back() = HICACHE_TRY(probe_->copy_by_page(direction));
    }
    return overlap();
  }

  /// A load concurrent with a computation of equal length, and that computation alone.
  result<void> overlap() {
    const auto copying = loads_.engine.back();
    const auto layers = what_.shape.layers;
    const auto per_layer = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(copying / layers));
    auto arrived = layer_progress{layers};
    arrived.queue({});
    arrived.advance(layers);
    const auto begin = steady_clock::now();
    HICACHE_TRY(probe_->compute(arrived, per_layer));
    const auto computing = seconds_since(begin);
    auto progress = std::make_shared<layer_progress>(layers);
    const auto begin_both = steady_clock::now();
    begin_load(progress);
    auto computed = probe_->compute(*progress, per_layer);
    const auto both = seconds_since(begin_both);
    engine_->drain();
    if (computed)
      hidden_.push_back(1 - (both - computing) / copying);
    return computed;
  }

  /// Calls use(bytes of all pages but the padding page, offset in L1) for each part of each layer.
  template <class Use>
  result<void> for_each_buffer(Use use) {
    for (const auto part : l1_.parts())
      for (auto layer = uint32_t{0}; layer < what_.shape.layers; ++layer) {
        const auto offset = l1_.rows(layer, part, 1).offset;
        HICACHE_TRY(use(l1_.page_stride(part) * what_.pages, offset));
      }
    return {};
  }

  /// Pseudo-random bytes determined by their offset in L1.
  static std::vector<std::byte> pattern(uint64_t bytes, uint64_t offset) {
    auto random = std::mt19937_64{offset};
    auto filled = std::vector<std::byte>(bytes);
    for (auto at = uint64_t{0}; at < bytes; at += sizeof(uint64_t)) {
      const auto word = random();
      std::memcpy(filled.data() + at, &word, std::min<uint64_t>(sizeof(word), bytes - at));
    }
    return filled;
  }

  result<void> write_l1(bool patterned) {
    return for_each_buffer([&](uint64_t bytes, uint64_t offset) {
      return l1_memory_->write(offset,
                               patterned ? pattern(bytes, offset) : std::vector<std::byte>(bytes));
    });
  }

  result<void> compare_l1() {
    auto wrong = std::vector<bool>(what_.pages);
    auto compared = for_each_buffer([&](uint64_t bytes, uint64_t offset) -> result<void> {
      auto found = std::vector<std::byte>(bytes);
      HICACHE_TRY(l1_memory_->read(offset, found));
      const auto expected = pattern(bytes, offset);
      const auto stride = bytes / what_.pages;
      for (auto page = uint32_t{0}; page < what_.pages; ++page) {
        const auto at = page * stride;
        if (std::memcmp(&found[at], &expected[at], stride) != 0)
          wrong[page] = true;
      }
      return {};
    });
    errors_ += static_cast<uint64_t>(std::count(wrong.begin(), wrong.end(), true));
    return compared;
  }

  transfer_case what_;
  pool_geometry l1_;
  pool_geometry l2_;
  /// Bytes of one submission.
  uint64_t bytes_;
  page_list l1_pages_;
  page_list l2_pages_;
  std::unique_ptr<device> device_;
  std::unique_ptr<device_memory> l1_memory_;
  std::unique_ptr<device_memory> l2_memory_;
  std::unique_ptr<device_memory> own_l1_;
  std::unique_ptr<device_memory> own_l2_;
  operation_id last_id_ = 0;
  /// Incremented on the engine's threads, which end with the engine.
  std::atomic<uint64_t> errors_{0};
  std::unique_ptr<copy_engine> engine_;
  std::unique_ptr<transfer_probe> probe_;
  direction_samples stores_;
  direction_samples loads_;
  std::vector<double> hidden_;
};

} // namespace

double median(std::vector<double> values) {
  if (values.empty())
    return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  auto ratios = std::vector<double>{};
  for (auto i = size_t{0}; i < std::min(a.size(), b.size()); ++i)
    if (b[i] > 0)
      ratios.push_back(a[i] / b[i]);
  return median(std::move(ratios));
}

result<transfer_figures> measure_transfer(const transfer_case& what) {
  HICACHE_CHECK(what.pages > 0);
  auto run = transfer_run{what};
  HICACHE_TRY(run.open());
  HICACHE_TRY(run.check_round_trip());
  return run.measure();
}

} // namespace hicache
