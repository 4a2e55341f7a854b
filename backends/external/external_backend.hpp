#pragma once

#include "backends/blocking_store.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hicache {

struct external_options {
  /// The backend's name: "external", "mooncake".
  std::string name = "external";
  /// The Unix socket of a running process, or a shell command that starts one: one of both.
  std::string socket = {};
  std::string command = {};
  /// For the store: a JSON object.
  std::string options = "{}";
  /// How long the store may take until it answers for the first time.
  std::chrono::milliseconds start_time{60000};
  /// Memory shared with the process by each thread; bounds an object's bytes.
  uint64_t window_bytes = uint64_t{32} << 20;
  /// Bound on the bytes of the objects that this process wrote; it evicts its own. 0: the store
  /// alone decides.
  uint64_t max_bytes = 0;
  /// `fingerprint_of` the namespace. Objects of another one do not verify. Empty: objects of any
  /// verify, and none are written.
  std::optional<uint64_t> fingerprint = 0;
  /// Objects that do not verify stay where they are.
  bool keeps_broken = false;
};

/// Stores objects in another process (docs/backends.md, "external"): calls go over a Unix socket,
/// bytes through memory that both map. What comes back is verified here.
///
/// A call ends at its deadline, whatever the process does. A process that this one started and that
/// ended is started again by the next call; the one after a connection broke connects again.
/// @param clock Must outlive the store.
/// @returns invalid_argument; peer_unreachable, deadline_exceeded or io_failure if the process
/// cannot be used; with a sentence
result<std::unique_ptr<blocking_store>> make_external_backend(external_options options,
                                                              const clock_source& clock);

} // namespace hicache
