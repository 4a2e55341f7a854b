#pragma once

#include "launch/admin_server.hpp"
#include "tests/launch/support.hpp"

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

  void set(storage_status status) {
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

} // namespace hicache::test
