// What arrives at the port of an index or a member, from the first byte on. Whatever it is, the
// process goes on, and the connection ends soon after the peer has hung up.

#include "base/check.hpp"
#include "hicache/system_config.hpp"
#include "rpc/network.hpp"
#include "tests/fuzz/sockets.hpp"
#include "tests/rpc/served_actors.hpp"

#include <caf/actor_system.hpp>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace {

using namespace hicache;

/// A process that serves, until the fuzzer ends.
class served_process {
public:
  served_process() {
    spdlog::set_level(spdlog::level::off);
    auto seen = std::make_shared<test::sightings>();
    auto directory = system_->spawn(test::run_directory, system_->spawn(test::run_shard, seen));
    auto at = rpc_network::listen({"127.0.0.1", 0}).value();
    port_ = at.where().port;
    network_.serve(std::move(at), directory, {true, std::chrono::seconds{8}});
  }

  uint16_t port() const noexcept { return port_; }

private:
  /// Outlives the process's static objects, which CAF needs to end it; the network's thread logs
  /// and must not.
  caf::actor_system* system_ = new caf::actor_system{*new system_config};
  rpc_network network_{*system_, {}};
  uint16_t port_ = 0;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto process = served_process{};
  const auto fd = test::connect_from_anywhere(process.port());
  test::send_all(fd.get(), std::as_bytes(std::span{data, size}));
  test::expect_the_end(fd.get());
  return 0;
}
