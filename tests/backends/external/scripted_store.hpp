#pragma once

#include "backends/external/store_process.hpp"
#include "base/unique_fd.hpp"
#include "messages/wire.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace hicache::test {

/// A double of a store's process, for what no real one does: it sends what the test says. Accepts
/// one connection and ignores what it receives.
class scripted_store {
public:
  /// What a connection is sent for its n-th message, from 0, if anything; an empty one hangs up.
  using script = std::function<std::vector<std::byte>(size_t)>;

  explicit scripted_store(script answer) : answer_(std::move(answer)) {
    const auto address = unix_address_of(path());
    EXPECT_TRUE(address);
    EXPECT_EQ(::bind(listener_.get(), address->get(), address->length), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    thread_ = std::thread{[this] { serve(); }};
  }

  ~scripted_store() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  std::string path() const { return folder_.path() + "/socket"; }

  /// A message as it is sent.
  template <class T>
  static std::vector<std::byte> message(const T& value) {
    const auto words = wire::codec<T>::encode(value);
    const auto body = std::as_bytes(std::span{words});
    auto bytes = head(static_cast<uint32_t>(body.size()));
    bytes.insert(bytes.end(), body.begin(), body.end());
    return bytes;
  }

  /// The beginning of a message of so many bytes.
  static std::vector<std::byte> head(uint32_t length) {
    const auto bytes = std::as_bytes(std::span{&length, 1});
    return {bytes.begin(), bytes.end()};
  }

private:
  void serve() {
    const auto client = unique_fd{::accept(listener_.get(), nullptr, nullptr)};
    for (auto number = size_t{0}; client; ++number) {
      auto length = uint32_t{0};
      if (::recv(client.get(), &length, sizeof(length), MSG_WAITALL) != sizeof(length))
        return;
      auto body = std::vector<std::byte>(length);
      ::recv(client.get(), body.data(), body.size(), MSG_WAITALL);
      const auto answer = answer_(number);
      if (answer.empty())
        return;
      ::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  const script answer_;
  temporary_folder folder_;
  unique_fd listener_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::thread thread_;
};

} // namespace hicache::test
