#include "backends/index_link.hpp"

#include <caf/io/middleman.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <thread>

namespace hicache {

namespace {

using namespace std::chrono_literals;

/// Pauses between attempts at start-up double from the first value to the second.
constexpr auto pause_min = std::chrono::nanoseconds{50ms};
constexpr auto pause_max = std::chrono::nanoseconds{1s};

/// Pause between attempts while running; each may block its caller for as long as the system takes
/// to refuse a connection.
constexpr auto retry_pause = 1s;

} // namespace

result<endpoint> parse_endpoint(const std::string& text) {
  const auto colon = text.rfind(':');
  auto where = endpoint{};
  if (colon != std::string::npos && colon > 0) {
    where.host = text.substr(0, colon);
    if (where.host.size() > 2 && where.host.front() == '[' && where.host.back() == ']')
      where.host = where.host.substr(1, where.host.size() - 2);
    const auto* end = text.data() + text.size();
    const auto [rest, status] = std::from_chars(text.data() + colon + 1, end, where.port);
    if (status == std::errc{} && rest == end)
      return where;
  }
  return fail(ec::invalid_argument, "'" + text + "' is not an address such as 127.0.0.1:7000");
}

std::string to_string(const endpoint& where) {
  const auto host = where.host.find(':') == std::string::npos ? where.host : "[" + where.host + "]";
  return host + ":" + std::to_string(where.port);
}

result<void> index_link::connect(std::chrono::nanoseconds patience) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  for (auto pause = pause_min;; pause = std::min(2 * pause, pause_max)) {
    auto index = attempt();
    if (index) {
      const auto guard = std::lock_guard{mutex_};
      index_ = *index;
      return {};
    }
    if (std::chrono::steady_clock::now() + pause > give_up)
      return fail(ec::peer_unreachable, "no index answers at " + to_string(where_) + " ("
                                          + index.error().detail
                                          + "); start hicache-index there or correct --index");
    spdlog::debug("no index at {} yet", to_string(where_));
    std::this_thread::sleep_for(pause);
  }
}

index_actor index_link::get() {
  const auto guard = std::lock_guard{mutex_};
  const auto now = std::chrono::steady_clock::now();
  if (!index_ && now >= retry_at_) {
    retry_at_ = now + retry_pause;
    if (auto index = attempt()) {
      spdlog::info("connected to the index at {} again", to_string(where_));
      index_ = *index;
    }
  }
  return index_;
}

void index_link::lost(const index_actor& index) {
  const auto guard = std::lock_guard{mutex_};
  if (index_ == index && index_) {
    spdlog::warn("lost the index at {}; L3 misses until it is back", to_string(where_));
    index_ = nullptr;
  }
}

result<index_actor> index_link::attempt() {
  auto index = system_.middleman().remote_actor<index_actor>(where_.host, where_.port);
  if (!index)
    return tl::unexpected{from_caf(index.error())};
  return *index;
}

} // namespace hicache
