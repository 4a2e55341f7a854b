#pragma once

#include "backends/redis/redis_backend.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/support/server_process.hpp"

#include <gtest/gtest.h>

#include <poll.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Real Redis servers for tests.
namespace hicache::test {

/// How long a test waits for something that must happen.
inline constexpr auto redis_patience = std::chrono::seconds{30};

inline time_point soon() {
  return monotonic_clock{}.now() + redis_patience;
}

inline bool has_redis_server() {
  return std::system("command -v redis-server >/dev/null 2>&1") == 0;
}

/// A redis-server in a process and a folder of its own; killed at the end, or with the test.
class redis_server {
public:
  struct settings {
    /// Further arguments of the program.
    std::vector<std::string> arguments = {};
    /// For the test's own connections, and which port is TLS's.
    redis_access access = {};
    bool is_cluster_node = false;
  };

  redis_server() : redis_server(settings{}) {}

  explicit redis_server(settings how) : how_(std::move(how)) {
    // Another process may take the port first.
    for (auto i = 0; i < 10 && !process_.is_running(); ++i) {
      port_ = free_port();
      bus_port_ = free_port();
      start();
    }
    EXPECT_TRUE(process_.is_running()) << "redis-server does not start";
  }

  redis_server(const redis_server&) = delete;
  redis_server& operator=(const redis_server&) = delete;

  rpc::endpoint where() const { return {"127.0.0.1", port_}; }

  uint16_t bus_port() const noexcept { return bus_port_; }

  const std::string& folder() const { return folder_.path(); }

  /// Returns when it serves, on the same port as before.
  void start() { process_.start(arguments(), "Ready to accept connections"); }

  void kill() { process_.kill(); }

  /// It hangs until resume().
  void suspend() { process_.suspend(); }

  void resume() { process_.resume(); }

  /// The reply to a command.
  redis_reply ask(const std::vector<std::string>& words) {
    auto commands = redis_commands{};
    commands.add(std::vector<std::string_view>{words.begin(), words.end()});
    auto tls = load_redis_tls(how_.access.tls);
    EXPECT_TRUE(tls) << tls.error().detail;
    auto link = redis_link::open(where(), how_.access, *tls, soon());
    EXPECT_TRUE(link) << link.error().detail;
    if (!link)
      return {};
    auto replies = (*link)->ask(commands, soon());
    EXPECT_TRUE(replies) << replies.error().detail;
    return replies ? replies->front() : redis_reply{};
  }

private:
  std::vector<std::string> arguments() const {
    auto words = std::vector<std::string>{"redis-server", "--bind", "127.0.0.1",
                                          "--save",       "",       "--dir",
                                          folder(),       "--port", std::to_string(port_)};
    if (how_.access.tls.is_used) {
      words.back() = "0";
      words.insert(words.end(), {"--tls-port", std::to_string(port_)});
    }
    if (how_.is_cluster_node)
      words.insert(words.end(), {"--cluster-enabled", "yes", "--cluster-port",
                                 std::to_string(bus_port_), "--cluster-node-timeout", "5000"});
    words.insert(words.end(), how_.arguments.begin(), how_.arguments.end());
    return words;
  }

  const settings how_;
  const temporary_folder folder_;
  uint16_t port_ = 0;
  uint16_t bus_port_ = 0;
  server_process process_;
};

/// Three nodes with a third of the slots each, without replicas.
class redis_cluster {
public:
  redis_cluster() {
    for (auto& node : nodes_)
      node = std::make_unique<redis_server>(redis_server::settings{.is_cluster_node = true});
    const auto bounds = std::array{0, 5461, 10923, 16384};
    for (auto i = size_t{0}; i < nodes_.size(); ++i) {
      nodes_[i]->ask(
        {"CLUSTER", "ADDSLOTSRANGE", std::to_string(bounds[i]), std::to_string(bounds[i + 1] - 1)});
      nodes_[i]->ask({"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes_[0]->where().port),
                      std::to_string(nodes_[0]->bus_port())});
    }
    wait_until_it_serves();
  }

  redis_server& node(size_t number) { return *nodes_.at(number); }

  /// The node that serves a slot.
  redis_server& node_of(uint16_t slot) { return node(slot < 5461 ? 0 : slot < 10923 ? 1 : 2); }

  /// The identifier by which nodes know this one.
  std::string id(size_t number) { return node(number).ask({"CLUSTER", "MYID"}).text; }

  void wait_until_it_serves() {
    for (const auto& each : nodes_)
      // A node tells nobody when it knows the others.
      while (monotonic_clock{}.now() < soon()
             && each->ask({"CLUSTER", "INFO"}).text.find("cluster_state:ok") == std::string::npos)
        ::poll(nullptr, 0, 20);
  }

private:
  std::array<std::unique_ptr<redis_server>, 3> nodes_;
};

/// Options for a store of a test's own on these servers.
inline redis_options options_for(std::vector<rpc::endpoint> servers, bool is_cluster = false) {
  auto options = redis_options{};
  options.servers.servers = std::move(servers);
  options.servers.is_cluster = is_cluster;
  options.fingerprint = 7;
  return options;
}

} // namespace hicache::test
