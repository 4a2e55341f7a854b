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

  /// From another address each time: ports of connections that ended are not free at once.
  int connect() {
    const auto fd = socket(AF_INET, SOCK_STREAM, 0);
    constexpr auto peers = uint32_t{1} << 16U;
    const auto from = loopback_address(INADDR_LOOPBACK + peers + callers_++ % peers, 0);
    const auto to = loopback_address(INADDR_LOOPBACK, port_);
    HICACHE_CHECK(bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof(from)) == 0);
    // libFuzzer's clock interrupts calls that wait.
    HICACHE_CHECK(
      TEMP_FAILURE_RETRY(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to))) == 0);
    return fd;
  }

private:
  static sockaddr_in loopback_address(uint32_t host, uint16_t port) {
    auto result = sockaddr_in{};
    result.sin_family = AF_INET;
    result.sin_port = htons(port);
    result.sin_addr.s_addr = htonl(host);
    return result;
  }

  system_config config_;
  caf::actor_system system_{config_};
  rpc_network network_{system_, {}};
  uint16_t port_ = 0;
  uint32_t callers_ = 0;
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
    HICACHE_CHECK(TEMP_FAILURE_RETRY(poll(&watched, 1, patience_ms)) == 1);
  } while (recv(fd, answer, sizeof(answer), 0) > 0);
  close(fd);
  return 0;
}
