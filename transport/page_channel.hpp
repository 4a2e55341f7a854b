#pragma once

#include "base/clock.hpp"
#include "base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// Bytes between hosts, by UCX active messages: an owner's page_server answers the page_clients of
/// readers. It moves bytes and knows nothing of pages: a copy may be torn by the owner's writing,
/// which the reader finds by the page's checksum.
namespace hicache {

/// Lets clients read a piece of memory. Has a thread of its own; readers cannot hold it up for
/// longer than limits::storage_timeout, nor make it use more memory than `base/limits.hpp` says.
class page_server {
public:
  /// @param memory What clients may read. Not owned; must outlive the server.
  /// @param host The name or number of the interface to listen on. The kernel picks the port.
  /// @returns invalid_argument if the host has no address; io_failure if UCX cannot listen there
  static result<std::unique_ptr<page_server>> start(std::span<const std::byte> memory,
                                                    const std::string& host);

  virtual ~page_server();

  /// "host:port" with a numeric host, for page_client::read.
  virtual const std::string& address() const noexcept = 0;
};

/// Bytes wanted from an owner's memory, and where they go.
struct remote_range {
  /// From the start of the owner's memory.
  uint64_t offset = 0;
  /// Where the bytes go, one part after the other; as many as are wanted. Neither the list nor the
  /// parts are owned.
  std::span<const std::span<std::byte>> targets;
};

/// What is wanted from one server.
struct server_read {
  /// As page_server::address says; only numbers are understood.
  std::string address;
  std::vector<remote_range> ranges;
};

/// Reads from page_servers, over connections that it keeps. Any thread; calls take turns.
class page_client {
public:
  /// @returns io_failure if UCX does not start
  static result<std::unique_ptr<page_client>> create();

  virtual ~page_client();

  /// Reads all ranges, in messages of up to limits::transfer_bytes, from all servers at a time;
  /// ranges that follow each other in the owner's memory become one. Blocks until everything
  /// arrived or failed, at most until the deadline. Afterwards nothing writes to the targets; those
  /// of failed ranges hold anything.
  /// @returns for each server one result for each range: peer_unreachable if the server went away,
  /// never was there, or delivered nothing for limits::read_stall, now or within the last
  /// limits::read_avoidance; deadline_exceeded;
  ///          invalid_argument if a range, or another that shared its message, leaves the server's
  ///          memory, or if the address is none; malformed_message if the server speaks another
  ///          version
  /// @pre the addresses differ
  virtual std::vector<std::vector<result<void>>> read(std::span<const server_read> reads,
                                                      time_point deadline)
    = 0;
};

} // namespace hicache
