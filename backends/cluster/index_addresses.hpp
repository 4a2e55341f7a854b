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

/// Addresses that are taken from one answer of a source: one for each shard that an index may have.
inline constexpr size_t source_addresses = 256;

/// How long one question to a server of a source may take: some times what a resolver or etcd
/// takes, and short enough that a program which starts can ask again.
inline constexpr auto source_answer_time = std::chrono::seconds{2};

/// Pauses between two questions to a source. Below the first, ranks by the thousand would be a load
/// for who answers; beyond the second nobody wants to wait for an address that is new.
inline constexpr auto source_pause_min = std::chrono::seconds{2};
inline constexpr auto source_pause_max = std::chrono::seconds{60};

/// What a source of addresses said.
struct address_answer {
  /// HOST:PORT of each; may be none.
  std::vector<std::string> addresses;
  /// For how long that holds, as the source sees it.
  std::chrono::seconds valid{};
  /// Why there are none.
  std::string trouble;
};

/// When to ask again: as the source says, within the bounds, and after a failure early.
/// @relates address_answer
std::chrono::seconds pause_after(const result<address_answer>& answer) noexcept;

/// Knows where the processes of the index are. One thread.
class address_source {
public:
  virtual ~address_source() = default;

  /// Blocks, for a few times source_answer_time at most, and no longer than until `stop`.
  /// @param own Address of this process, to be told to others who ask the source; empty: none.
  virtual result<address_answer> ask(const std::string& own, interruption& stop) = 0;

  /// Takes back what others were told, if the source can be reached. Blocks as ask().
  virtual void leave() {}
};

/// The addresses that --index or --join stands for: those it lists, or what a source says, which is
/// asked again and again by a thread of this object. What a source said last holds while it does
/// not answer. Any thread.
class index_addresses {
public:
  /// @param place As parse_index_place reads it.
  /// @param tls For sources that are asked by TLS.
  /// @returns invalid_argument with a sentence
  static result<std::shared_ptr<index_addresses>> open(const std::string& place,
                                                       const tls_files& tls);

  /// These and no others.
  explicit index_addresses(std::vector<std::string> fixed);

  /// @param name Of the source, for people.
  index_addresses(std::string name, std::unique_ptr<address_source> source);

  /// As close().
  ~index_addresses();

  index_addresses(const index_addresses&) = delete;

  index_addresses& operator=(const index_addresses&) = delete;

  /// For people.
  const std::string& name() const noexcept { return name_; }

  /// As last heard. Does not block.
  std::vector<std::string> now() const;

  /// Why there are none, or why they may be out of date; empty if all is well.
  std::string trouble() const;

  /// Waits until the source has answered for the first time, or cannot; up to `patience`.
  void wait_for(std::chrono::nanoseconds patience) const;

  /// Tells others who ask the source of this process, from now on, if it is a source for that.
  void announce(const std::string& own);

  /// Takes back what was announced, if the source can be reached, and asks no more.
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
  /// There were addresses once.
  bool has_found_ = false;
  /// The log has the trouble.
  bool is_logged_ = false;
  std::thread thread_;
};

} // namespace hicache
