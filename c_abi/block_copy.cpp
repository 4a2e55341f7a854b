#include "c_abi/block_copy.hpp"

#include "base/try.hpp"

#include <algorithm>
#include <numeric>
#include <string>

namespace hicache {

namespace {

/// Fails all pages that have not failed yet.
void fail_rest(std::vector<result<void>>& outcome, const error& why) {
  for (auto& each : outcome)
    if (each)
      each = tl::unexpected{why};
}

} // namespace

// -- progress -----------------------------------------------------------------

void load_progress::advance(uint32_t layers) {
  const auto guard = std::lock_guard{mutex_};
  layers_ = layers;
  changed_.notify_all();
}

void load_progress::queue(std::vector<device_mark> marks) {
  const auto guard = std::lock_guard{mutex_};
  marks_ = std::move(marks);
  changed_.notify_all();
}

result<device_mark> load_progress::mark(uint32_t layer, time_point deadline) const {
  auto guard = std::unique_lock{mutex_};
  changed_.wait_until(guard, deadline,
                      [&] { return is_over_ || !marks_.empty() || layers_ > layer; });
  if (layers_ > layer)
    return device_mark{};
  if (is_over_ || marks_.empty())
    return fail(is_over_ ? ec::not_found : ec::deadline_exceeded);
  return marks_[layer];
}

void load_progress::end() {
  const auto guard = std::lock_guard{mutex_};
  is_over_ = true;
  changed_.notify_all();
}

result<void> load_progress::wait(uint32_t layer, time_point deadline) const {
  auto guard = std::unique_lock{mutex_};
  changed_.wait_until(guard, deadline, [&] { return is_over_ || layers_ > layer; });
  if (layers_ > layer)
    return {};
  return fail(is_over_ ? ec::not_found : ec::deadline_exceeded);
}

// -- memory -------------------------------------------------------------------

void block_memory::enter() {
  const auto guard = std::lock_guard{mutex_};
  ++users_;
}

void block_memory::leave() {
  const auto guard = std::lock_guard{mutex_};
  --users_;
  changed_.notify_all();
}

void block_memory::wait_for_users() {
  auto guard = std::unique_lock{mutex_};
  changed_.wait(guard, [this] { return users_ == 0; });
}

// -- copy ---------------------------------------------------------------------

block_copy::block_copy(std::shared_ptr<block_memory> memory, std::vector<page_key> parents,
                       std::vector<uint32_t> blocks, std::shared_ptr<load_progress> progress)
  : memory_(std::move(memory)), parents_(std::move(parents)), blocks_(std::move(blocks)),
    progress_(std::move(progress)) {
  memory_->enter();
}

block_copy::~block_copy() {
  if (progress_)
    progress_->end();
  memory_->leave();
}

std::span<const uint32_t> block_copy::blocks_of(size_t page) const {
  const auto count = memory_->table().blocks_per_page();
  return std::span{blocks_}.subspan(page * count, count);
}

std::vector<result<void>> block_copy::run(const batch& what, node_client& node,
                                          const clock_source& clock) {
  return what.what == batch::kind::store ? store(what, node) : load(what, node, clock);
}

std::vector<result<void>> block_copy::store(const batch& what, node_client& node) const {
  auto pages = std::vector<page_write>{};
  for (auto i = size_t{0}; i < what.keys.size(); ++i)
    pages.push_back({what.keys[i], parents_[i], memory_->table().parts(blocks_of(i))});
  auto* device = memory_->device();
  if (device == nullptr)
    return node.put(pages, what.deadline);
  return node.put(pages, what.deadline, [&](size_t i, std::span<std::byte> object) {
    return device->store(pages[i].parts, object);
  });
}

std::vector<result<void>> block_copy::load(const batch& what, node_client& node,
                                           const clock_source& clock) {
  auto positions = std::vector<size_t>(what.keys.size());
  if (what.from) {
    const auto& view = what.from->view;
    std::ranges::transform(what.keys, positions.begin(), [&](const page_key& key) {
      const auto at = what.from->positions.find(key);
      return at == what.from->positions.end() ? view.pages().size() : at->second;
    });
    auto outcome = check(view, positions, page_check::header);
    copy(view, positions, clock, outcome);
    return outcome;
  }
  const auto view = node.view(what.keys, false, what.deadline, page_check::whole);
  if (!view)
    return all_fail(what.size(), view.error());
  std::iota(positions.begin(), positions.end(), size_t{0});
  auto outcome = check(*view, positions, page_check::whole);
  if (clock.now() >= what.deadline)
    fail_rest(outcome, {ec::deadline_exceeded, {}});
  copy(*view, positions, clock, outcome);
  return outcome;
}

std::vector<result<void>> block_copy::check(const leased_view& view,
                                            std::span<const size_t> positions,
                                            page_check done) const {
  const auto& pages = view.pages();
  auto outcome = all_fail(positions.size(), {ec::not_found, {}});
  const auto bytes = done == page_check::whole ? 0 : positions.size() * page_bytes();
  memory_->copier().for_each(positions.size(), bytes, [&](size_t i, uint32_t) {
    const auto at = positions[i];
    if (at == pages.size())
      return;
    const auto length = pages[at].size();
    if (length != 0 && length != page_bytes())
      outcome[i] = fail(ec::invalid_argument, "the page has " + std::to_string(length)
                                                + " bytes, but a page of the layout "
                                                + std::to_string(page_bytes()));
    else
      outcome[i] = length != 0 && done == page_check::whole ? result<void>{} : view.check(at);
  });
  return outcome;
}

void block_copy::copy(const leased_view& view, std::span<const size_t> positions,
                      const clock_source& clock, std::vector<result<void>>& outcome) {
  auto good = std::vector<size_t>{};
  for (auto i = size_t{0}; i < outcome.size(); ++i)
    if (outcome[i])
      good.push_back(i);
  const auto is_whole = good.size() == outcome.size();
  if (!is_whole)
    progress_->end();
  auto* device = memory_->device();
  auto marks = std::vector<device_mark>{};
  if (device != nullptr && !good.empty() && clock.now() < view.until()) {
    auto queued = queue(view, positions, good);
    if (!queued) {
      progress_->end();
      return fail_rest(outcome, queued.error());
    }
    marks = std::move(*queued);
    if (is_whole)
      progress_->queue(marks);
  }
  for (auto layer = uint32_t{0}; layer < memory_->table().layers(); ++layer) {
    // After the lease expires, the memory may hold another page.
    if (clock.now() >= view.until())
      break;
    if (device == nullptr)
      copy_layer(layer, view, positions, good);
    else if (!marks.empty())
      if (const auto copied = device->finish(marks[layer]); !copied) {
        progress_->end();
        return fail_rest(outcome, copied.error());
      }
    if (is_whole && clock.now() < view.until())
      progress_->advance(layer + 1);
  }
  if (clock.now() < view.until())
    return;
  if (device != nullptr && !marks.empty())
    static_cast<void>(device->finish(marks.back()));
  progress_->end();
  std::ranges::for_each(outcome, [](result<void>& each) {
    if (each || each.error().code == ec::corrupt_page)
      each = fail(ec::not_found, "the lease is over");
  });
}

void block_copy::copy_layer(uint32_t layer, const leased_view& view,
                            std::span<const size_t> positions, std::span<const size_t> pages) {
  const auto& table = memory_->table();
  memory_->copier().for_each(
    pages.size(), pages.size() * table.layer_bytes(layer), [&](size_t n, uint32_t) {
      table.copy_layer(layer, view.pages()[positions[pages[n]]], blocks_of(pages[n]));
    });
}

result<std::vector<device_mark>> block_copy::queue(const leased_view& view,
                                                   std::span<const size_t> positions,
                                                   std::span<const size_t> pages) {
  auto marks = std::vector<device_mark>{};
  for (auto layer = uint32_t{0}; layer < memory_->table().layers(); ++layer) {
    for (const auto i : pages)
      HICACHE_TRY(memory_->device()->queue_load(view.pages()[positions[i]],
                                                memory_->table().pieces(layer, blocks_of(i))));
    marks.emplace_back() = HICACHE_TRY(memory_->device()->mark());
  }
  return marks;
}

} // namespace hicache
