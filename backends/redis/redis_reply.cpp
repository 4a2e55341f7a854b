#include "backends/redis/redis_reply.hpp"

#include "backends/redis/redis_object.hpp"
#include "base/check.hpp"
#include "base/numbers.hpp"

#include <hiredis/read.h>

#include <algorithm>
#include <array>
#include <utility>

namespace hicache {

struct redis_reply_reader::state {
  std::unique_ptr<redisReader, void (*)(redisReader*)> reader{nullptr, redisReaderFree};
  /// Of the call of next() that is running.
  const string_sink* sink = nullptr;
  size_t elements_left = 0;
};

namespace {

/// Where hiredis wants the value: the root, or an element of the array above it.
redis_reply* place_of(const redisReadTask* task) {
  if (task->parent == nullptr)
    return new redis_reply;
  auto& elements = static_cast<redis_reply*>(task->parent->obj)->elements;
  return &elements.at(static_cast<size_t>(task->idx));
}

template <class State>
void* make_string(const redisReadTask* task, char* text, size_t size) noexcept {
  auto* const reply = place_of(task);
  reply->type = task->type == REDIS_REPLY_ERROR    ? redis_reply::kind::error
                : task->type == REDIS_REPLY_STATUS ? redis_reply::kind::status
                                                   : redis_reply::kind::string;
  const auto* const sink = static_cast<State*>(task->privdata)->sink;
  if (task->parent == nullptr && reply->type == redis_reply::kind::string && *sink)
    (*sink)(std::as_bytes(std::span{text, size}));
  else
    reply->text.assign(text, size);
  return reply;
}

template <class State>
void* make_array(const redisReadTask* task, int size) noexcept {
  auto& left = static_cast<State*>(task->privdata)->elements_left;
  if (size < 0 || static_cast<size_t>(size) > left)
    return nullptr;
  left -= static_cast<size_t>(size);
  auto* const reply = place_of(task);
  reply->type = redis_reply::kind::array;
  reply->elements.resize(static_cast<size_t>(size));
  return reply;
}

void* make_integer(const redisReadTask* task, long long value) noexcept {
  auto* const reply = place_of(task);
  reply->type = redis_reply::kind::integer;
  reply->integer = value;
  return reply;
}

void* make_nil(const redisReadTask* task) noexcept {
  return place_of(task);
}

void free_reply(void* reply) noexcept {
  delete static_cast<redis_reply*>(reply);
}

template <class State>
auto functions = redisReplyObjectFunctions{make_string<State>, make_array<State>, make_integer,
                                           make_nil, free_reply};

} // namespace

redis_reply_reader::redis_reply_reader() : state_(std::make_unique<state>()) {
  state_->reader.reset(redisReaderCreateWithFunctions(&functions<state>));
  HICACHE_CHECK(state_->reader != nullptr);
  state_->reader->privdata = state_.get();
  // Values come one after the other: keep the buffer.
  state_->reader->maxbuf = 0;
}

redis_reply_reader::redis_reply_reader(redis_reply_reader&&) noexcept = default;

redis_reply_reader& redis_reply_reader::operator=(redis_reply_reader&&) noexcept = default;

redis_reply_reader::~redis_reply_reader() = default;

result<void> redis_reply_reader::feed(std::span<const std::byte> bytes) {
  auto& reader = *state_->reader;
  if (reader.len - reader.pos + bytes.size() > redis_reply_bytes_max)
    return fail(ec::malformed_message, "a reply longer than any value");
  if (!bytes.empty()
      && redisReaderFeed(&reader, reinterpret_cast<const char*>(bytes.data()), bytes.size())
           != REDIS_OK)
    return fail(ec::malformed_message, reader.errstr);
  return {};
}

result<std::optional<redis_reply>> redis_reply_reader::next(const string_sink& sink) {
  auto& reader = *state_->reader;
  // A reply may be complete only after several calls; its budget starts with its first byte.
  if (reader.ridx < 0)
    state_->elements_left = redis_reply_elements_max;
  state_->sink = &sink;
  void* found = nullptr;
  const auto status = redisReaderGetReply(&reader, &found);
  state_->sink = nullptr;
  const auto reply = std::unique_ptr<redis_reply>{static_cast<redis_reply*>(found)};
  if (status != REDIS_OK)
    return fail(ec::malformed_message, reader.errstr);
  return reply ? std::optional{std::move(*reply)} : std::nullopt;
}

std::optional<redis_redirect> parse_redirect(std::string_view text, const rpc::endpoint& asked) {
  auto redirect = redis_redirect{};
  if (text.starts_with("ASK "))
    redirect.is_ask = true;
  else if (!text.starts_with("MOVED "))
    return std::nullopt;
  text.remove_prefix(text.find(' ') + 1);
  const auto space = text.find(' ');
  if (space == std::string_view::npos)
    return std::nullopt;
  const auto slot = parse_number<uint16_t>(text.substr(0, space));
  const auto address = text.substr(space + 1);
  const auto colon = address.rfind(':');
  if (!slot || *slot >= redis_slots || colon == std::string_view::npos)
    return std::nullopt;
  const auto port = parse_number<uint16_t>(address.substr(colon + 1));
  const auto host = address.substr(0, colon);
  if (!port || *port == 0 || host == "?")
    return std::nullopt;
  redirect.slot = *slot;
  redirect.where = {host.empty() ? asked.host : std::string{host}, *port};
  return redirect;
}

result<std::vector<redis_slot_range>> parse_slots(const redis_reply& reply,
                                                  const rpc::endpoint& asked) {
  using kind = redis_reply::kind;
  const auto malformed = fail(ec::malformed_message, "no list of a cluster's slots");
  if (reply.type != kind::array)
    return malformed;
  auto ranges = std::vector<redis_slot_range>{};
  for (const auto& entry : reply.elements) {
    if (entry.type != kind::array || entry.elements.size() < 3)
      return malformed;
    const auto& first = entry.elements[0];
    const auto& last = entry.elements[1];
    const auto& node = entry.elements[2];
    constexpr auto slots = int64_t{redis_slots};
    if (first.type != kind::integer || last.type != kind::integer || first.integer < 0
        || last.integer < first.integer || last.integer >= slots || node.type != kind::array
        || node.elements.size() < 2)
      return malformed;
    const auto& host = node.elements[0];
    const auto& port = node.elements[1];
    if ((host.type != kind::string && host.type != kind::nil) || port.type != kind::integer
        || port.integer <= 0 || port.integer > UINT16_MAX)
      return malformed;
    // The node does not know the address of this one yet.
    if (host.text == "?")
      continue;
    ranges.push_back(
      {static_cast<uint16_t>(first.integer),
       static_cast<uint16_t>(last.integer),
       {host.text.empty() ? asked.host : host.text, static_cast<uint16_t>(port.integer)}});
  }
  return ranges;
}

bool is_passing(const redis_reply& reply) noexcept {
  return reply.is_error() && reply.text.starts_with("TRYAGAIN ");
}

error error_of(const redis_reply& reply, const std::string& server) {
  const auto is = [&](std::string_view code) { return reply.text.starts_with(code); };
  constexpr auto starting
    = std::array<std::string_view, 3>{"LOADING ", "CLUSTERDOWN ", "MASTERDOWN "};
  const auto code = is("OOM ")                          ? ec::store_full
                    : std::ranges::any_of(starting, is) ? ec::peer_unreachable
                                                        : ec::io_failure;
  return {code, "redis at " + server + ": " + reply.text};
}

} // namespace hicache
