#include "c_abi/client.hpp"

#include "base/try.hpp"
#include "c_abi/offload.hpp"
#include "c_abi/quiet_signals.hpp"
#include "cache/hash/page_hash.hpp"
#include "cache/hash/sha256.hpp"

#include <algorithm>
#include <new>
#include <utility>

using namespace hicache;

namespace {

/// The address as written in the configuration.
std::string name_of(const std::string& node) {
  constexpr auto scheme = std::string_view{"unix:"};
  return node.starts_with(scheme) ? node.substr(scheme.size()) : node;
}

const error* first_failure(const std::vector<result<void>>& outcome) {
  const auto at = std::ranges::find_if(outcome, [](const auto& x) { return !x.has_value(); });
  return at == outcome.end() ? nullptr : &at->error();
}

result<void> found(bool is_there) {
  return is_there ? result<void>{} : fail(ec::not_found);
}

std::vector<result<void>> found(const result<std::vector<bool>>& are_there, size_t count) {
  if (!are_there)
    return all_fail(count, are_there.error());
  auto outcome = std::vector<result<void>>{};
  for (const auto is_there : *are_there)
    outcome.push_back(found(is_there));
  return outcome;
}

std::vector<result<void>> read(const pinned_pages& from, const std::vector<page_read>& pages,
                               const clock_source& clock) {
  auto outcome = std::vector<result<void>>{};
  for (const auto& page : pages) {
    const auto at = from.positions.find(page.key);
    auto copied
      = at == from.positions.end() ? fail(ec::not_found) : from.view.copy(at->second, page.parts);
    // After the lease expires, the memory may hold another page.
    if (!copied && copied.error().code == ec::corrupt_page && clock.now() >= from.view.until())
      copied = fail(ec::not_found, "the lease is over");
    outcome.push_back(std::move(copied));
  }
  return outcome;
}

} // namespace

result<std::unique_ptr<hc_client>> hc_client::open(client_settings settings,
                                                   const hc_options& options) {
  const auto quiet = quiet_signals{};
  auto client = std::unique_ptr<hc_client>{new hc_client(std::move(settings), options)};
  HICACHE_TRY(client->done_.start());
  for (auto i = size_t{0}; i < client->settings_.threads; ++i)
    client->threads_.emplace_back([raw = client.get()] { raw->work(); });
  return client;
}

hc_client::hc_client(client_settings settings, const hc_options& options)
  : settings_(std::move(settings)), options_(options), done_(settings_.calls), system_(config_),
    network_(std::make_unique<rpc_network>(system_, settings_.tls)),
    node_({&system_,
           network_->node_connector(),
           settings_.node,
           {tenant_of(settings_.tenant), fingerprint_of(settings_.pages_namespace)},
           settings_.lease,
           &clock_}) {}

hc_client::~hc_client() {
  done_.close();
  {
    const auto guard = std::lock_guard{mutex_};
    is_closing_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  // Fails all calls that wait for the node.
  network_.reset();
  for (auto& thread : threads_)
    thread.join();
}

result<void> hc_client::connect(time_point deadline) {
  auto connected = node_.connect(deadline);
  note_node(connected ? nullptr : &connected.error());
  return connected;
}

page_key hc_client::key_of(std::string_view name) const {
  return sha256{}.add_framed(settings_.pages_namespace).add_framed(name).finish();
}

result<hc_ticket> hc_client::submit(batch work) {
  const auto ticket = HICACHE_TRY(done_.open());
  work.ticket = ticket;
  {
    const auto guard = std::lock_guard{mutex_};
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
  return ticket;
}

result<std::shared_ptr<const pinned_pages>> hc_client::pages_of(const hc_lease* lease) const {
  const auto guard = std::lock_guard{mutex_};
  if (!leases_.contains(lease))
    return fail(ec::unknown_id, "lease: this client has no such lease");
  return lease->pages;
}

void hc_client::unpin(const hc_lease* lease) {
  auto ended = decltype(leases_)::node_type{}; // Destroyed after the lock is released.
  const auto guard = std::lock_guard{mutex_};
  ended = leases_.extract(lease);
}

hc_offload* hc_client::keep(std::unique_ptr<hc_offload> offload) {
  auto* kept = offload.get();
  const auto guard = std::lock_guard{mutex_};
  offloads_.emplace(kept, std::move(offload));
  return kept;
}

void hc_client::forget(const hc_offload* offload) {
  const auto guard = std::lock_guard{mutex_};
  offloads_.erase(offload);
}

hc_counters hc_client::counters() const {
  const auto calls = done_.counts();
  const auto guard = std::lock_guard{mutex_};
  auto seen = counters_;
  seen.open_calls = calls.open;
  seen.completions = calls.waiting;
  seen.leases = leases_.size();
  return seen;
}

result<node_status> hc_client::status(time_point deadline) {
  auto answer = node_.status({.from = 0, .most = 1}, deadline);
  note_node(answer ? nullptr : &answer.error());
  return answer;
}

result<page_totals> hc_client::clear(bool evict_first, time_point deadline) {
  auto answer = node_.clear(evict_first, deadline);
  note_node(answer ? nullptr : &answer.error());
  return answer;
}

void hc_client::work() {
  auto guard = std::unique_lock{mutex_};
  while (true) {
    changed_.wait(guard, [this] { return is_closing_ || !queue_.empty(); });
    if (is_closing_)
      return;
    const auto next = std::move(queue_.front());
    queue_.pop_front();
    guard.unlock();
    done_.add(run(next));
    guard.lock();
  }
}

hc_completion hc_client::run(const batch& what) noexcept {
  auto said = hc_completion{};
  said.ticket = what.ticket;
  said.user = what.user;
  said.error.code = HC_INTERNAL;
  auto* lease = static_cast<hc_lease*>(nullptr);
  try {
    // A batch that expired in the queue says nothing about the node.
    const auto is_late = !what.from && now() >= what.deadline;
    const auto outcome
      = is_late ? all_fail(what.size(), {ec::deadline_exceeded, {}}) : outcome_of(what, lease);
    if (!is_late && !what.from)
      note_node(first_failure(outcome));
    note(what, outcome);
    said = complete(what, outcome);
    said.lease = lease;
    return said;
  } catch (const std::bad_alloc&) {
    said.error.code = HC_OUT_OF_MEMORY;
  } catch (...) {
    // said.error.code is HC_INTERNAL already.
  }
  unpin(lease);
  if (what.codes != nullptr)
    std::fill_n(what.codes, what.size(), said.error.code);
  return said;
}

std::vector<result<void>> hc_client::outcome_of(const batch& what, hc_lease*& lease) {
  if (what.from && !what.blocks)
    return read(*what.from, what.reads, clock_);
  switch (what.what) {
    case batch::kind::put:
      return node_.put(what.writes, what.deadline);
    case batch::kind::get:
      return node_.get(what.reads, what.deadline);
    case batch::kind::lookup:
      return found(node_.exists(what.keys, what.deadline), what.size());
    case batch::kind::prefetch:
      return found(node_.prefetch(what.keys, what.is_chain, what.deadline), what.size());
    case batch::kind::remove:
      return node_.remove(what.keys, what.deadline);
    case batch::kind::store:
    case batch::kind::load:
      return what.blocks->run(what, node_, clock_);
    case batch::kind::pin:
      break;
  }
  return pin(what, lease);
}

std::vector<result<void>> hc_client::pin(const batch& what, hc_lease*& lease) {
  auto view = node_.view(what.keys, what.is_chain, what.deadline,
                         what.in_place ? page_check::whole : page_check::header);
  if (!view)
    return all_fail(what.size(), view.error());
  auto outcome = std::vector<result<void>>{};
  for (const auto& page : view->pages())
    outcome.push_back(found(!page.empty()));
  if (std::ranges::none_of(outcome, [](const auto& x) { return x.has_value(); }))
    return outcome;
  auto pages = std::make_shared<pinned_pages>(pinned_pages{std::move(*view), {}, what.in_place});
  for (auto i = size_t{0}; i < what.keys.size(); ++i)
    pages->positions.emplace(what.keys[i], i);
  auto made = std::make_unique<hc_lease>(hc_lease{this, std::move(pages)});
  const auto guard = std::lock_guard{mutex_};
  lease = made.get();
  leases_.emplace(lease, std::move(made));
  return outcome;
}

void hc_client::note(const batch& what, const std::vector<result<void>>& outcome) {
  const auto is_load = what.what == batch::kind::load;
  for (auto i = size_t{0}; i < outcome.size(); ++i)
    if (!outcome[i] && outcome[i].error().code == ec::corrupt_page
        && (is_load || !what.reads.empty()))
      log(HC_WARNING, "page " + to_string(is_load ? what.keys[i] : what.reads[i].key)
                        + " did not verify; it is a miss");
  const auto guard = std::lock_guard{mutex_};
  for (auto i = size_t{0}; i < what.writes.size(); ++i)
    note_written(outcome[i], total_bytes(what.writes[i].parts));
  for (auto i = size_t{0}; i < what.reads.size(); ++i)
    note_read(outcome[i], total_bytes(what.reads[i].parts));
  if (!what.blocks)
    return;
  for (const auto& each : outcome)
    if (is_load)
      note_read(each, what.blocks->page_bytes());
    else
      note_written(each, what.blocks->page_bytes());
}

void hc_client::note_written(const result<void>& outcome, uint64_t bytes) {
  counters_.pages_put += outcome ? 1 : 0;
  counters_.bytes_put += outcome ? bytes : 0;
  counters_.pages_failed += outcome ? 0 : 1;
}

void hc_client::note_read(const result<void>& outcome, uint64_t bytes) {
  const auto code = outcome ? ec::none : outcome.error().code;
  counters_.pages_got += code == ec::none ? 1 : 0;
  counters_.bytes_got += code == ec::none ? bytes : 0;
  counters_.pages_missed += code == ec::not_found ? 1 : 0;
  counters_.pages_corrupt += code == ec::corrupt_page ? 1 : 0;
  if (code != ec::none && code != ec::not_found && code != ec::corrupt_page)
    ++counters_.pages_failed;
}

void hc_client::note_node(const error* failure) {
  const auto is_away
    = failure != nullptr
      && (failure->code == ec::peer_unreachable || failure->code == ec::stopping
          || failure->code == ec::malformed_message || failure->code == ec::deadline_exceeded);
  auto why = is_away ? to_string(*failure) : std::string{};
  {
    const auto guard = std::lock_guard{mutex_};
    const auto is_news = counters_.connected == (is_away ? 1 : 0) || trouble_ != why;
    counters_.connected = is_away ? 0 : 1;
    trouble_ = why;
    if (!is_news)
      return;
  }
  if (is_away)
    log(HC_WARNING, "the node at " + name_of(settings_.node) + " does not serve: " + why);
  else
    log(HC_INFO, "connected to the node at " + name_of(settings_.node));
}

void hc_client::log(hc_level level, const std::string& text) const {
  if (options_.log != nullptr)
    options_.log(options_.log_user, level, text.c_str());
}
