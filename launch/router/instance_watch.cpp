#include "launch/router/instance_watch.hpp"

#include "base/try.hpp"
#include "launch/router/upstream_call.hpp"

#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <utility>

namespace hicache {

namespace {

using nlohmann::json;

/// A longer list of models is none.
constexpr auto models_bytes_max = size_t{1} << 20;

/// The role that an instance's GET /v1/models says, if it says one.
std::optional<instance_role> role_in(const std::string& text) {
  const auto body = json::parse(text, nullptr, false);
  const auto data = body.is_object() ? body.value("data", json{}) : json{};
  if (!data.is_array() || data.empty() || !data.front().is_object())
    return std::nullopt;
  const auto name = data.front().value("role", json{});
  const auto role = name.is_string() ? parse_role(name.get<std::string>())
                                     : result<instance_role>{fail(ec::not_found)};
  return role ? std::optional{*role} : std::nullopt;
}

} // namespace

result<std::unique_ptr<instance_watch>> instance_watch::start(const instance_options& wanted,
                                                              instance_slot slot,
                                                              instance_table& table,
                                                              const options& chosen) {
  auto watch = std::make_unique<instance_watch>(wanted.address, slot, table, chosen);
  if (wanted.events.empty())
    return watch;
  auto sink = event_sink{};
  sink.apply = [&table, slot, address = wanted.address](std::string_view message) {
    if (const auto applied = table.apply_events(slot, message); !applied)
      spdlog::warn("{}: {}", address, applied.error().detail);
  };
  sink.lose = [&table, slot, address = wanted.address] {
    spdlog::info("{}: events are lost; its pages are forgotten", address);
    table.lose_events(slot);
  };
  watch->events_
    = HICACHE_TRY(event_subscription::open(wanted.events, wanted.replay, std::move(sink)));
  return watch;
}

instance_watch::instance_watch(std::string address, instance_slot slot, instance_table& table,
                               const options& chosen)
  : address_(std::move(address)), slot_(slot), table_(table), options_(chosen),
    prober_([this](const std::stop_token& stop) { probe(stop); }) {}

void instance_watch::probe(const std::stop_token& stop) {
  auto was_fine = false;
  do {
    const auto pass = table_.admit_probe(slot_, std::chrono::steady_clock::now());
    if (!pass)
      continue;
    const auto call = upstream_call::start(
      {address_, "/v1/models", {}, {}, options_.connect_time, 2 * options_.connect_time});
    auto text = std::string{};
    for (auto part = call->read(); !part.empty() && text.size() < models_bytes_max;
         part = call->read())
      text += part;
    const auto is_fine = call->state() == upstream_state::complete && call->status() == 200;
    if (is_fine != std::exchange(was_fine, is_fine))
      spdlog::info("{} {}", address_, is_fine ? "answers" : "answers no more: " + call->trouble());
    auto answer = std::optional<probe_answer>{};
    if (is_fine)
      answer = probe_answer{role_in(text), std::move(text)};
    table_.probed(slot_, *pass, std::move(answer), std::chrono::steady_clock::now());
  } while ([&] {
    auto lock = std::unique_lock{mutex_};
    stopped_.wait_for(lock, stop, options_.period, [] { return false; });
    return !stop.stop_requested();
  }());
}

} // namespace hicache
