#pragma once

#include "base/unique_fd.hpp"
#include "hicache/error.hpp"
#include "messages/store_protocol.hpp"
#include "messages/wire.hpp"
#include "transport/shared_memory.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace hicache {

/// A connection to a store in another process, and the window that both map. One call at a time;
/// one thread at a time. The peer is not trusted: it can change the window at any time, and answers
/// that break the protocol break the link.
class store_link {
public:
  using milliseconds = std::chrono::milliseconds;

  /// Greets the store.
  /// @param socket Connected, non-blocking.
  /// @param options A JSON object for the store.
  /// @returns invalid_argument with the store's sentence if it refuses; as call
  static result<std::unique_ptr<store_link>> open(unique_fd socket, uint64_t window_bytes,
                                                  const std::string& options, milliseconds time);

  const store_welcome& welcome() const noexcept { return welcome_; }

  std::span<std::byte> window() const noexcept { return window_.bytes(); }

  /// Sends a call and waits for its answer, which has an outcome for each object. Numbers the call
  /// and says how long it may take.
  /// @pre at most store_request_objects
  /// @returns deadline_exceeded, peer_unreachable or malformed_message, after which the link is of
  /// no use; io_failure with the store's sentence if it failed the whole call
  result<store_answer> call(store_request request, milliseconds time);

  bool is_broken() const noexcept { return is_broken_; }

private:
  using steady = std::chrono::steady_clock;

  store_link(unique_fd socket, shared_memory window)
    : socket_(std::move(socket)), window_(std::move(window)) {}

  /// @param memory A descriptor to send along; -1: none.
  result<void> send(const wire::frame& message, int memory, steady::time_point deadline);
  result<wire::frame> receive(steady::time_point deadline);

  /// Sends or receives some of a message, or waits until it can.
  template <class Transfer>
  result<size_t> transfer_some(short event, steady::time_point deadline, Transfer transfer);

  unique_fd socket_;
  shared_memory window_;
  store_welcome welcome_;
  uint64_t calls_ = 0;
  bool is_broken_ = false;
};

} // namespace hicache
