#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "hicache/policies.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct ssl_ctx_st;

/// Bytes between hosts: an owner's page_server answers the page_clients of readers, over TCP with
/// the cluster's TLS, or over UCX among those that met that way. A copy may be torn by the owner's
/// writing, which the reader finds by the page's checksum.
namespace hicache {

/// How a process takes part.
struct page_channel_options {
  page_transport transport = page_transport::automatic;
  /// The context for a new connection, in which each side shows its certificate and checks the
  /// other's. One thread at a time. Null: in clear.
  std::function<result<std::shared_ptr<ssl_ctx_st>>()> tls;
};

/// The transport named "auto", "tcp" or "ucx".
/// @returns invalid_argument with one sentence for other names, and for UCX where it finds no
/// device
result<page_transport> parse_page_transport(std::string_view name);

/// What stands in front of each page and vouches for it. Comes along with the bytes of a range;
/// what is in it is the reader's business.
using range_head = std::array<std::byte, 88>;

/// What a reader expects at a range's head.
struct range_claim {
  page_key key;
  uint32_t generation = 0;

  friend bool operator==(const range_claim&, const range_claim&) = default;
};

/// Whether a head, whose offset is given, makes the claim true and [offset, offset + length) of the
/// memory belongs to its page. Called by the server's thread, with what strangers ask for.
using range_guard = std::function<bool(const range_claim& claim, uint64_t head_offset,
                                       const range_head& head, uint64_t offset, uint64_t length)>;

/// Lets clients read a piece of memory: of each range they say which page it is of, and get no byte
/// if the memory holds another one there. Has a thread of its own; a reader that does not take its
/// bytes holds up nobody but itself, and is given up after limits::storage_timeout. None can make
/// it use more memory than `base/limits.hpp` says.
class page_server {
public:
  /// @param memory What clients may read. Not owned; must outlive the server.
  /// @param guard Decides what of it is sent.
  /// @param host The name or number of the interface to listen on. The kernel picks the port.
  /// @returns invalid_argument if the host has no address; io_failure if nobody can listen there,
  /// or UCX does not start
  static result<std::unique_ptr<page_server>> start(std::span<const std::byte> memory,
                                                    range_guard guard, const std::string& host,
                                                    page_channel_options options);

  virtual ~page_server();

  /// "host:port" with a numeric host, for page_client::read.
  virtual const std::string& address() const noexcept = 0;

  /// Bytes of the memory that clients were sent since the start. Any thread.
  virtual uint64_t sent_bytes() const noexcept = 0;
};

/// A place from which a range may be read.
struct range_place {
  /// Position in range_reads::servers.
  size_t server = 0;
  /// From the start of that server's memory: the page's head, and the range.
  uint64_t head = 0;
  uint64_t offset = 0;
  range_claim claim = {};
};

/// Bytes wanted, who has them, and where they go.
struct remote_range {
  /// Best first; 1 to 64, all of which hold the same. Not owned.
  std::span<const range_place> places;
  /// One part after the other; as many bytes as are wanted. Neither the list nor the parts are
  /// owned.
  std::span<const std::span<std::byte>> targets;
  /// Has a server send it that would rather not (limit_reached).
  bool insists = false;
};

/// What is to be read.
struct range_reads {
  /// As page_server::address says, only numbers are understood; all different.
  std::vector<std::string> servers;
  std::vector<remote_range> ranges;
};

/// How a range was read.
struct range_answer {
  /// Position of the place that it came from.
  size_t place = 0;
  /// The server sent it to others as well a moment ago: a copy elsewhere would help.
  bool in_demand = false;
  /// The place holds another page by now: nothing was read, and there is no head.
  bool is_gone = false;
  /// As it was before the bytes were read.
  range_head head = {};
  /// page_checksum of the bytes that arrived.
  uint64_t checksum = 0;
};

/// Reads from page_servers, over connections that it keeps. Any thread, several at a time: each
/// call under way has connections of its own.
class page_client {
public:
  /// @param exports Whether what is in demand will be offered to others by this process, so that
  /// the servers may send them there.
  /// @returns io_failure if UCX does not start
  static result<std::unique_ptr<page_client>> create(page_channel_options options,
                                                     bool exports = false);

  virtual ~page_client();

  /// Reads all ranges, in messages of up to limits::transfer_bytes, from all servers at a time. A
  /// range comes from its first place; from the next one if that fails, or if its server delivers
  /// nothing for limits::read_hedge, and then from whichever is faster. Blocks until everything
  /// arrived or failed, at most until the deadline; what UCX is receiving then has another
  /// limits::read_hedge. Afterwards nothing writes to the targets; those of failed ranges hold
  /// anything.
  /// @returns for each range why the last of its places failed: peer_unreachable if the server went
  /// away, never was there, or delivered nothing for limits::read_stall, now or within the last
  /// limits::read_avoidance; limit_reached if the server sent it several times a moment ago, to
  /// readers that will offer it as well; deadline_exceeded; invalid_argument if the range or its
  /// head, or another that shared its message, leaves the server's memory, or if the address is
  /// none; malformed_message if the server speaks another version
  virtual std::vector<result<range_answer>> read(const range_reads& wanted, time_point deadline)
    = 0;
};

} // namespace hicache
