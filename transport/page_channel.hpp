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

/// Page transfers between hosts: an owner's page_server answers the page_clients of readers, over
/// TCP with the cluster's TLS, or over UCX between peers that met that way. A concurrent write by
/// the owner can tear a copy; the reader detects that by the page's checksum.
namespace hicache {

struct page_channel_options {
  page_transport transport = page_transport::automatic;
  /// Makes the TLS context of a new connection; both sides present and verify certificates. Called
  /// by one thread at a time. Null: plaintext.
  std::function<result<std::shared_ptr<ssl_ctx_st>>()> tls;
};

/// Parses "auto", "tcp" or "ucx".
/// @returns invalid_argument with one sentence for other names, and for UCX without a device
result<page_transport> parse_page_transport(std::string_view name);

/// The header stored before each page, which identifies it. Sent with the bytes of a range; only
/// the reader interprets it.
using range_head = std::array<std::byte, 88>;

/// What a reader expects in a range's head.
struct range_claim {
  page_key key;
  uint32_t generation = 0;

  friend bool operator==(const range_claim&, const range_claim&) = default;
};

/// Whether the head at `head_offset` matches the claim and [offset, offset + length) of the memory
/// lies within its page. Called by the server's thread with untrusted arguments from the network.
using range_guard = std::function<bool(const range_claim& claim, uint64_t head_offset,
                                       const range_head& head, uint64_t offset, uint64_t length)>;

/// Serves reads of a piece of memory. A read names the page of each range and gets no byte if the
/// memory holds another page there. Runs its own thread. A reader that does not drain its bytes
/// delays only itself, until limits::storage_timeout disconnects it. `base/limits.hpp` bounds
/// memory.
class page_server {
public:
  /// @param memory What clients may read. Not owned; must outlive the server.
  /// @param guard Decides which reads are allowed.
  /// @param host Name or address of the interface to listen on. The kernel picks the port.
  /// @returns invalid_argument if the host has no address; io_failure if listening or UCX fails
  static result<std::unique_ptr<page_server>> start(std::span<const std::byte> memory,
                                                    range_guard guard, const std::string& host,
                                                    page_channel_options options);

  virtual ~page_server();

  /// "host:port" with a numeric host, for range_reads::servers.
  virtual const std::string& address() const noexcept = 0;

  /// Bytes of the memory sent to clients since the start. Any thread.
  virtual uint64_t sent_bytes() const noexcept = 0;
};

/// A place to read a range from.
struct range_place {
  /// Index into range_reads::servers.
  size_t server = 0;
  /// Offsets in that server's memory: of the page's head and of the range.
  uint64_t head = 0;
  uint64_t offset = 0;
  range_claim claim = {};
};

/// The places of a range and the targets of its bytes.
struct remote_range {
  /// Best first; 1 to 64, all with the same content. Not owned.
  std::span<const range_place> places;
  /// Filled in order; their sizes add up to the bytes wanted. Neither list nor parts are owned.
  std::span<const std::span<std::byte>> targets;
  /// Makes the server send it even if the server would refuse with limit_reached.
  bool insists = false;
};

struct range_reads {
  /// As page_server::address returns them; numeric hosts only, no duplicates.
  std::vector<std::string> servers;
  std::vector<remote_range> ranges;
};

struct range_answer {
  /// Index of the place it came from.
  size_t place = 0;
  /// The server sent it to other readers a moment ago: another replica would help.
  bool in_demand = false;
  /// The place holds another page now: nothing was read, and there is no head.
  bool is_gone = false;
  /// Copied before the bytes were read.
  range_head head = {};
  /// page_checksum of the bytes received.
  uint64_t checksum = 0;
};

/// Reads from page_servers over cached connections. Any thread; concurrent calls share none.
class page_client {
public:
  /// @param exports Whether this process offers pages in demand: servers may send readers to it.
  /// @returns io_failure if UCX does not start
  static result<std::unique_ptr<page_client>> create(page_channel_options options,
                                                     bool exports = false);

  virtual ~page_client();

  /// Reads all ranges from all servers in parallel, in messages of up to limits::transfer_bytes. A
  /// range comes from its first place, or from the next one if that fails; if its server delivers
  /// nothing for limits::read_hedge, the next place is asked too and the faster one wins. Blocks
  /// until every range has arrived or failed, at most until the deadline; data in reception by UCX
  /// get another limits::read_hedge. Afterwards nothing writes to the targets; those of failed
  /// ranges are undefined.
  /// @returns per range why its last place failed: peer_unreachable if the server is gone, was
  /// never there, or delivered nothing for limits::read_stall, now or within the last
  /// limits::read_avoidance; limit_reached if the server sent it several times a moment ago, to
  /// readers that will offer it as well; deadline_exceeded; invalid_argument if the range or its
  /// head, or another that shared its message, is outside the server's memory, or if the address is
  /// invalid; malformed_message if the server speaks another version
  virtual std::vector<result<range_answer>> read(const range_reads& wanted, time_point deadline)
    = 0;
};

} // namespace hicache
