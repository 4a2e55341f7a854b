#include "c_tree/cache_answers.hpp"

#include "base/overloaded.hpp"
#include "c_abi/batch.hpp"
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
  std::visit(overloaded{[&](const match_result& x) {
                          view.device_tokens = x.l1_tokens;
                          view.host_tokens = x.l2_tokens;
                          view.node = x.node;
                          add_pages(x.l1_pages, view);
                        },
                        [&](const prefetch_result& x) { view.wanted_tokens = x.tokens; },
                        [&](const schedule_result& x) { view.is_ready = x.ready ? 1 : 0; },
                        [&](const load_result& x) {
                          view.device_tokens = x.l1_tokens;
                          view.loading_tokens = x.loading_tokens;
                          view.from_storage_tokens = x.from_storage_tokens;
                          if (x.progress)
                            view.progress = &progress_.emplace_back(hc_progress{{}, x.progress});
                          add_pages(x.l1_pages, view);
                        },
                        [&](const allocate_result& x) { add_pages(x.l1_pages, view); },
                        [&](const insert_result& x) {
                          view.duplicate_tokens = x.duplicate_tokens;
                          view.pinned_tokens = x.pinned_tokens;
                          view.node = x.node;
                          add_pages(x.l1_pages, view);
                        },
                        [&](const release_result& x) {
                          const auto& seen = x.provenance;
                          view.l1_tokens = seen.l1_tokens;
                          view.l2_tokens = seen.l2_tokens;
                          view.l3_tokens = seen.l3_tokens;
                          view.computed_tokens = seen.computed_tokens;
                          view.given_up_tokens = seen.unserved_tokens;
                          view.give_up = to_string(seen.why);
                          view.l3_backend = seen.l3_backend.c_str();
                          view.l3 = view_of(seen);
                        },
                        [&](const evict_result& x) {
                          view.freed_tokens = x.tokens;
                          view.writing_tokens = x.writing_tokens;
                        },
                        [&](const pin_result& x) { view.pinned_tokens = x.tokens; },
                        [&](const session_result& x) { view.generation = x.generation; },
                        [&](const lock_result& x) {
                          view.evictable_tokens = x.evictable_tokens;
                          view.protected_tokens = x.protected_tokens;
                        },
                        [&](const backup_result& x) { view.written_tokens = x.written_tokens; },
                        [&](const load_node_result& x) { view.loading_tokens = x.loading_tokens; },
                        [](const clear_result&) {}},
             *answer);
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
