#pragma once

#include "backends/redis/redis_link.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "rpc/endpoint.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// Pause before the second connection attempt to a server that failed, which doubles with each
/// failure up to the maximum: a restarted server is found soon, and one that is gone costs little.
inline constexpr auto redis_pause_min = std::chrono::milliseconds{50};
inline constexpr auto redis_pause_max = std::chrono::seconds{5};

/// The servers, and how to connect to them.
struct redis_servers {
  /// One server, or some nodes of a cluster; the others are found through them.
  std::vector<rpc::endpoint> servers;
  bool is_cluster = false;
  redis_access access;
  /// Bound on one connection attempt.
  duration connect_timeout = std::chrono::seconds{1};
  /// Silence after which a server with unanswered commands counts as unreachable.
  duration timeout = std::chrono::seconds{10};
};

/// Commands for one slot that are sent together, and their replies.
struct redis_request {
  uint16_t slot = 0;
  redis_commands commands;
  /// Expected bytes of values in the replies.
  uint64_t reply_bytes = 0;
  /// Takes the values, with the number of the reply; empty: they go to `replies`. When the request
  /// is repeated it is called again, from number 0 on.
  std::function<void(size_t reply, std::span<const std::byte> value)> on_value;
  /// One for each command; or peer_unreachable, deadline_exceeded, io_failure.
  result<std::vector<redis_reply>> replies = {};
};

/// Connections to one server or a cluster. Any thread.
class redis_client {
public:
  /// Connects to a server, and reads the slots of a cluster.
  /// @param clock For deadlines and pauses; must outlive the client.
  /// @returns invalid_argument; peer_unreachable or io_failure with a sentence
  static result<std::unique_ptr<redis_client>> open(redis_servers servers,
                                                    const clock_source& clock);

  /// Sends all requests, those to one node in order, and waits for the replies. Follows the
  /// cluster's redirections, and repeats once what a broken connection left unanswered.
  void run(std::span<redis_request> requests, time_point deadline);

  /// The server, or the masters of the cluster that are known.
  std::vector<rpc::endpoint> nodes();

  /// Asks one of the nodes.
  /// @returns peer_unreachable, deadline_exceeded, io_failure
  result<redis_reply> ask_node(const rpc::endpoint& where, const redis_commands& command,
                               time_point deadline);

  /// Whether all servers, of a cluster all masters, answer.
  result<void> ping(time_point deadline);

private:
  struct node_state {
    std::vector<std::unique_ptr<redis_link>> idle;
    unsigned failures = 0;
    /// On `clock_`.
    time_point next_attempt{};
    error last_failure;
  };

  struct attempt {
    size_t request = 0;
    /// From an ASK.
    std::optional<rpc::endpoint> ask;
  };

  struct lane;

  redis_client(redis_servers servers, redis_tls_context tls, const clock_source& clock);

  time_point machine_deadline(time_point deadline) const;
  result<std::unique_ptr<redis_link>> borrow(const rpc::endpoint& where, bool& is_reused,
                                             time_point until);
  void give_back(const rpc::endpoint& where, std::unique_ptr<redis_link> link);
  void note_failure(const rpc::endpoint& where, const error& why);
  result<std::vector<redis_reply>> ask(const rpc::endpoint& where, const redis_commands& commands,
                                       time_point until);
  result<void> read_slots(time_point until);
  bool has_stale_slots();
  /// Its number in `masters_`, which it joins if it is new.
  /// @pre mutex_ is held
  uint16_t number_of(const rpc::endpoint& master);
  result<rpc::endpoint> node_of(const redis_request& request, const attempt& next);
  std::vector<lane> make_lanes(std::span<redis_request> requests,
                               const std::vector<attempt>& pending, time_point until);
  void drive(std::vector<lane>& lanes, std::span<redis_request> requests, time_point until);
  std::optional<attempt> again(const lane& from, size_t position, std::span<redis_request> requests,
                               unsigned round);

  const redis_servers servers_;
  const redis_tls_context tls_;
  const clock_source& clock_;
  const redis_commands asking_;
  std::mutex mutex_; // Guards what follows.
  /// By address.
  std::map<std::string, node_state> nodes_;
  /// Masters of the cluster, and which of them serves each slot.
  std::vector<rpc::endpoint> masters_;
  std::vector<uint16_t> slots_;
  bool are_slots_stale_ = true;
};

} // namespace hicache
