#pragma once

#include <gtest/gtest.h>

#include <httplib.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hicache::test {

/// A double of an S3 server, for what moto does not do: it answers each request as the test says.
class scripted_s3 {
public:
  using script = std::function<void(const httplib::Request&, httplib::Response&)>;

  /// Requests for the bucket itself succeed, others are answered by the script, side by side.
  explicit scripted_s3(script answer) : answer_(std::move(answer)) {
    const auto handler = [this](const httplib::Request& request, httplib::Response& response) {
      if (request.path == "/pages/")
        return;
      {
        const auto lock = std::scoped_lock{mutex_};
        seen_.push_back(request);
      }
      answer_(request, response);
    };
    server_.Get(".*", handler).Put(".*", handler).Post(".*", handler).Delete(".*", handler);
    // A thread for each connection that a client keeps.
    server_.new_task_queue = [] { return new httplib::ThreadPool{32}; };
    port_ = server_.bind_to_any_port("127.0.0.1");
    EXPECT_GT(port_, 0);
    thread_ = std::thread{[this] { server_.listen_after_bind(); }};
  }

  ~scripted_s3() {
    server_.stop();
    thread_.join();
  }

  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }

  /// The requests for objects so far.
  std::vector<httplib::Request> seen() {
    const auto lock = std::scoped_lock{mutex_};
    return seen_;
  }

private:
  const script answer_;
  httplib::Server server_;
  int port_ = 0;
  std::mutex mutex_; // Guards what follows.
  std::vector<httplib::Request> seen_;
  std::thread thread_;
};

} // namespace hicache::test
