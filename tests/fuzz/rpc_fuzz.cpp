// What arrives at the port of an index or a member, from the first byte on. Whatever it is, the
// process goes on, and the connection ends soon after the peer has hung up.

#include "base/check.hpp"
#include "messages/system_config.hpp"
#include "rpc/network.hpp"
#include "tests/rpc/served_actors.hpp"

#include <caf/actor_system.hpp>
#include <spdlog/spdlog.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

namespace {

using namespace hicache;

/// A process that serves, until the fuzzer ends.
class served_process {
public:
  served_process() {
    spdlog::set_level(spdlog::level::off);
    auto seen = std::make_shared<test::sightings>();
    auto directory = system_.spawn(test::run_directory, system_.spawn(test::run_shard, seen));
    auto at = rpc_network::listen({"127.0.0.1", 0}).value();
    port_ = at.where().port;
    network_.serve(std::move(at), directory, {true, std::chrono::seconds{8}});
  }

  int connect() const {
    const auto fd = socket(AF_INET, SOCK_STREAM, 0);
    auto to = sockaddr_in{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port_);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    HICACHE_CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0);
    return fd;
  }

private:
  system_config config_;
  caf::actor_system system_{config_};
  rpc_network network_{system_, {}};
  uint16_t port_ = 0;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* process = new served_process; // Nobody waits for its actors at the end.
  const auto fd = process->connect();
  for (auto sent = size_t{0}; sent < size;) {
    const auto count = send(fd, data + sent, size - sent, MSG_NOSIGNAL);
    if (count <= 0)
      break; // Closed already.
    sent += static_cast<size_t>(count);
  }
  shutdown(fd, SHUT_WR);
  constexpr auto patience_ms = 10000;
  char answer[4096];
  do {
    auto watched = pollfd{fd, POLLIN, 0};
    HICACHE_CHECK(poll(&watched, 1, patience_ms) == 1);
  } while (recv(fd, answer, sizeof(answer), 0) > 0);
  close(fd);
  return 0;
}
