#pragma once

#include "backends/node_client.hpp"
#include "hicache/system_config.hpp"
#include "runtime/node_host.hpp"
#include "tests/backends/backend_support.hpp"

#include <caf/actor_system.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hicache::test {

inline constexpr auto page_size = size_t{4096};

inline time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds{20};
}

/// An engine's process, as far as actors can tell.
struct engine_process {
  explicit engine_process(std::string at, client_info who = {1, 7}, const tls_files& tls = {})
    : address(std::move(at)), network(system, tls),
      client({&system, network.node_connector(), address, who, {}, &clock}) {}

  result<void> put(uint64_t number, size_t size = page_size) {
    const auto bytes = bytes_of(number, size);
    return client.put(std::vector{page_write{key_of(number), {}, {bytes}}}, soon()).at(0);
  }

  result<page_bytes> get(uint64_t number, size_t size = page_size, time_point deadline = soon()) {
    auto bytes = page_bytes(size);
    auto answer = client.get(std::vector{page_read{key_of(number), {bytes}}}, deadline).at(0);
    if (!answer)
      return tl::unexpected{answer.error()};
    return bytes;
  }

  std::string address;
  system_config config;
  caf::actor_system system{config};
  rpc_network network;
  monotonic_clock clock;
  node_client client;
};

/// A node's process, likewise.
struct node_process {
  explicit node_process(node_host_options options) {
    options.clock = &clock;
    auto started = node_host::start(system, std::move(options));
    EXPECT_TRUE(started) << to_string(started.error());
    if (started)
      host = std::move(*started);
  }

  system_config config;
  caf::actor_system system{config};
  monotonic_clock clock;
  std::unique_ptr<node_host> host;
};

} // namespace hicache::test
