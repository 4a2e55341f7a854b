#pragma once

#include "runtime/admin_server.hpp"
#include "runtime/http_address.hpp"
#include "tests/runtime/support.hpp"

#include <nlohmann/json.hpp>

#include <arpa/inet.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hicache::test {

/// Stands in for an instance: remembers what it was asked, and answers as told. Any thread.
class fake_storage_admin final : public storage_admin {
public:
  storage_attachment show() override {
    const auto guard = std::lock_guard{mutex_};
    return attached_;
  }

  std::optional<storage_status> status() override {
    const auto guard = std::lock_guard{mutex_};
    return status_;
  }

  std::vector<tier_health> tiers() override {
    const auto guard = std::lock_guard{mutex_};
    return tiers_;
  }

  void set_tiers(std::vector<tier_health> tiers) {
    const auto guard = std::lock_guard{mutex_};
    tiers_ = std::move(tiers);
  }

  /// How the store is from now on.
  void set_status(storage_status status) {
    const auto guard = std::lock_guard{mutex_};
    status_ = std::move(status);
  }

  result<void> attach(const storage_attachment& wanted,
                      std::chrono::nanoseconds deadline) override {
    return change(wanted, deadline);
  }

  result<void> detach(std::chrono::nanoseconds deadline) override { return change({}, deadline); }

  /// What is attached from now on.
  void set(storage_attachment attached) {
    const auto guard = std::lock_guard{mutex_};
    attached_ = std::move(attached);
  }

  /// Changes fail from now on.
  void fail_with(error why) {
    const auto guard = std::lock_guard{mutex_};
    failure_ = std::move(why);
  }

  /// Changes throw from now on.
  void throw_from_now_on() {
    const auto guard = std::lock_guard{mutex_};
    throws_ = true;
  }

  /// The next changes take until let_go().
  void hold() {
    const auto guard = std::lock_guard{mutex_};
    held_ = true;
  }

  void let_go() {
    const auto guard = std::lock_guard{mutex_};
    held_ = false;
    changed_.notify_all();
  }

  /// Blocks until a number of changes came in.
  void wait_for_changes(size_t count) {
    auto lock = std::unique_lock{mutex_};
    changed_.wait(lock, [&] { return changes_.size() >= count; });
  }

  /// All changes so far, each with its deadline. Detaching is an attachment without a backend.
  std::vector<std::pair<storage_attachment, std::chrono::nanoseconds>> changes() const {
    const auto guard = std::lock_guard{mutex_};
    return changes_;
  }

private:
  result<void> change(const storage_attachment& wanted, std::chrono::nanoseconds deadline) {
    auto lock = std::unique_lock{mutex_};
    changes_.emplace_back(wanted, deadline);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_; });
    if (throws_)
      throw std::runtime_error{"thrown on purpose"};
    if (failure_)
      return tl::unexpected{*failure_};
    attached_ = wanted;
    return {};
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  storage_attachment attached_;
  std::optional<storage_status> status_;
  std::vector<tier_health> tiers_;
  std::optional<error> failure_;
  bool throws_ = false;
  bool held_ = false;
  std::vector<std::pair<storage_attachment, std::chrono::nanoseconds>> changes_;
};

/// An admin server of a fake instance.
class admin_test : public folder_test {
protected:
  static constexpr auto token = "0123456789abcdef";

  /// Listens on TCP, at a port of the kernel's choice, for who has the token.
  void start(std::chrono::nanoseconds request_time = limits::admin_request_time) {
    token_file_ = write_private("token", std::string{"  "} + token + " \r\nsecond line\n");
    start({"127.0.0.1:0", token_file_, request_time});
  }

  /// Listens on a Unix socket, without a token.
  void start_on_unix_socket() { start({"unix:" + (folder_ / "admin").string(), ""}); }

  /// Writes a file that its owner alone may read.
  std::string write_private(const std::string& name, const std::string& content) {
    using std::filesystem::perms;
    const auto path = write(name, content);
    std::filesystem::permissions(path, perms::owner_read | perms::owner_write);
    return path;
  }

  void start(const admin_options& options) {
    auto started = admin_server::start(options, storage_);
    ASSERT_TRUE(started) << started.error().detail;
    server_ = std::move(*started);
  }

  fake_storage_admin storage_;
  std::string token_file_;
  std::unique_ptr<admin_server> server_;
};

/// What an admin server is asked for.
constexpr auto admin_path = "/hicache/storage-backend";

/// A client that sends bytes, well formed or not.
class raw_client {
public:
  explicit raw_client(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    auto where = sockaddr_in{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto patience = timeval{10, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  }

  raw_client(const raw_client&) = delete;
  raw_client& operator=(const raw_client&) = delete;

  ~raw_client() { ::close(socket_); }

  /// @returns false if the server does not listen any more.
  bool send(const std::string& bytes) {
    return ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL)
           == static_cast<ssize_t>(bytes.size());
  }

  void finish_sending() { ::shutdown(socket_, SHUT_WR); }

  /// True if there is something to read, or the server closed the connection.
  bool hears_within(int time_ms) {
    auto asked = pollfd{socket_, POLLIN, 0};
    return ::poll(&asked, 1, time_ms) > 0;
  }

  /// Everything until the server closes.
  std::string receive_all() {
    auto all = std::string{};
    auto part = std::array<char, 4096>{};
    for (;;) {
      const auto got = ::recv(socket_, part.data(), part.size(), 0);
      if (got <= 0)
        return all;
      all.append(part.data(), static_cast<size_t>(got));
    }
  }

private:
  const int socket_;
};

/// Asks the server as a client does.
class admin_client_test : public admin_test {
protected:
  uint16_t port() const { return rpc::parse_endpoint(server_->address())->port; }

  /// The header that every request has to carry.
  static httplib::Headers authorization() {
    return {{"Authorization", "Bearer " + std::string{token}}};
  }

  /// One request. Status 0: no answer.
  std::pair<int, nlohmann::json> ask(const std::string& method, const std::string& body = {},
                                     const httplib::Headers& headers = authorization(),
                                     const std::string& where = admin_path) const {
    auto client = httplib::Client{"127.0.0.1", port()};
    auto request = httplib::Request{};
    request.method = method;
    request.path = where;
    request.body = body;
    request.headers = headers;
    const auto answer = client.send(request);
    if (!answer)
      return {0, {}};
    last_headers_ = answer->headers;
    return {answer->status, nlohmann::json::parse(answer->body, nullptr, false)};
  }

  std::string refusal_of(const std::string& body) const {
    const auto [status, answer] = ask("PUT", body);
    EXPECT_EQ(status, 400) << body;
    EXPECT_EQ(answer["success"], false);
    EXPECT_EQ(answer["code"], "invalid_argument");
    return answer["message"];
  }

  void expect_alive() const { EXPECT_EQ(ask("GET", {}, {}, "/healthz").first, 200); }

  std::string header(const std::string& name) const {
    const auto found = last_headers_.find(name);
    return found == last_headers_.end() ? "" : found->second;
  }

  mutable httplib::Headers last_headers_;
};

} // namespace hicache::test
