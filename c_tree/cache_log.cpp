#include "c_tree/cache_log.hpp"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace hicache {

namespace {

struct listener {
  const log_listener* owner = nullptr;
  hc_log log = nullptr;
  void* user = nullptr;
  spdlog::level::level_enum least = spdlog::level::info;
};

hc_level level_of(spdlog::level::level_enum level) {
  if (level <= spdlog::level::debug)
    return HC_DEBUG;
  if (level == spdlog::level::info)
    return HC_INFO;
  return level == spdlog::level::warn ? HC_WARNING : HC_ERROR;
}

/// Forwards lines to the listeners. Holds its mutex meanwhile, so removed callbacks are not called.
class listener_sink final : public spdlog::sinks::base_sink<std::mutex> {
public:
  void add(const listener& one) {
    const auto guard = std::lock_guard{mutex_};
    listeners_.push_back(one);
  }

  /// @returns whether other listeners remain
  bool remove(const log_listener* owner) {
    const auto guard = std::lock_guard{mutex_};
    std::erase_if(listeners_, [owner](const auto& x) { return x.owner == owner; });
    return !listeners_.empty();
  }

  /// The least severe level that any listener takes.
  spdlog::level::level_enum least() {
    const auto guard = std::lock_guard{mutex_};
    auto least = spdlog::level::off;
    for (const auto& each : listeners_)
      least = each.log == nullptr ? least : std::min(least, each.least);
    return least;
  }

private:
  void sink_it_(const spdlog::details::log_msg& line) override {
    const auto text = std::string{line.payload.data(), line.payload.size()};
    for (const auto& each : listeners_)
      if (each.log != nullptr && line.level >= each.least)
        each.log(each.user, level_of(line.level), text.c_str());
  }

  void flush_() override {}

  std::vector<listener> listeners_;
};

} // namespace

/// One per process, like the default logger.
class log_listener::hub {
public:
  static hub& get() {
    static auto* const only = new hub; // Never destroyed: late threads may still log.
    return *only;
  }

  void add(const listener& one) {
    const auto guard = std::lock_guard{mutex_};
    sink_->add(one);
    if (logger_)
      return logger_->set_level(sink_->least());
    logger_ = std::make_shared<spdlog::logger>("hicache", sink_);
    logger_->set_level(sink_->least());
    former_ = spdlog::default_logger();
    spdlog::set_default_logger(logger_);
  }

  void remove(const log_listener* owner) {
    const auto guard = std::lock_guard{mutex_};
    if (sink_->remove(owner))
      return logger_->set_level(sink_->least());
    if (spdlog::default_logger() == logger_)
      spdlog::set_default_logger(std::move(former_));
    former_ = nullptr;
    logger_ = nullptr;
  }

private:
  std::mutex mutex_; // Guards what follows.
  const std::shared_ptr<listener_sink> sink_ = std::make_shared<listener_sink>();
  std::shared_ptr<spdlog::logger> logger_;
  std::shared_ptr<spdlog::logger> former_;
};

log_listener::log_listener(hc_log log, void* user, const std::string& level) {
  const auto least = spdlog::level::from_str(level == "warn" ? "warning" : level);
  hub::get().add({this, log, user, least});
}

log_listener::~log_listener() {
  hub::get().remove(this);
}

} // namespace hicache
