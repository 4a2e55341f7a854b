#include "backends/redis/redis_backend.hpp"

#include "backends/redis/object_reader.hpp"
#include "backends/redis/redis_object.hpp"
#include "backends/written_objects.hpp"
#include "base/keys_of.hpp"
#include "base/page_checksum.hpp"
#include "base/try.hpp"
#include "base/units.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <utility>

namespace hicache {

namespace {

/// How much longer than the first value of an object the others live, so that the first one is
/// never without them.
constexpr auto ttl_slack = std::chrono::seconds{1};

/// Names that a server looks at for one part of a list.
constexpr auto scanned_keys = std::string_view{"1000"};

/// Replies to a request with one command.
const redis_reply* only_reply(const redis_request& request) {
  return request.replies ? &request.replies->front() : nullptr;
}

/// Why a request failed; nothing if no reply is an error.
std::optional<error> failure_of(const redis_request& request, const std::string& server) {
  if (!request.replies)
    return request.replies.error();
  const auto refused = std::ranges::find_if(*request.replies, &redis_reply::is_error);
  return refused == request.replies->end() ? std::nullopt
                                           : std::optional{error_of(*refused, server)};
}

class redis_backend final : public blocking_store {
public:
  redis_backend(redis_options options, std::unique_ptr<redis_client> client,
                const clock_source& clock)
    : options_(std::move(options)), client_(std::move(client)), clock_(clock),
      own_(options_.max_bytes) {
    for (const auto& where : options_.servers.servers)
      server_ += (server_.empty() ? "" : ",") + to_string(where);
  }

  std::string name() const override { return "redis"; }

  store_capabilities capabilities() const override {
    return {.survives_restarts = true,
            .is_shared = true,
            .tells_occupancy = own_.is_bounded(),
            .keeps_namespaces = !options_.fingerprint,
            .preferred_batch = 32};
  }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
    auto answers = std::vector<bool>(keys.size(), false);
    if (clock_.now() >= deadline)
      return answers;
    const auto requests = ask_each("EXISTS", keys, deadline);
    for (auto i = size_t{0}; i < keys.size(); ++i) {
      const auto* const reply = only_reply(requests[i]);
      answers[i] = reply != nullptr && reply->is_integer(1);
    }
    return answers;
  }

  bool tells_lengths() const override { return true; }

  std::vector<result<uint64_t>> read(std::span<const page_read> pages, part_lengths rule,
                                     time_point deadline) override {
    auto answers = std::vector<result<uint64_t>>(pages.size(), fail(ec::deadline_exceeded));
    if (clock_.now() < deadline)
      read_now(pages, rule, answers, deadline);
    own_.count_reads(pages, answers);
    return answers;
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
    return own_.count_writes(pages.size(), clock_.now() >= deadline,
                             [&](auto& answers) { write(pages, answers, deadline); });
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
    if (clock_.now() >= deadline)
      return std::vector<result<void>>(keys.size(), fail(ec::deadline_exceeded));
    return remove_all(keys, deadline);
  }

  bool watch_evictions(storage_backend::eviction_watch watch, bool) override {
    return own_.watch_evictions(std::move(watch));
  }

  /// The next part begins at "NODE:CURSOR".
  result<object_list> list(const std::string& from, time_point deadline) override {
    const auto nodes = client_->nodes();
    auto node = size_t{0};
    auto cursor = std::string{"0"};
    if (const auto colon = from.find(':'); colon != std::string::npos) {
      std::from_chars(from.data(), from.data() + colon, node);
      cursor = from.substr(colon + 1);
    }
    if (node >= nodes.size())
      return object_list{}; // A cluster with fewer nodes than before.
    auto command = redis_commands{};
    command.add({"SCAN", cursor, "MATCH", options_.key_prefix + "{*}", "COUNT", scanned_keys});
    const auto reply = HICACHE_TRY(client_->ask_node(nodes[node], command, deadline));
    if (reply.elements.size() != 2)
      return fail(ec::io_failure, to_string(nodes[node]) + " answered SCAN with no list");
    auto keys = std::vector<page_key>{};
    for (const auto& name : reply.elements[1].elements)
      if (const auto key = parse_redis_name(options_.key_prefix, name.text))
        keys.push_back(*key);
    auto listed = object_list{};
    for (auto i = size_t{0}; const auto& head : heads_of(keys, deadline))
      if (const auto& key = keys[i++]; head)
        listed.objects.push_back({key, {}, head->page.length, head->page.fingerprint});
    if (const auto& next = reply.elements[0].text; next != "0")
      listed.next = std::to_string(node) + ":" + next;
    else if (node + 1 < nodes.size())
      listed.next = std::to_string(node + 1) + ":0";
    return listed;
  }

  backend_health health() override {
    const auto answers = client_->ping(clock_.now() + options_.servers.timeout);
    auto health = backend_health{};
    health.ok = answers.has_value();
    health.detail = answers ? server_ : answers.error().detail;
    own_.tell(health);
    return health;
  }

private:
  redis_request request_for(const page_key& key) const {
    auto request = redis_request{};
    request.slot = redis_slot(to_string(key));
    return request;
  }

  /// One command with the name of the first value, for each key.
  std::vector<redis_request> ask_each(std::string_view command, std::span<const page_key> keys,
                                      time_point deadline) {
    auto requests = std::vector<redis_request>{};
    for (const auto& key : keys) {
      auto& request = requests.emplace_back(request_for(key));
      request.commands.add({command, redis_name(options_.key_prefix, key)});
    }
    client_->run(requests, deadline);
    return requests;
  }

  redis_request unlink(const page_key& key, uint32_t chunks) const {
    auto words = std::vector<std::string>{"UNLINK"};
    for (auto chunk = uint32_t{0}; chunk < chunks; ++chunk)
      words.push_back(redis_name(options_.key_prefix, key, chunk));
    auto request = request_for(key);
    request.commands.add(std::vector<std::string_view>{words.begin(), words.end()});
    return request;
  }

  // -- get --------------------------------------------------------------------

  void read_now(std::span<const page_read> pages, part_lengths rule,
                std::vector<result<uint64_t>>& answers, time_point deadline) {
    auto objects = std::vector<object_reader>{};
    objects.reserve(pages.size());
    for (const auto& page : pages)
      objects.emplace_back(page, options_.fingerprint, options_.chunk_bytes, rule);
    // Twice: the head of an object may say that it lies in chunks of another size.
    auto left = std::vector<size_t>(pages.size());
    std::iota(left.begin(), left.end(), size_t{0});
    for (auto pass = 0; pass < 2 && !left.empty(); ++pass) {
      auto requests = std::vector<redis_request>{};
      for (const auto i : left)
        requests.push_back(read_request(pages[i].key, objects[i]));
      client_->run(requests, deadline);
      auto next = std::vector<size_t>{};
      for (auto k = size_t{0}; k < left.size(); ++k) {
        const auto i = left[k];
        const auto failed = failure_of(requests[k], server_);
        if (failed)
          answers[i] = tl::unexpected{*failed};
        else if (objects[i].needs_another_pass() && pass == 0)
          next.push_back(i);
        else
          answers[i] = objects[i].outcome();
      }
      left = std::move(next);
    }
    if (!options_.keeps_broken)
      remove_broken(pages, objects, answers, deadline);
  }

  redis_request read_request(const page_key& key, object_reader& object) const {
    auto request = request_for(key);
    object.begin_pass();
    const auto chunks = object.chunks();
    for (auto chunk = uint32_t{0}; chunk < chunks; ++chunk)
      request.commands.add({"GET", redis_name(options_.key_prefix, key, chunk)});
    request.reply_bytes = object.expected_bytes();
    request.on_value = [&object](size_t chunk, std::span<const std::byte> value) {
      object.take(static_cast<uint32_t>(chunk), value);
    };
    return request;
  }

  /// Removes objects that did not verify, or lack some of their values.
  void remove_broken(std::span<const page_read> pages, const std::vector<object_reader>& objects,
                     std::span<const result<uint64_t>> answers, time_point deadline) {
    auto requests = std::vector<redis_request>{};
    for (auto i = size_t{0}; i < pages.size(); ++i) {
      const auto code = answers[i] ? ec::none : answers[i].error().code;
      if (code != ec::corrupt_page && (code != ec::not_found || !objects[i].has_head()))
        continue;
      requests.push_back(unlink(pages[i].key, objects[i].chunks()));
      own_.remove(pages[i].key);
    }
    client_->run(requests, deadline);
  }

  // -- set --------------------------------------------------------------------

  void write(std::span<const page_write> pages, std::vector<result<void>>& answers,
             time_point deadline) {
    const auto keys = keys_of(pages);
    // TOUCH, so that the server's own eviction sees a use.
    const auto known = ask_each("TOUCH", keys, deadline);
    auto requests = std::vector<redis_request>{};
    auto written = std::vector<size_t>{};
    auto evicted = std::vector<page_key>{};
    for (auto i = size_t{0}; i < pages.size(); ++i) {
      const auto* const reply = only_reply(known[i]);
      if (const auto failed = failure_of(known[i], server_)) {
        answers[i] = tl::unexpected{*failed};
      } else if (reply->is_integer(1)) {
        answers[i] = {};
        own_.use(keys[i]);
      } else if (auto has_room = make_room(pages[i], requests, evicted); !has_room) {
        answers[i] = has_room;
      } else {
        written.push_back(i);
      }
    }
    const auto first = requests.size();
    for (const auto i : written)
      requests.push_back(write_request(pages[i]));
    client_->run(requests, deadline);
    own_.tell_evicted(evicted);
    auto undone = std::vector<redis_request>{};
    for (auto k = size_t{0}; k < written.size(); ++k) {
      const auto i = written[k];
      const auto failed = failure_of(requests[first + k], server_);
      answers[i] = failed ? result<void>{tl::unexpected{*failed}} : result<void>{};
      if (!own_.end_write(keys[i], answers[i].has_value()))
        undone.push_back(unlink(keys[i], chunks_of(total_bytes(pages[i].parts))));
    }
    client_->run(undone, deadline);
  }

  uint32_t chunks_of(uint64_t length) const {
    return static_cast<uint32_t>(redis_chunks(length, options_.chunk_bytes));
  }

  /// Counts the page, and adds requests that remove what is evicted for it.
  result<void> make_room(const page_write& page, std::vector<redis_request>& requests,
                         std::vector<page_key>& evicted) {
    const auto [has_room, removed]
      = own_.begin_write(page, total_bytes(page.parts) + redis_head_bytes);
    for (const auto& gone : removed) {
      requests.push_back(unlink(gone.key, chunks_of(gone.bytes - redis_head_bytes)));
      evicted.push_back(gone.key);
    }
    return has_room;
  }

  /// SET of all values: of several at once, so that others see the object whole or not at all.
  redis_request write_request(const page_write& page) const {
    auto request = request_for(page.key);
    const auto length = total_bytes(page.parts);
    const auto fingerprint
      = page.fingerprint != 0 ? page.fingerprint : options_.fingerprint.value_or(0);
    const auto head = redis_head{{.fingerprint = fingerprint,
                                  .key = page.key,
                                  .length = length,
                                  .checksum = page_checksum(page.parts)},
                                 static_cast<uint32_t>(options_.chunk_bytes),
                                 chunks_of(length)};
    auto encoded = std::array<std::byte, redis_head_bytes>{};
    encode_redis_head(head, encoded);
    if (head.chunks == 1) {
      request.commands.add_set(redis_name(options_.key_prefix, page.key), encoded, page.parts,
                               options_.ttl);
      return request;
    }
    request.commands.add({"MULTI"});
    const auto others = options_.ttl.count() > 0 ? options_.ttl + ttl_slack : options_.ttl;
    for (auto chunk = uint32_t{0}; chunk < head.chunks; ++chunk) {
      const auto name = redis_name(options_.key_prefix, page.key, chunk);
      const auto payload = part_of<const std::byte>(page.parts, uint64_t{chunk} * head.chunk_bytes,
                                                    redis_chunk_length(head, chunk));
      if (chunk == 0)
        request.commands.add_set(name, encoded, payload, options_.ttl);
      else
        request.commands.add_set(name, {}, payload, others);
    }
    request.commands.add({"EXEC"});
    return request;
  }

  // -- heads ------------------------------------------------------------------

  /// The heads of objects; why there is none.
  std::vector<result<redis_head>> heads_of(std::span<const page_key> keys, time_point deadline) {
    auto requests = std::vector<redis_request>{};
    for (const auto& key : keys) {
      auto& request = requests.emplace_back(request_for(key));
      request.commands.add({"GETRANGE", redis_name(options_.key_prefix, key), "0",
                            std::to_string(redis_head_bytes - 1)});
    }
    client_->run(requests, deadline);
    auto heads = std::vector<result<redis_head>>{};
    for (auto i = size_t{0}; i < keys.size(); ++i) {
      const auto* const reply = only_reply(requests[i]);
      heads.push_back(reply == nullptr ? tl::unexpected{requests[i].replies.error()}
                                       : decode_redis_head(std::as_bytes(std::span{reply->text}),
                                                           keys[i], options_.fingerprint));
    }
    return heads;
  }

  // -- remove -----------------------------------------------------------------

  std::vector<result<void>> remove_all(std::span<const page_key> keys, time_point deadline) {
    auto requests = std::vector<redis_request>{};
    for (auto i = size_t{0}; const auto& head : heads_of(keys, deadline))
      requests.push_back(unlink(keys[i++], head ? std::min(head->chunks, unlinked_max) : 1));
    client_->run(requests, deadline);
    auto answers = std::vector<result<void>>(keys.size());
    for (auto i = size_t{0}; i < keys.size(); ++i) {
      if (const auto failed = failure_of(requests[i], server_)) {
        answers[i] = tl::unexpected{*failed};
        continue;
      }
      own_.remove(keys[i]);
    }
    return answers;
  }

  /// Values that one UNLINK names: 256 GiB in chunks of the default size. A head is untrusted.
  static constexpr auto unlinked_max = uint32_t{65536};

  const redis_options options_;
  const std::unique_ptr<redis_client> client_;
  const clock_source& clock_;
  /// For messages.
  std::string server_;
  written_objects own_;
};

result<void> check(const redis_options& options) {
  const auto& servers = options.servers;
  if (servers.servers.empty())
    return fail(ec::invalid_argument, "the redis backend needs servers; expected HOST:PORT");
  if (!servers.is_cluster && servers.servers.size() > 1)
    return fail(ec::invalid_argument, "the redis backend got "
                                        + std::to_string(servers.servers.size())
                                        + " servers; expected one, or \"redis_cluster\": true");
  const auto is_allowed = [](char c) { return c > ' ' && c <= '~' && c != '{' && c != '}'; };
  if (options.key_prefix.size() > 128 || !std::ranges::all_of(options.key_prefix, is_allowed))
    return fail(ec::invalid_argument,
                "key_prefix '" + options.key_prefix
                  + "': expected at most 128 printable characters without spaces and braces");
  if (options.chunk_bytes < redis_chunk_min || options.chunk_bytes > redis_chunk_max)
    return fail(ec::invalid_argument, "chunk_bytes is " + format_bytes(options.chunk_bytes)
                                        + "; expected " + format_bytes(redis_chunk_min) + " to "
                                        + format_bytes(redis_chunk_max));
  if (options.ttl.count() < 0)
    return fail(ec::invalid_argument, "ttl is negative; expected a time, or 0 for none");
  if (servers.connect_timeout.count() <= 0 || servers.timeout.count() <= 0)
    return fail(ec::invalid_argument, "connect_timeout and timeout: expected times above 0");
  if (!servers.access.password_file.empty() && !servers.access.password_variable.empty())
    return fail(ec::invalid_argument,
                "password_file and password_variable exclude each other; expected one of them");
  if (!servers.access.user.empty() && servers.access.password_file.empty()
      && servers.access.password_variable.empty())
    return fail(ec::invalid_argument,
                "user '" + servers.access.user
                  + "' has no password; expected password_file or password_variable");
  return {};
}

} // namespace

result<std::unique_ptr<blocking_store>> make_redis_backend(redis_options options,
                                                           const clock_source& clock) {
  HICACHE_TRY(check(options));
  auto client = HICACHE_TRY(redis_client::open(options.servers, clock));
  return std::make_unique<redis_backend>(std::move(options), std::move(client), clock);
}

} // namespace hicache
