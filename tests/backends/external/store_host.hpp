#pragma once

#include "backends/external/external_backend.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/support/server_process.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

/// Real stores in other processes: the package's store host with stores of the tests, of Mooncake
/// and of NIXL.
namespace hicache::test {

/// The Python to use, which has pycapnp: $HICACHE_STORE_PYTHON, or the first of the path.
inline std::string store_python() {
  const auto* const chosen = std::getenv("HICACHE_STORE_PYTHON");
  return chosen != nullptr ? chosen : "python3";
}

inline bool has_module(const std::string& name) {
  return std::system((store_python() + " -c 'import " + name + "' >/dev/null 2>&1").c_str()) == 0;
}

/// The shell command of a store that a process starts itself.
inline std::string host_of(const std::string& store) {
  return "exec " + store_python() + " -m hicache store-host --fd 3 " + store;
}

/// Lets a Python find the package and the stores of the tests.
inline void set_python_path() {
  ::setenv("PYTHONPATH", HICACHE_PYTHON_PATH, 1);
}

/// A Mooncake master, and a store host beside it that listens at a socket.
class mooncake_servers {
public:
  mooncake_servers() {
    // Another process may take the port first.
    for (auto i = 0; i < 10 && !master_.is_running(); ++i) {
      port_ = std::to_string(free_port());
      master_.start({"sh", "-c",
                     "exec $(dirname " + store_python()
                       + ")/mooncake_master --rpc_address=127.0.0.1 --rpc_port=" + port_
                       + " --metrics_port=0 --logtostderr 2>&1"},
                    "Master service started");
    }
    EXPECT_TRUE(master_.is_running()) << "mooncake_master does not start";
    EXPECT_TRUE(host_.start({store_python(), "-m", "hicache", "store-host", "--socket", socket(),
                             "hicache.mooncake_store:MooncakeStore"},
                            "listening at " + socket()));
  }

  std::string socket() const { return folder_.path() + "/store"; }

  std::string master() const { return "127.0.0.1:" + port_; }

private:
  temporary_folder folder_;
  server_process master_;
  server_process host_;
  std::string port_;
};

} // namespace hicache::test
