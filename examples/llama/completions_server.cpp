#include "examples/llama/completions_server.hpp"

#include "base/try.hpp"
#include "examples/llama/json_fields.hpp"
#include "hicache/handoff.hpp"
#include "runtime/http_listener.hpp"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace llama {

namespace {

using nlohmann::json;
using steady = std::chrono::steady_clock;

/// Completions served side by side; others wait for their turn.
constexpr auto server_threads = size_t{64};

/// Connections that wait for their turn; others wait in the kernel.
constexpr auto waiting_connections = size_t{256};

/// For a request to arrive, and for each write of its answer.
constexpr auto client_time = std::chrono::seconds{30};

/// How soon clients of an engine that does not stop are told.
constexpr auto stop_patience = std::chrono::seconds{1};

/// How soon the end of a client ends its completion.
constexpr auto client_pause = std::chrono::milliseconds{100};

constexpr auto body_bytes_max = size_t{16} << 20;

/// Each may take as long as a timeout.
constexpr auto prefill_instances_max = size_t{8};

/// The parts of a completion on their way from the engine to the thread of its client, which makes
/// the queue.
class output_queue {
public:
  explicit output_queue(const std::atomic<bool>& is_stopping) : is_stopping_(is_stopping) {}

  void push(const completion_output& output) {
    {
      const auto lock = std::scoped_lock{mutex_};
      parts_.push_back(output);
    }
    changed_.notify_one();
  }

  /// The next part; an aborted one if the client has gone.
  completion_output pop() {
    const auto since = steady::now();
    // A stopping engine may wait for a rank that has died.
    while (is_wanted() && !(is_stopping_ && steady::now() - since > stop_patience))
      if (wait_for(client_pause)) {
        const auto lock = std::scoped_lock{mutex_};
        auto first = std::move(parts_.front());
        parts_.pop_front();
        return first;
      }
    return {0, {}, finish_reason::aborted, 0, {}};
  }

  /// Whether the client is still there. A server that stops shuts its connections down itself.
  bool is_wanted() const { return is_stopping_ || !hicache::has_hung_up(client_); }

  /// @returns whether there is a part
  bool wait_for(std::chrono::milliseconds time) {
    auto lock = std::unique_lock{mutex_};
    return changed_.wait_for(lock, time, [this] { return !parts_.empty(); });
  }

private:
  const std::atomic<bool>& is_stopping_;
  const socket_t client_ = hicache::http_listener::client();
  std::mutex mutex_; // Guards the parts.
  std::condition_variable changed_;
  std::deque<completion_output> parts_;
};

/// What a client asked for.
struct client_request {
  completion_request completion;
  bool streams = false;
  bool streams_usage = false;
};

/// Tokens below 256 are bytes. JSON has no others but UTF-8, so those that are none are replaced.
std::string text_of(const std::vector<hicache::token_id>& tokens) {
  auto text = std::string{};
  for (const auto token : tokens)
    if (token < 256)
      text += static_cast<char>(token);
    else
      text += "<" + std::to_string(token) + ">";
  return text;
}

std::string to_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

const char* name_of(finish_reason why) {
  switch (why) {
    case finish_reason::stop:
      return "stop";
    case finish_reason::length:
      return "length";
    default:
      return "abort";
  }
}

// -- parsing ------------------------------------------------------------------------

std::vector<hicache::token_id> read_prompt(json_fields& fields, const server_options& options) {
  const auto prompt = fields.field("prompt");
  auto tokens = std::vector<hicache::token_id>{};
  if (prompt.is_string())
    for (const auto byte : prompt.get_ref<const std::string&>())
      tokens.push_back(static_cast<uint8_t>(byte));
  else if (prompt.is_array())
    for (const auto& each : prompt)
      tokens.push_back(each.is_number_unsigned() && each.get<uint64_t>() < options.vocabulary
                         ? each.get<hicache::token_id>()
                         : UINT32_MAX);
  if (tokens.empty())
    fields.complain("prompt", "expected a text, or a list of tokens, not empty");
  if (std::ranges::any_of(tokens, [&](auto token) { return token >= options.vocabulary; }))
    fields.complain("prompt", "expected tokens below " + std::to_string(options.vocabulary)
                                + ", the size of the vocabulary");
  if (tokens.size() >= options.positions)
    fields.complain("prompt", std::to_string(tokens.size()) + " tokens; expected fewer than "
                                + std::to_string(options.positions)
                                + ", the longest sequence of the model and of the device pool");
  return tokens;
}

/// Complains about what this engine does not do, so that nobody takes it for done.
void refuse_unsupported(json_fields& fields) {
  for (const auto* const key : {"n", "best_of"})
    if (fields.has(key) && fields.field(key) != 1)
      fields.complain(key, "expected 1");
  for (const auto* const key : {"logprobs", "suffix", "stop"})
    if (!fields.field(key).empty())
      fields.complain(key, "not supported");
  if (fields.has("temperature") && fields.field("temperature") != 0)
    fields.complain("temperature", "expected 0, the likeliest token");
}

/// The prefill instances to ask. Other instances than those that decode ask none.
std::vector<std::string> read_prefill(json_fields& fields, const server_options& options) {
  const auto named = fields.field("prefill");
  auto list = std::vector<std::string>{};
  if (options.role != "decode")
    return list;
  if (named.is_null())
    return options.prefill;
  for (const auto& each : named)
    if (each.is_string())
      list.push_back(each);
  if (!named.is_array() || list.size() != named.size() || list.size() > prefill_instances_max)
    fields.complain("prefill", "expected a list of at most " + std::to_string(prefill_instances_max)
                                 + " HOST:PORT");
  return list;
}

result<client_request> parse_request(const std::string& text, const server_options& options) {
  const auto body = json::parse(text, nullptr, false);
  if (!body.is_object())
    return fail(ec::invalid_argument, "expected a JSON object");
  auto complaint = std::string{};
  auto fields = json_fields{body, complaint};
  refuse_unsupported(fields);
  auto wanted = client_request{};
  auto& completion = wanted.completion;
  completion.prompt = read_prompt(fields, options);
  completion.max_tokens = fields.number<uint64_t>("max_tokens", 1, INT32_MAX).value_or(16);
  completion.priority = fields.number<int32_t>("priority", INT32_MIN, INT32_MAX).value_or(0);
  completion.ignores_end = fields.flag("ignore_eos");
  completion.session = fields.number<hicache::session_id>("session", 1, INT64_MAX).value_or(0);
  completion.ends_session = fields.flag("ends_session");
  completion.salt = fields.text("cache_salt");
  completion.prefill = read_prefill(fields, options);
  wanted.streams = fields.flag("stream");
  const auto stream_options = fields.field("stream_options");
  if (stream_options.is_object())
    wanted.streams_usage = json_fields{stream_options, complaint}.flag("include_usage");
  if (!complaint.empty())
    return fail(ec::invalid_argument, complaint);
  return wanted;
}

// -- answers ------------------------------------------------------------------------

/// Follows a completion from its first token to its end.
class answer_writer {
public:
  answer_writer(const server_options& options, const client_request& wanted)
    : model_(options.model), id_("cmpl-" + std::to_string(wanted.completion.id)),
      prompt_tokens_(wanted.completion.prompt.size()), created_(std::time(nullptr)) {}

  void note(const completion_output& output) {
    tokens_.insert(tokens_.end(), output.tokens.begin(), output.tokens.end());
    cached_tokens_ = output.cached_tokens;
    handed_tokens_ = std::max(handed_tokens_, output.handed_tokens);
  }

  /// The whole completion.
  json whole(finish_reason why) const {
    auto answer = frame(choice(tokens_, why));
    answer["usage"] = usage();
    return answer;
  }

  /// A part of it, as an event.
  std::string event(const completion_output& output) const {
    return "data: " + to_text(frame(choice(output.tokens, output.finish))) + "\n\n";
  }

  std::string usage_event() const {
    auto answer = frame(json::array());
    answer["usage"] = usage();
    return "data: " + to_text(answer) + "\n\n";
  }

private:
  static json choice(const std::vector<hicache::token_id>& tokens, finish_reason why) {
    return json::array(
      {{{"index", 0},
        {"text", text_of(tokens)},
        {"token_ids", tokens},
        {"logprobs", nullptr},
        {"finish_reason", why == finish_reason::none ? json{} : json(name_of(why))}}});
  }

  json frame(json choices) const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", model_},
            {"choices", std::move(choices)}};
  }

  json usage() const {
    return {{"prompt_tokens", prompt_tokens_},
            {"completion_tokens", tokens_.size()},
            {"total_tokens", prompt_tokens_ + tokens_.size()},
            {"prompt_tokens_details",
             {{"cached_tokens", cached_tokens_}, {"handed_tokens", handed_tokens_}}}};
  }

  const std::string model_;
  const std::string id_;
  const uint64_t prompt_tokens_;
  const std::time_t created_;
  std::vector<hicache::token_id> tokens_;
  uint64_t cached_tokens_ = 0;
  uint64_t handed_tokens_ = 0;
};

void answer_error(httplib::Response& answer, int status, const std::string& sentence) {
  answer.status = status;
  answer.set_content(to_text({{"error",
                               {{"message", sentence},
                                {"type", status < 500 ? "invalid_request_error" : "server_error"},
                                {"code", status}}}}),
                     "application/json");
}

// -- metrics ------------------------------------------------------------------------

/// Counters of what was served.
class served_counts {
public:
  explicit served_counts(prometheus::Registry& registry) : registry_(registry) {}

  void count_first_token(steady::time_point since) {
    first_token_.Observe(std::chrono::duration<double>(steady::now() - since).count());
  }

  void count(const completion_output& output, uint64_t prompt_tokens) {
    generated_.Increment(static_cast<double>(output.tokens.size()));
    load_wait_.Increment(std::chrono::duration<double>(output.load_wait).count());
    if (output.finish == finish_reason::none)
      return;
    requests_
      .Add({{"finish", output.finish == finish_reason::failed ? "failed" : name_of(output.finish)}})
      .Increment();
    prompt_.Increment(static_cast<double>(prompt_tokens));
    cached_.Increment(static_cast<double>(output.cached_tokens));
    handed_.Increment(static_cast<double>(output.handed_tokens));
  }

private:
  prometheus::Family<prometheus::Counter>& family(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
  }

  prometheus::Registry& registry_;
  prometheus::Family<prometheus::Counter>& requests_
    = family("llama_requests_total", "Completions that ended, by how.");
  prometheus::Counter& prompt_
    = family("llama_prompt_tokens_total", "Tokens of their prompts.").Add({});
  prometheus::Counter& cached_
    = family("llama_cached_tokens_total", "Tokens of these from the cache.").Add({});
  prometheus::Counter& handed_
    = family("llama_handed_tokens_total", "Tokens of these whose KV came from a prefill instance.")
        .Add({});
  prometheus::Counter& generated_
    = family("llama_generated_tokens_total", "Tokens of the completions.").Add({});
  prometheus::Counter& load_wait_
    = family("llama_load_wait_seconds_total",
             "Time in which rank 0's layers waited for pages from L2.")
        .Add({});
  prometheus::Histogram& first_token_
    = prometheus::BuildHistogram()
        .Name("llama_first_token_seconds")
        .Help("From a request to its first token.")
        .Register(registry_)
        .Add({}, prometheus::Histogram::BucketBoundaries{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                         0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30});
};

// -- server -------------------------------------------------------------------------

class server_impl final : public completions_server {
public:
  explicit server_impl(server_options options) : options_(std::move(options)) {}

  result<void> listen() {
    const auto where = hicache::parse_http_address(options_.listen);
    if (!where)
      return fail(ec::invalid_argument, "--listen: " + where.error().detail);
    set_routes();
    http_.set_payload_max_length(body_bytes_max);
    const auto bound = http_.start(*where);
    if (!bound)
      return fail(ec::invalid_argument, "--listen: " + bound.error().detail);
    address_ = to_string(*bound);
    return {};
  }

  void stop() override { is_stopping_ = true; }

  const std::string& address() const override { return address_; }

private:
  using output_queue_ptr = std::shared_ptr<output_queue>;

  void set_routes() {
    http_.Post("/v1/completions", [this](const httplib::Request& request,
                                         httplib::Response& answer) { complete(request, answer); });
    http_.Post("/v1/handoffs", [this](const httplib::Request& request, httplib::Response& answer) {
      hand_over(request, answer);
    });
    http_.Get("/v1/models", [this](const httplib::Request&, httplib::Response& answer) {
      answer.set_content(to_text({{"object", "list"},
                                  {"data", json::array({{{"id", options_.model},
                                                         {"object", "model"},
                                                         {"max_model_len", options_.positions},
                                                         {"role", options_.role}}})}}),
                         "application/json");
    });
    http_.Get("/health", [](const httplib::Request&, httplib::Response&) {});
    http_.Get("/metrics", [this](const httplib::Request&, httplib::Response& answer) {
      answer.set_content(prometheus::TextSerializer{}.Serialize(options_.registry->Collect()),
                         "text/plain; version=0.0.4; charset=utf-8");
    });
  }

  void complete(const httplib::Request& request, httplib::Response& answer) {
    auto wanted = parse_request(request.body, options_);
    if (!wanted)
      return answer_error(answer, 400, wanted.error().detail);
    wanted->completion.id = ++last_id_;
    const auto outputs = std::make_shared<output_queue>(is_stopping_);
    submit(*wanted, outputs);
    auto writer = answer_writer{options_, *wanted};
    if (wanted->streams)
      return stream(answer, *wanted, outputs, std::move(writer));
    for (;;) {
      const auto output = next(*wanted, outputs);
      writer.note(output);
      if (output.finish == finish_reason::failed)
        return answer_error(answer, 500, output.error);
      if (output.finish == finish_reason::aborted)
        return answer_error(answer, 503, "the server is stopping");
      if (output.finish != finish_reason::none)
        return answer.set_content(to_text(writer.whole(output.finish)), "application/json");
    }
  }

  void submit(const client_request& wanted, const output_queue_ptr& outputs) {
    auto sink
      = [this, outputs, since = steady::now(), is_first = true,
         prompt = wanted.completion.prompt.size()](const completion_output& output) mutable {
          if (!output.tokens.empty() && std::exchange(is_first, false))
            counts_.count_first_token(since);
          counts_.count(output, prompt);
          outputs->push(output);
        };
    caf::anon_send(
      options_.engine, atom::submit_v,
      std::make_shared<const submission>(submission{wanted.completion, std::move(sink)}));
  }

  void withdraw(completion_id id) { caf::anon_send(options_.engine, atom::withdraw_v, id); }

  /// The next part for a client. One that goes away ends its completion.
  completion_output next(const client_request& wanted, const output_queue_ptr& outputs) {
    auto output = outputs->pop();
    for (; output.attempt; output = outputs->pop())
      receive(wanted, output, outputs);
    if (output.finish == finish_reason::aborted)
      withdraw(wanted.completion.id);
    return output;
  }

  /// Sends each part as an event.
  void stream(httplib::Response& answer, const client_request& wanted,
              const output_queue_ptr& outputs, answer_writer writer) {
    auto send = [this, outputs, wanted,
                 writer = std::move(writer)](size_t, httplib::DataSink& sink) mutable {
      const auto output = next(wanted, outputs);
      writer.note(output);
      auto text = output.finish == finish_reason::failed
                    ? "data: " + to_text({{"error", {{"message", output.error}}}}) + "\n\n"
                    : writer.event(output);
      if (output.finish != finish_reason::none)
        text += (wanted.streams_usage ? writer.usage_event() : "") + "data: [DONE]\n\n";
      if (!outputs->is_wanted() || !sink.write(text.data(), text.size())) {
        withdraw(wanted.completion.id);
        return false;
      }
      if (output.finish != finish_reason::none)
        sink.done();
      return true;
    };
    answer.set_chunked_content_provider("text/event-stream", std::move(send));
  }

  /// Has a prefill instance compute the prompt, until the engine goes on with it.
  void receive(const client_request& wanted, const completion_output& asked,
               const output_queue_ptr& outputs) {
    const auto& completion = wanted.completion;
    const auto body
      = json{{"prompt", completion.prompt},      {"max_tokens", 1},
             {"priority", completion.priority},  {"cache_salt", completion.salt},
             {"receiver_ranks", options_.ranks}, {"receiver_pages", asked.known_pages}};
    hicache::ask_for_handoff(
      {completion.prefill[*asked.attempt], "/v1/handoffs", body.dump()},
      [&](std::string message) {
        caf::anon_send(options_.engine, atom::handoff_v,
                       handoff_event{completion.id, *asked.attempt, std::move(message)});
      },
      [&](std::chrono::milliseconds time) {
        return outputs->wait_for(time) || !outputs->is_wanted();
      });
  }

  /// Computes a prompt for a decode instance. The handoff ends when that closes the connection.
  void hand_over(const httplib::Request& request, httplib::Response& answer) {
    if (options_.role != "prefill")
      return answer_error(answer, 400, "this instance hands no KV over; expected --role prefill");
    auto wanted = parse_request(request.body, options_);
    if (!wanted)
      return answer_error(answer, 400, wanted.error().detail);
    const auto body = json::parse(request.body);
    auto complaint = std::string{};
    auto fields = json_fields{body, complaint};
    auto& completion = wanted->completion;
    completion.id = ++last_id_;
    completion.max_tokens = 1;
    completion.receiver_ranks = fields.required<uint32_t>("receiver_ranks", 1, INT32_MAX);
    completion.receiver_pages = fields.number<uint64_t>("receiver_pages", 0, INT32_MAX).value_or(0);
    if (!complaint.empty())
      return answer_error(answer, 400, complaint);
    const auto outputs = std::make_shared<output_queue>(is_stopping_);
    submit(*wanted, outputs);
    auto next = [outputs, until = std::optional<steady::time_point>{}](
                  size_t, httplib::DataSink& sink) mutable {
      auto line = std::string{};
      if (outputs->wait_for(hicache::handoff_beat)) {
        const auto output = outputs->pop();
        line = output.message;
        if (!output.tokens.empty())
          line = hicache::handoff_end(output.tokens.front());
        else if (output.finish != finish_reason::none && !until)
          line = hicache::handoff_failure(output.error);
        if (output.message.empty() && !until)
          until = steady::now() + hicache::handoff_patience;
      }
      line += '\n';
      return outputs->is_wanted() && sink.write(line.data(), line.size())
             && (!until || steady::now() < *until);
    };
    answer.set_chunked_content_provider("application/jsonl", std::move(next),
                                        [this, id = completion.id](bool) { withdraw(id); });
  }

  const server_options options_;
  served_counts counts_{*options_.registry};
  std::atomic<completion_id> last_id_ = 0;
  std::atomic<bool> is_stopping_ = false;
  std::string address_;
  // Last member: its threads use the others.
  hicache::http_listener http_{
    hicache::http_limits{client_time, body_bytes_max + (size_t{64} << 10), server_threads,
                         server_threads + waiting_connections}};
};

} // namespace

result<std::unique_ptr<completions_server>> completions_server::start(server_options options) {
  auto server = std::make_unique<server_impl>(std::move(options));
  HICACHE_TRY(server->listen());
  return server;
}

} // namespace llama
