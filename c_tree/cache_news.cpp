#include "c_tree/cache_news.hpp"

#include "base/check.hpp"
#include "base/try.hpp"

#include <utility>

using namespace hicache;

namespace {

static_assert(sizeof(page_key) == sizeof(hc_key) && alignof(page_key) == alignof(hc_key));
static_assert(sizeof(token_id) == sizeof(uint32_t));

const hc_key* keys_of(const page_key* keys) {
  return reinterpret_cast<const hc_key*>(keys);
}

uint32_t tier_of(cache_medium medium) {
  return medium == cache_medium::l1 ? HC_TIER_L1 : HC_TIER_L2;
}

void fill(const step_news&, hc_news& to) {
  to.kind = HC_NEWS_STEP;
}

void fill(const error& from, hc_news& to) {
  to.kind = HC_NEWS_FAILURE;
  to.code = static_cast<int32_t>(from.code);
  to.text = from.detail.empty() ? sentence(from.code) : from.detail.c_str();
}

void fill(const pages_stored& from, hc_news& to) {
  to.kind = HC_NEWS_STORED;
  to.tier = tier_of(from.medium);
  to.parent = from.parent ? keys_of(&*from.parent) : nullptr;
  to.keys = keys_of(from.keys.data());
  to.key_count = from.keys.size();
  to.tokens = from.tokens.data();
  to.token_count = from.tokens.size();
  to.extra_key = from.ns.extra_key.data();
  to.extra_key_bytes = from.ns.extra_key.size();
  to.salt = from.ns.salt.data();
  to.salt_bytes = from.ns.salt.size();
}

void fill(const pages_removed& from, hc_news& to) {
  to.kind = HC_NEWS_REMOVED;
  to.tier = tier_of(from.medium);
  to.keys = keys_of(from.keys.data());
  to.key_count = from.keys.size();
}

void fill(const cache_cleared&, hc_news& to) {
  to.kind = HC_NEWS_CLEARED;
}

void fill(const cache_event& from, hc_news& to) {
  std::visit([&](const auto& x) { fill(x, to); }, from);
}

} // namespace

hc_news_list::hc_news_list(std::deque<cache_news> news, uint64_t lost) : news_(std::move(news)) {
  items_.reserve(news_.size() + 1);
  if (lost > 0) {
    auto& first = items_.emplace_back(hc_news{});
    first.kind = HC_NEWS_LOST;
    first.lost = lost;
  }
  for (const auto& each : news_)
    std::visit([&](const auto& x) { fill(x, items_.emplace_back(hc_news{})); }, each);
}

namespace hicache {

news_queue::news_queue(size_t most) : most_(most) {
  HICACHE_CHECK(most > 0);
}

void news_queue::add(cache_news news) {
  const auto guard = std::lock_guard{mutex_};
  const auto is_step = std::holds_alternative<step_news>(news);
  if (is_closed_ || (is_step && is_step_waiting_))
    return;
  is_step_waiting_ = is_step_waiting_ || is_step;
  if (news_.size() == most_) {
    is_step_waiting_ = is_step_waiting_ && !std::holds_alternative<step_news>(news_.front());
    news_.pop_front();
    ++lost_;
  }
  news_.push_back(std::move(news));
  added(news_.size() == 1);
}

result<std::unique_ptr<hc_news_list>> news_queue::take(time_point deadline) {
  auto guard = std::unique_lock{mutex_};
  HICACHE_TRY(wait(guard, deadline, [this] { return !news_.empty(); }));
  if (news_.empty())
    return fail(ec::deadline_exceeded);
  auto taken = std::make_unique<hc_news_list>(std::exchange(news_, {}), std::exchange(lost_, 0));
  is_step_waiting_ = false;
  emptied();
  return taken;
}

} // namespace hicache
