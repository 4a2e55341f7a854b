#include "backends/cluster/index_addresses.hpp"

#include "backends/cluster/etcd_source.hpp"
#include "backends/cluster/index_place.hpp"
#include "backends/cluster/srv_source.hpp"
#include "base/check.hpp"
#include "base/try.hpp"

#include <absl/strings/str_join.h>
#include <spdlog/spdlog.h>

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace hicache {

namespace {

/// Signals belong to the program's threads. This also turns SIGPIPE into an error of the request.
void block_signals() {
  auto all = sigset_t{};
  sigfillset(&all);
  HICACHE_CHECK(pthread_sigmask(SIG_BLOCK, &all, nullptr) == 0);
}

} // namespace

std::chrono::seconds pause_after(const result<address_answer>& answer) noexcept {
  return answer ? std::clamp(answer->valid, source_pause_min, source_pause_max) : source_pause_min;
}

result<std::shared_ptr<index_addresses>> index_addresses::open(const std::string& place,
                                                               const tls_files& tls) {
  auto where = HICACHE_TRY(parse_index_place(place));
  if (const auto* listed = std::get_if<listed_place>(&where)) {
    auto addresses = std::vector<std::string>{};
    for (const auto& address : listed->addresses)
      addresses.push_back(to_string(address));
    return std::make_shared<index_addresses>(std::move(addresses));
  }
  if (const auto* srv = std::get_if<srv_place>(&where))
    return std::make_shared<index_addresses>(place, std::make_unique<srv_source>(*srv));
  const auto& etcd = std::get<etcd_place>(where);
  if (etcd.tls && !tls.given())
    return fail(ec::invalid_argument,
                "'" + place + "' is asked by TLS; expected --tls-cert, --tls-key and --tls-ca");
  return std::make_shared<index_addresses>(
    place, std::make_unique<etcd_source>(etcd, etcd.tls ? tls : tls_files{}));
}

index_addresses::index_addresses(std::vector<std::string> fixed)
  : name_(absl::StrJoin(fixed, ", ")), addresses_(std::move(fixed)), is_asked_(true) {
  HICACHE_CHECK(!addresses_.empty());
}

index_addresses::index_addresses(std::string name, std::unique_ptr<address_source> source)
  : name_(std::move(name)), source_(std::move(source)), trouble_("it has not answered yet"),
    thread_([this] { run(); }) {}

index_addresses::~index_addresses() {
  close();
}

std::vector<std::string> index_addresses::now() const {
  const auto lock = std::lock_guard{mutex_};
  return addresses_;
}

std::string index_addresses::trouble() const {
  const auto lock = std::lock_guard{mutex_};
  return trouble_;
}

void index_addresses::wait_for(std::chrono::nanoseconds patience) const {
  auto lock = std::unique_lock{mutex_};
  changed_.wait_for(lock, patience, [this] { return is_asked_; });
}

void index_addresses::announce(const std::string& own) {
  const auto lock = std::lock_guard{mutex_};
  own_ = own;
  changed_.notify_all();
}

void index_addresses::close() {
  {
    const auto lock = std::lock_guard{mutex_};
    stop_.raise();
    changed_.notify_all();
  }
  if (thread_.joinable())
    thread_.join();
}

void index_addresses::run() {
  block_signals();
  auto lock = std::unique_lock{mutex_};
  while (!stop_.is_raised()) {
    const auto own = own_;
    lock.unlock();
    const auto answer = source_->ask(own, stop_);
    lock.lock();
    if (!stop_.is_raised())
      note(answer);
    is_asked_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, pause_after(answer), [&] { return stop_.is_raised() || own_ != own; });
  }
  lock.unlock();
  source_->leave();
}

void index_addresses::note(const result<address_answer>& answer) {
  trouble_ = answer ? answer->trouble : answer.error().detail;
  // While no address was ever found, the waiting caller reports the trouble.
  const auto matters = has_found_ || !own_.empty();
  if (trouble_.empty() && is_logged_)
    spdlog::info("{} is of use again", name_);
  if (!trouble_.empty() && !is_logged_ && matters)
    spdlog::warn("{}: {}{}", name_, trouble_,
                 answer ? "" : "; addresses that are known stay in use, and it is asked again");
  is_logged_ = !trouble_.empty() && (is_logged_ || matters);
  if (!answer)
    return;
  addresses_ = answer->addresses;
  has_found_ = has_found_ || !addresses_.empty();
}

} // namespace hicache
