#include "launch/router/completion_proxy.hpp"

#include "runtime/completions_api.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace hicache {

namespace {

/// A longer answer is refused, unless it is a stream.
constexpr auto answer_bytes_max = size_t{64} << 20;

constexpr auto event_stream = "text/event-stream";

time_point now() {
  return std::chrono::steady_clock::now();
}

/// What an instance says that takes no requests now.
bool is_refusal(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

std::vector<std::string> forwarded_headers(const httplib::Request& request) {
  auto lines = std::vector<std::string>{};
  for (const auto* const name : {"Authorization", "X-Request-Id", "Traceparent", "Tracestate"})
    if (request.has_header(name))
      lines.push_back(std::string{name} + ": " + request.get_header_value(name));
  return lines;
}

} // namespace

/// A request at an instance.
struct completion_proxy::attempt {
  std::shared_ptr<instance_lease> lease;
  std::shared_ptr<upstream_call> call;
  /// The answer, or its first events.
  std::string received;
  event_gate gate;
  bool is_stream = false;
  /// How it ended; nothing while events may follow.
  std::optional<request_outcome> outcome;

  request_outcome outcome_of_call() const {
    switch (call->state()) {
      case upstream_state::late:
        return request_outcome::late;
      case upstream_state::abandoned:
        return request_outcome::abandoned;
      case upstream_state::complete:
        return is_refusal(call->status()) ? request_outcome::refused : request_outcome::answered;
      default:
        return request_outcome::failed;
    }
  }

  /// Reads until whole events are there, or the end.
  void read() {
    for (auto part = call->read(); !part.empty(); part = call->read()) {
      is_stream = call->status() == 200 && call->header("Content-Type").starts_with(event_stream);
      received += is_stream ? gate.pass(part) : part;
      if (is_stream && !received.empty())
        return;
      if (gate.is_overfull() || received.size() > answer_bytes_max) {
        outcome = request_outcome::failed;
        return;
      }
    }
    outcome = outcome_of_call();
    if (outcome == request_outcome::answered)
      received += gate.rest();
  }

  /// Why there is no answer, or no whole one.
  std::string trouble() const {
    if (outcome == request_outcome::refused)
      return "it answered with status " + std::to_string(call->status());
    return call->state() == upstream_state::running ? "its answer is too long" : call->trouble();
  }

  void end() { lease->ended(*outcome, now()); }
};

completion_proxy::attempt completion_proxy::ask(std::shared_ptr<instance_lease> lease,
                                                const completion_body& body,
                                                const std::vector<std::string>& headers, int client,
                                                time_point until) const {
  auto made = attempt{std::move(lease), nullptr, {}, {}, false, {}};
  const auto left = std::max<duration>(until - now(), std::chrono::milliseconds{1});
  made.call = upstream_call::start({made.lease->address(), "/v1/completions", headers,
                                    body.for_instance(made.lease->prefill()),
                                    std::min(left, options_.connect_time), left, client});
  made.read();
  made.lease->started();
  return made;
}

void completion_proxy::complete(const httplib::Request& request, std::string body, int client,
                                httplib::Response& answer) {
  const auto parsed = completion_body::parse(std::move(body));
  if (!parsed)
    return answer_error(answer, 400, parsed.error().detail);
  const auto until = now() + options_.request_time;
  const auto headers = forwarded_headers(request);
  const auto prompt = table_.name(parsed->tokens(), parsed->salt());
  auto tried = uint64_t{0};
  auto why = std::string{"no instance takes requests now"};
  for (auto attempts = uint32_t{0}; attempts <= options_.retries; ++attempts) {
    auto lease = table_.choose(prompt, tried, now());
    if (!lease)
      break;
    if (attempts > 0)
      retries_.fetch_add(1, std::memory_order_relaxed);
    tried |= uint64_t{1} << lease->slot();
    auto made = ask(std::move(lease), *parsed, headers, client, until);
    if (!made.outcome || made.outcome == request_outcome::answered)
      return deliver(std::move(made), answer);
    made.end();
    if (made.outcome == request_outcome::abandoned)
      return answer_error(answer, 499, "the client is gone");
    if (made.outcome == request_outcome::late)
      return answer_error(answer, 504, made.lease->address() + " did not answer in time");
    why
      = made.lease->address()
        + (made.outcome == request_outcome::refused ? " takes no requests: " : " did not answer: ")
        + made.trouble();
    spdlog::info("{}", why);
  }
  answer_error(answer, 503, why);
}

void completion_proxy::deliver(attempt made, httplib::Response& answer) const {
  answer.set_header("X-Hicache-Instance", made.lease->address());
  if (!made.is_stream) {
    answer.status = made.call->status();
    const auto type = made.call->header("Content-Type");
    answer.set_content(made.received, type.empty() ? "application/json" : type);
    return made.end();
  }
  // Shared, because httplib copies what it calls.
  const auto stream = std::make_shared<attempt>(std::move(made));
  answer.set_chunked_content_provider(event_stream, [stream](size_t, httplib::DataSink& sink) {
    auto& self = *stream;
    if (!self.outcome && self.received.empty())
      self.read();
    if (self.outcome == request_outcome::abandoned)
      return false;
    auto text = std::exchange(self.received, {});
    if (self.outcome && self.outcome != request_outcome::answered)
      text += json_event(completion_error(self.outcome == request_outcome::late ? 504 : 502,
                                          self.lease->address() + " broke off: " + self.trouble()));
    if (!text.empty() && !sink.write(text.data(), text.size()))
      return false; // The lease ends as abandoned.
    if (!self.outcome)
      return true;
    self.end();
    sink.done();
    return true;
  });
}

} // namespace hicache
