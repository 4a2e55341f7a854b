#include "backends/redis/redis_link.hpp"

#include "base/rest_of.hpp"
#include "base/try.hpp"

#include <poll.h>

#include <cstdlib>
#include <fstream>
#include <utility>

namespace hicache {

namespace {

/// Bytes received at once: several times what the kernel has ready on a fast network, and so few
/// that the processor's cache holds them until they are parsed.
constexpr auto received_bytes = size_t{128} << 10;

} // namespace

result<std::string> redis_access::password() const {
  if (!password_variable.empty()) {
    const auto* const value = std::getenv(password_variable.c_str());
    if (value == nullptr || *value == '\0')
      return fail(ec::invalid_argument, "password_variable: the environment has no variable '"
                                          + password_variable + "', or it is empty");
    return std::string{value};
  }
  if (password_file.empty())
    return std::string{};
  auto file = std::ifstream{password_file};
  auto line = std::string{};
  if (!std::getline(file, line) || line.empty())
    return fail(ec::invalid_argument, "password_file: '" + password_file
                                        + "' cannot be read, or its first line is empty");
  if (line.back() == '\r')
    line.pop_back();
  return line;
}

redis_link::redis_link(redis_stream stream, std::string server)
  : stream_(std::move(stream)), server_(std::move(server)), received_(received_bytes) {}

result<std::unique_ptr<redis_link>> redis_link::open(const rpc::endpoint& where,
                                                     const redis_access& access,
                                                     const redis_tls_context& tls,
                                                     time_point until) {
  auto stream = HICACHE_TRY(redis_stream::open(where, tls, access.tls, until));
  auto link = std::unique_ptr<redis_link>{new redis_link{std::move(stream), to_string(where)}};
  HICACHE_TRY(link->authenticate(access, until));
  return link;
}

result<void> redis_link::authenticate(const redis_access& access, time_point until) {
  const auto password = HICACHE_TRY(access.password());
  if (password.empty() && access.user.empty())
    return {};
  auto commands = redis_commands{};
  if (access.user.empty())
    commands.add({"AUTH", password});
  else
    commands.add({"AUTH", access.user, password});
  const auto replies = HICACHE_TRY(ask(commands, until));
  const auto& reply = replies.front();
  if (!reply.is_error())
    return {};
  if (reply.text.starts_with("LOADING "))
    return tl::unexpected{error_of(reply, server_)};
  // Only the code: servers that do not know AUTH repeat its arguments.
  return fail(ec::io_failure, "redis at " + server_ + " refuses the user or password ("
                                + reply.text.substr(0, reply.text.find(' ')) + ")");
}

result<std::vector<redis_reply>> redis_link::ask(const redis_commands& commands, time_point until) {
  auto replies = std::vector<redis_reply>{};
  queue(commands);
  while (true) {
    HICACHE_TRY(send());
    const auto received = HICACHE_TRY(receive());
    while (replies.size() < commands.count()) {
      auto reply = HICACHE_TRY(next({}));
      if (!reply)
        break;
      replies.push_back(std::move(*reply));
    }
    if (replies.size() == commands.count())
      return replies;
    const auto events = static_cast<short>(has_unsent() ? POLLIN | POLLOUT : POLLIN);
    if (!received && !wait_for_socket(socket(), events, until))
      return fail(ec::deadline_exceeded, "redis at " + server_ + " does not answer");
  }
}

result<void> redis_link::send() {
  while (has_unsent()) {
    const auto left = std::span{unsent_}.subspan(first_unsent_);
    const auto sent = HICACHE_TRY(stream_.send(left));
    if (sent == 0)
      return {};
    first_unsent_ = unsent_.size() - rest_of(left, sent).size();
  }
  unsent_.clear();
  first_unsent_ = 0;
  return {};
}

result<bool> redis_link::receive() {
  const auto count = HICACHE_TRY(stream_.receive(received_));
  HICACHE_TRY(replies_.feed(std::span{received_}.first(count)));
  return count > 0;
}

} // namespace hicache
