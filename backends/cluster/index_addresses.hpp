#pragma once

#include "backends/cluster/interruption.hpp"
#include "hicache/error.hpp"
#include "hicache/tls_files.hpp"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace hicache {

/// Addresses used from one answer of a source: one for each possible shard of an index.
inline constexpr size_t source_addresses = 256;

/// Timeout of one query to a server of a source: several times what a resolver or etcd takes, and
/// short enough for a starting program to retry.
inline constexpr auto source_answer_time = std::chrono::seconds{2};

/// Bounds of the pause between queries to a source. Below the first, thousands of ranks would
/// overload the source; above the second, new addresses would be found too late.
inline constexpr auto source_pause_min = std::chrono::seconds{2};
inline constexpr auto source_pause_max = std::chrono::seconds{60};

/// The answer of a source.
struct address_answer {
  /// HOST:PORT of each; may be empty.
  std::vector<std::string> addresses;
  /// How long the answer is valid, according to the source.
  std::chrono::seconds valid{};
  /// Why there are none.
  std::string trouble;
};

/// When to query again: as the source says, within the bounds; early after a failure.
/// @relates address_answer
std::chrono::seconds pause_after(const result<address_answer>& answer) noexcept;

/// A source of the addresses of the index's processes. One thread.
class address_source {
public:
  virtual ~address_source() = default;

  /// Blocks for a few times source_answer_time at most, or until `stop`.
  /// @param own Address of this process to announce to others that query the source; empty: none.
  virtual result<address_answer> ask(const std::string& own, interruption& stop) = 0;

  /// Withdraws the announced address if the source can be reached. Blocks like ask().
  virtual void leave() {}
};

/// The addresses of --index or --join: a fixed list, or the last answer of a source that a thread
/// of this object queries repeatedly. Any thread.
class index_addresses {
public:
  /// @param place As parsed by parse_index_place.
  /// @param tls For sources that use TLS.
  /// @returns invalid_argument with a sentence
  static result<std::shared_ptr<index_addresses>> open(const std::string& place,
                                                       const tls_files& tls);

  /// A fixed list.
  explicit index_addresses(std::vector<std::string> fixed);

  /// @param name Name of the source, for messages.
  index_addresses(std::string name, std::unique_ptr<address_source> source);

  /// Calls close().
  ~index_addresses();

  /// For messages.
  const std::string& name() const noexcept { return name_; }

  /// The latest addresses. Does not block.
  std::vector<std::string> now() const;

  /// Why there are none, or why they may be out of date; empty if all is well.
  std::string trouble() const;

  /// Waits for the source's first answer or failure, up to `patience`.
  void wait_for(std::chrono::nanoseconds patience) const;

  /// Announces this process to others that query the source, if the source supports that.
  void announce(const std::string& own);

  /// Withdraws the announcement if the source can be reached, and stops querying.
  void close();

private:
  void run();

  void note(const result<address_answer>& answer);

  const std::string name_;
  const std::unique_ptr<address_source> source_;
  interruption stop_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::string> addresses_;
  std::string trouble_;
  std::string own_;
  bool is_asked_ = false;
  /// Whether there ever were addresses.
  bool has_found_ = false;
  /// Whether the trouble was logged.
  bool is_logged_ = false;
  std::thread thread_;
};

} // namespace hicache
