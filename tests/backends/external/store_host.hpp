#pragma once

#include "backends/external/external_backend.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/support/server_process.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

/// Real stores in other processes: the package's store host with stores of the tests, of Mooncake,
/// of NIXL and of LMCache.
namespace hicache::test {

/// The Python to use, which has pycapnp: $HICACHE_STORE_PYTHON, or the first of the path.
inline std::string store_python() {
  const auto* const chosen = std::getenv("HICACHE_STORE_PYTHON");
  return chosen != nullptr ? chosen : "python3";
}

inline bool has_module(const std::string& name) {
  // Importing torch takes seconds.
  return std::system((store_python() + " -c 'import importlib.util, sys; "
                      + "sys.exit(importlib.util.find_spec(\"" + name
                      + "\") is None)' >/dev/null 2>&1")
                       .c_str())
         == 0;
}

/// The shell command of a store that a process starts itself.
inline std::string host_of(const std::string& store) {
  return "exec " + store_python() + " -m hicache store-host --fd 3 " + store;
}

/// Lets a Python find the package and the stores of the tests; LMCache reports to nobody.
inline void prepare_python() {
  ::setenv("PYTHONPATH", HICACHE_PYTHON_PATH, 1);
  ::setenv("LMCACHE_TRACK_USAGE", "false", 1);
}

/// Starts a server at a port that was free a moment ago, and again if another process takes it.
/// @param command_at The command, by the port.
/// @returns the address
template <class Command>
std::string start_at_free_port(server_process& server, Command command_at, std::string_view ready) {
  auto port = std::string{};
  for (auto i = 0; i < 10 && !server.is_running(); ++i) {
    port = std::to_string(free_port());
    server.start(command_at(port), ready);
  }
  EXPECT_TRUE(server.is_running()) << "the server does not print '" << ready << "'";
  return "127.0.0.1:" + port;
}

/// A store host that listens at a socket. Connections with other options have other stores.
class listening_host {
public:
  explicit listening_host(const std::string& store) {
    EXPECT_TRUE(
      process_.start({store_python(), "-m", "hicache", "store-host", "--socket", socket(), store},
                     "listening at " + socket()));
  }

  std::string socket() const { return folder_.path() + "/store"; }

private:
  temporary_folder folder_;
  server_process process_;
};

/// A Mooncake master, and a store host beside it.
class mooncake_servers {
public:
  std::string socket() const { return host_.socket(); }

  std::string master() const { return where_; }

private:
  static std::vector<std::string> command_at(const std::string& port) {
    return {"sh", "-c",
            "exec $(dirname " + store_python()
              + ")/mooncake_master --rpc_address=127.0.0.1 --rpc_port=" + port
              + " --metrics_port=0 --logtostderr 2>&1"};
  }

  server_process master_;
  std::string where_ = start_at_free_port(master_, command_at, "Master service started");
  listening_host host_{"hicache.mooncake_store:MooncakeStore"};
};

/// LMCache's `lm://` server, and a store host beside it.
class lmcache_servers {
public:
  std::string socket() const { return host_.socket(); }

  std::string url() const { return "lm://" + where_; }

private:
  static std::vector<std::string> command_at(const std::string& port) {
    return {store_python(), "-m", "lmcache.v1.server", "127.0.0.1", port};
  }

  server_process server_;
  std::string where_ = start_at_free_port(server_, command_at, "Server started");
  listening_host host_{"torch_stores:ApartLmcacheStore"};
};

} // namespace hicache::test
