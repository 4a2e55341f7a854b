#include "examples/llama/completions_server.hpp"

#include "base/about.hpp"
#include "base/json_fields.hpp"
#include "base/names.hpp"
#include "base/try.hpp"
#include "hicache/handoff.hpp"
#include "runtime/completions_api.hpp"
#include "runtime/http_listener.hpp"

#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <optional>
#include <utility>

namespace llama {

using namespace hicache;

namespace {

using nlohmann::json;
using request = httplib::Request;
using response = httplib::Response;
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

/// Where the thread of a client gets the parts of its completion from the engine.
class client_mailbox {
public:
  client_mailbox(caf::actor_system& system, const std::function<bool()>& is_stopping)
    : is_stopping_(is_stopping), self_(system) {}

  caf::actor address() const { return caf::actor_cast<caf::actor>(self_); }

  /// @returns whether there is a part
  bool wait_for(std::chrono::milliseconds time) {
    if (!next_)
      self_->receive([this](const completion_output& part) { next_ = part; },
                     caf::after(time) >> [] {});
    return next_.has_value();
  }

  /// The next part; an aborted one if the client has gone.
  completion_output pop() {
    const auto since = steady::now();
    // A stopping engine may wait for a rank that has died.
    while (is_wanted() && !(is_stopping_() && steady::now() - since > stop_patience))
      if (wait_for(client_pause))
        return *std::exchange(next_, std::nullopt);
    return {.finish = finish_reason::aborted};
  }

  /// Whether the client is still there. A server that stops shuts its connections down itself.
  bool is_wanted() const { return is_stopping_() || !has_hung_up(client_); }

private:
  const std::function<bool()>& is_stopping_;
  const socket_t client_ = http_listener::client();
  caf::scoped_actor self_;
  std::optional<completion_output> next_;
};

/// What a client asked for.
struct client_request {
  completion_request completion;
  bool streams = false;
  bool streams_usage = false;
};

/// Tokens below 256 are bytes. JSON has no others but UTF-8, so those that are none are replaced.
std::string text_of(const std::vector<token_id>& tokens) {
  auto text = std::string{};
  for (const auto token : tokens)
    if (token < 256)
      text += static_cast<char>(token);
    else
      text += "<" + std::to_string(token) + ">";
  return text;
}

// -- parsing ------------------------------------------------------------------------

std::vector<token_id> read_prompt(json_fields& fields, const server_options& options) {
  auto tokens = prompt_tokens(fields.field("prompt"));
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
  if (options.role != "decode")
    return {};
  const auto named = fields.field("prefill");
  if (named.is_null())
    return options.prefill;
  if (named.is_array() && named.size() <= prefill_instances_max
      && std::all_of(named.begin(), named.end(), [](const json& x) { return x.is_string(); }))
    return named.get<std::vector<std::string>>();
  fields.complain("prefill", "expected a list of at most " + std::to_string(prefill_instances_max)
                               + " HOST:PORT");
  return {};
}

result<client_request> parse_request(const std::string& text, const server_options& options) {
  const auto body = json::parse(text, nullptr, false);
  if (!body.is_object())
    return fail(ec::invalid_argument, "expected a JSON object");
  auto fields = json_fields{body};
  refuse_unsupported(fields);
  auto wanted = client_request{};
  auto& completion = wanted.completion;
  completion.prompt = read_prompt(fields, options);
  completion.max_tokens = fields.number<uint64_t>("max_tokens", 1, INT32_MAX, 16);
  completion.priority = fields.number<int32_t>("priority", INT32_MIN, INT32_MAX, 0);
  completion.ignores_end = fields.flag("ignore_eos");
  completion.session = fields.number<session_id>("session", 1, INT64_MAX, 0);
  completion.ends_session = fields.flag("ends_session");
  completion.salt = fields.text("cache_salt");
  completion.prefill = read_prefill(fields, options);
  completion.receiver_ranks = fields.number<uint32_t>("receiver_ranks", 1, INT32_MAX, 0);
  completion.receiver_pages = fields.number<uint64_t>("receiver_pages", 0, INT32_MAX, 0);
  wanted.streams = fields.flag("stream");
  const auto stream_options = fields.field("stream_options");
  if (stream_options.is_object())
    wanted.streams_usage = json_fields{stream_options, fields}.flag("include_usage");
  HICACHE_TRY(fields.finish());
  return wanted;
}

// -- answers ------------------------------------------------------------------------

/// Follows a completion from its first token to its end.
class answer_writer {
public:
  answer_writer(const server_options& options, const client_request& wanted)
    : frame_{{"id", "cmpl-" + std::to_string(wanted.completion.id)},
             {"object", "text_completion"},
             {"created", std::time(nullptr)},
             {"model", options.model}},
      prompt_tokens_(wanted.completion.prompt.size()) {}

  void note(const completion_output& output) {
    tokens_.insert(tokens_.end(), output.tokens.begin(), output.tokens.end());
    last_ = output;
  }

  /// What was noted last.
  json part() const { return answer(json::array({choice(last_.tokens)})); }

  /// What it used, after its last part.
  json usage() const { return with_usage(answer(json::array())); }

  /// The whole completion.
  json whole() const { return with_usage(answer(json::array({choice(tokens_)}))); }

private:
  json choice(const std::vector<token_id>& tokens) const {
    const auto why = last_.finish;
    return {
      {"index", 0},
      {"text", text_of(tokens)},
      {"token_ids", tokens},
      {"logprobs", nullptr},
      {"finish_reason", why == finish_reason::none ? json{} : json(name_of(finish_names, why))}};
  }

  json answer(json choices) const {
    auto whole = frame_;
    whole["choices"] = std::move(choices);
    return whole;
  }

  json with_usage(json answer) const {
    answer["usage"]
      = {{"prompt_tokens", prompt_tokens_},
         {"completion_tokens", tokens_.size()},
         {"total_tokens", prompt_tokens_ + tokens_.size()},
         {"prompt_tokens_details",
          {{"cached_tokens", last_.cached_tokens}, {"handed_tokens", last_.handed_tokens}}}};
    return answer;
  }

  const json frame_;
  const uint64_t prompt_tokens_;
  std::vector<token_id> tokens_;
  completion_output last_;
};

} // namespace

// -- server -------------------------------------------------------------------------

class completions_server {
public:
  explicit completions_server(server_options options) : options_(std::move(options)) {
    http_.Post("/v1/completions", [this](const request& asked, response& answer) {
      auto wanted = accept(asked, answer);
      if (!wanted)
        return;
      wanted->completion.receiver_ranks = 0; // Nobody receives its KV.
      if (wanted->streams)
        stream(*wanted, answer);
      else
        complete(*wanted, answer);
    });
    http_.Post("/v1/handoffs", [this](const request& asked, response& answer) {
      if (options_.role != "prefill")
        return answer_error(answer, 400, "this instance hands no KV over; expected --role prefill");
      auto wanted = accept(asked, answer);
      if (!wanted)
        return;
      if (wanted->completion.receiver_ranks == 0)
        return answer_error(answer, 400, "\"receiver_ranks\" is missing");
      wanted->completion.max_tokens = 1;
      hand_over(wanted->completion, answer);
    });
    http_.Get("/v1/models", [this](const request&, response& answer) {
      answer.set_content(json_text({{"object", "list"},
                                    {"data", json::array({{{"id", options_.model},
                                                           {"object", "model"},
                                                           {"max_model_len", options_.positions},
                                                           {"role", options_.role}}})}}),
                         "application/json");
    });
    http_.Get("/health", [](const request&, response&) {});
    http_.Get("/metrics", [this](const request&, response& answer) {
      answer.set_content(prometheus::TextSerializer{}.Serialize(options_.registry->Collect()),
                         "text/plain; version=0.0.4; charset=utf-8");
    });
    http_.set_payload_max_length(body_bytes_max);
  }

  ~completions_server() { is_ending_ = true; }

  result<void> listen() {
    const auto where = HICACHE_TRY(about_input("--listen", parse_http_address(options_.listen)));
    const auto bound = HICACHE_TRY(about_input("--listen", http_.start(where)));
    std::printf("listening on %s\n", to_string(bound).c_str());
    std::fflush(stdout);
    return {};
  }

private:
  /// Reads a request, or answers what is wrong with it.
  std::optional<client_request> accept(const request& asked, response& answer) {
    auto wanted = parse_request(asked.body, options_);
    if (!wanted) {
      answer_error(answer, 400, wanted.error().detail);
      return std::nullopt;
    }
    wanted->completion.id = ++last_id_;
    return std::move(*wanted);
  }

  /// Gives a completion to the engine.
  std::shared_ptr<client_mailbox> submit(const completion_request& wanted) {
    auto outputs = std::make_shared<client_mailbox>(options_.engine.home_system(), is_stopping_);
    caf::anon_send(options_.engine, atom::submit_v, wanted, outputs->address());
    return outputs;
  }

  void withdraw(completion_id id) { caf::anon_send(options_.engine, atom::withdraw_v, id); }

  /// The next part for a client. One that goes away ends its completion.
  completion_output next(const completion_request& wanted, client_mailbox& outputs) {
    auto output = outputs.pop();
    for (; output.attempt; output = outputs.pop())
      receive(wanted, output, outputs);
    if (output.finish == finish_reason::aborted)
      withdraw(wanted.id);
    return output;
  }

  /// Answers when the completion has ended.
  void complete(const client_request& wanted, response& answer) {
    const auto outputs = submit(wanted.completion);
    auto writer = answer_writer{options_, wanted};
    auto output = completion_output{};
    while (output.finish == finish_reason::none) {
      output = next(wanted.completion, *outputs);
      writer.note(output);
    }
    if (output.finish == finish_reason::failed)
      return answer_error(answer, 500, output.error);
    if (output.finish == finish_reason::aborted)
      return answer_error(answer, 503, "the server is stopping");
    answer.set_content(json_text(writer.whole()), "application/json");
  }

  /// Sends each part as an event.
  void stream(const client_request& wanted, response& answer) {
    auto send
      = [this, outputs = submit(wanted.completion), wanted,
         writer = answer_writer{options_, wanted}](size_t, httplib::DataSink& sink) mutable {
          const auto output = next(wanted.completion, *outputs);
          writer.note(output);
          auto text = json_event(output.finish == finish_reason::failed
                                   ? completion_error(500, output.error)
                                   : writer.part());
          if (output.finish != finish_reason::none)
            text += (wanted.streams_usage ? json_event(writer.usage()) : "") + "data: [DONE]\n\n";
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
  void receive(const completion_request& wanted, const completion_output& asked,
               client_mailbox& outputs) {
    const auto body
      = json{{"prompt", wanted.prompt},          {"max_tokens", 1},
             {"priority", wanted.priority},      {"cache_salt", wanted.salt},
             {"receiver_ranks", options_.ranks}, {"receiver_pages", asked.known_pages}};
    ask_for_handoff(
      {wanted.prefill[*asked.attempt], "/v1/handoffs", body.dump()},
      [&](std::string message) {
        caf::anon_send(options_.engine, atom::handoff_v,
                       handoff_event{wanted.id, *asked.attempt, std::move(message)});
      },
      [&](std::chrono::milliseconds time) {
        return outputs.wait_for(time) || !outputs.is_wanted();
      });
  }

  /// Computes a prompt for a decode instance. The handoff ends when that closes the connection.
  void hand_over(const completion_request& wanted, response& answer) {
    auto next = [outputs = submit(wanted), until = std::optional<steady::time_point>{}](
                  size_t, httplib::DataSink& sink) mutable {
      auto line = std::string{};
      if (outputs->wait_for(handoff_beat)) {
        const auto output = outputs->pop();
        line = output.message;
        if (!output.tokens.empty())
          line = handoff_end(output.tokens.front());
        else if (output.finish != finish_reason::none && !until)
          line = handoff_failure(output.error);
        if (output.message.empty() && !until)
          until = steady::now() + handoff_patience;
      }
      line += '\n';
      return outputs->is_wanted() && sink.write(line.data(), line.size())
             && (!until || steady::now() < *until);
    };
    answer.set_chunked_content_provider("application/jsonl", std::move(next),
                                        [this, id = wanted.id](bool) { withdraw(id); });
  }

  const server_options options_;
  std::atomic<completion_id> last_id_ = 0;
  std::atomic<bool> is_ending_ = false;
  const std::function<bool()> is_stopping_
    = [this] { return is_ending_ || options_.stop->raised(); };
  // Last member: its threads use the others.
  http_listener http_{http_limits{client_time, body_bytes_max + (size_t{64} << 10), server_threads,
                                  server_threads + waiting_connections}};
};

result<std::shared_ptr<completions_server>> start_server(server_options options) {
  auto server = std::make_shared<completions_server>(std::move(options));
  HICACHE_TRY(server->listen());
  return server;
}

} // namespace llama
