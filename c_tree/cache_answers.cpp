#include "c_tree/cache_answers.hpp"

#include "base/overloaded.hpp"
#include "hicache/caf_error.hpp"

#include <utility>
#include <variant>

using namespace hicache;

namespace hicache {

tree_call::tree_call(caf::actor_system& system, const tree_actor& tree, tree_operations ops)
  : self_(system) {
  auto handle = self_->request(tree, caf::infinite, atom::apply_v, std::move(ops));
  take_ = [handle]() mutable {
    auto outcome = result<tree_answers>{};
    handle.receive([&](const tree_answers& answers) { outcome = answers; },
                   [&](const caf::error& err) { outcome = tl::unexpected{from_caf(err)}; });
    return outcome;
  };
}

std::optional<result<tree_answers>> tree_call::wait(std::chrono::milliseconds time) {
  if (!self_->await_data(std::chrono::high_resolution_clock::now() + time))
    return std::nullopt;
  return take_();
}

namespace {

void add_pages(const page_list& pages, hc_answer& to) {
  if (!pages)
    return;
  to.pages = pages->data();
  to.page_count = pages->size();
}

/// A visitor that copies a result to the fields of an answer.
auto filler_of(hc_answer& to) {
  return overloaded{[&to](const match_result& x) {
                      to.device_tokens = x.l1_tokens;
                      to.host_tokens = x.l2_tokens;
                      to.node = x.node;
                      add_pages(x.l1_pages, to);
                    },
                    [&to](const prefetch_result& x) { to.wanted_tokens = x.tokens; },
                    [&to](const schedule_result& x) { to.is_ready = x.ready ? 1 : 0; },
                    [&to](const load_result& x) {
                      to.device_tokens = x.l1_tokens;
                      to.loading_tokens = x.loading_tokens;
                      to.from_storage_tokens = x.from_storage_tokens;
                      add_pages(x.l1_pages, to);
                    },
                    [&to](const allocate_result& x) { add_pages(x.l1_pages, to); },
                    [&to](const insert_result& x) {
                      to.duplicate_tokens = x.duplicate_tokens;
                      to.pinned_tokens = x.pinned_tokens;
                      to.node = x.node;
                      add_pages(x.l1_pages, to);
                    },
                    [&to](const release_result& x) {
                      const auto& seen = x.provenance;
                      to.l1_tokens = seen.l1_tokens;
                      to.l2_tokens = seen.l2_tokens;
                      to.l3_tokens = seen.l3_tokens;
                      to.computed_tokens = seen.computed_tokens;
                      to.given_up_tokens = seen.unserved_tokens;
                      to.give_up = to_string(seen.why);
                      to.l3_backend = seen.l3_backend.c_str();
                    },
                    [&to](const evict_result& x) {
                      to.freed_tokens = x.tokens;
                      to.writing_tokens = x.writing_tokens;
                    },
                    [&to](const pin_result& x) { to.pinned_tokens = x.tokens; },
                    [&to](const session_result& x) { to.generation = x.generation; },
                    [&to](const lock_result& x) {
                      to.evictable_tokens = x.evictable_tokens;
                      to.protected_tokens = x.protected_tokens;
                    },
                    [&to](const backup_result& x) { to.written_tokens = x.written_tokens; },
                    [&to](const load_node_result& x) { to.loading_tokens = x.loading_tokens; },
                    [](const clear_result&) {}};
}

const char* text_of(const error& what) {
  return what.detail.empty() ? sentence(what.code) : what.detail.c_str();
}

} // namespace

} // namespace hicache

void open_answers::add(hc_answers* answers) {
  const auto guard = std::lock_guard{mutex_};
  list_.insert(answers);
}

void open_answers::remove(hc_answers* answers) {
  const auto guard = std::lock_guard{mutex_};
  list_.erase(answers);
}

void open_answers::end() {
  const auto guard = std::lock_guard{mutex_};
  for (auto* answers : list_)
    answers->end();
}

hc_answers::hc_answers(std::vector<uint32_t> kinds, std::unique_ptr<tree_call> call,
                       std::shared_ptr<open_answers> book)
  : kinds_(std::move(kinds)), book_(std::move(book)), call_(std::move(call)) {
  book_->add(this);
}

hc_answers::~hc_answers() {
  book_->remove(this);
}

hc_answers::result<void> hc_answers::wait(std::chrono::milliseconds time) {
  const auto guard = std::lock_guard{mutex_};
  if (call_) {
    auto answers = call_->wait(time);
    if (!answers)
      return fail(ec::deadline_exceeded);
    call_.reset();
    if (*answers)
      take(std::move(**answers));
    else
      failure_ = answers->error();
  }
  if (failure_.code != ec::none)
    return tl::unexpected{failure_};
  return {};
}

void hc_answers::end() {
  const auto guard = std::lock_guard{mutex_};
  if (!call_)
    return;
  call_.reset();
  failure_ = {ec::stopping, "the cache was closed before it answered"};
}

std::span<const hc_answer> hc_answers::items() const {
  const auto guard = std::lock_guard{mutex_};
  return items_;
}

void hc_answers::take(tree_answers answers) {
  answers_ = std::move(answers);
  for (auto i = size_t{0}; i < answers_.list.size(); ++i)
    items_.push_back(view_of(kinds_[i], answers_.list[i]));
}

hc_answer hc_answers::view_of(uint32_t kind, const tree_answer& answer) {
  auto view = hc_answer{};
  view.kind = kind;
  if (!answer) {
    view.code = static_cast<int32_t>(answer.error().code);
    view.text = text_of(answer.error());
    return view;
  }
  std::visit(filler_of(view), *answer);
  if (const auto* loaded = std::get_if<load_result>(&*answer); loaded && loaded->progress)
    view.progress = &progress_.emplace_back(hc_progress{{}, loaded->progress});
  if (const auto* released = std::get_if<release_result>(&*answer))
    view.l3 = view_of(released->provenance);
  return view;
}

const hc_l3_use* hc_answers::view_of(const request_provenance& from) {
  auto& tiers = tiers_.emplace_back();
  for (const auto& each : from.l3_tiers)
    tiers.push_back({each.tier.c_str(), each.tokens});
  return &uses_.emplace_back(hc_l3_use{sizeof(hc_l3_use), tiers.data(), tiers.size(),
                                       static_cast<uint64_t>(from.load_estimate.count()),
                                       static_cast<uint64_t>(from.compute_estimate.count())});
}
