#pragma once

#include "backends/node_client.hpp"
#include "c_abi/batch.hpp"
#include "c_abi/completions.hpp"
#include "c_abi/own_process.hpp"
#include "c_abi/settings.hpp"
#include "hicache.h"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/system_config.hpp"
#include "rpc/network.hpp"

#include <caf/actor_system.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

struct hc_lease {
  hc_client* client = nullptr;
  std::shared_ptr<const hicache::pinned_pages> pages;
};

/// A client of the C ABI: its threads take batches in order, execute them with a node_client, and
/// post completions. Any thread. Throws only if memory or threads run out.
struct hc_client : hicache::own_process {
  using batch = hicache::batch;
  template <class T>
  using result = hicache::result<T>;

  /// @param options Its log, if not NULL, is called by all threads of the client.
  static result<std::unique_ptr<hc_client>> open(hicache::client_settings settings,
                                                 const hc_options& options);

  /// As hc_close says.
  ~hc_client();

  hicache::time_point now() const noexcept { return clock_.now(); }

  result<void> connect(hicache::time_point deadline);

  /// The key for a name.
  hicache::page_key key_of(std::string_view name) const;

  /// Queues a batch.
  result<hc_ticket> submit(batch work);

  /// The pages of a lease of this client.
  /// @returns unknown_id
  result<std::shared_ptr<const hicache::pinned_pages>> pages_of(const hc_lease* lease) const;

  void unpin(const hc_lease* lease);

  /// Owns an offload until forget() or destruction.
  hc_offload* keep(std::unique_ptr<hc_offload> offload);

  /// Destroys an offload.
  void forget(const hc_offload* offload);

  hicache::completions& done() noexcept { return done_; }

  const hicache::completions& done() const noexcept { return done_; }

  hc_counters counters() const;

  result<hicache::node_status> status(hicache::time_point deadline);

  result<hicache::page_totals> clear(bool evict_first, hicache::time_point deadline);

private:
  hc_client(hicache::client_settings settings, const hc_options& options);

  /// Loop of a worker thread.
  void work();

  /// Executes a batch; turns exceptions into a failed completion.
  hc_completion run(const batch& what) noexcept;

  /// @returns one outcome per page
  std::vector<result<void>> outcome_of(const batch& what, hc_lease*& lease);

  std::vector<result<void>> pin(const batch& what, hc_lease*& lease);

  /// Counts the outcomes of a batch, and logs corrupt pages.
  void note(const batch& what, const std::vector<result<void>>& outcome);

  /// Counts the outcome of reading a page. Requires mutex_.
  void note_read(const result<void>& outcome, uint64_t bytes);

  /// Counts the outcome of storing a page. Requires mutex_.
  void note_written(const result<void>& outcome, uint64_t bytes);

  /// Records whether the node is usable.
  /// @param failure Null on success.
  void note_node(const hicache::error* failure);

  void log(hc_level level, const std::string& text) const;

  const hicache::client_settings settings_;
  const hc_options options_;
  hicache::monotonic_clock clock_;
  hicache::completions done_;
  hicache::system_config config_;
  caf::actor_system system_;
  std::unique_ptr<hicache::rpc_network> network_;
  hicache::node_client node_;
  mutable std::mutex mutex_; // Guards what follows.
  std::condition_variable changed_;
  std::deque<batch> queue_;
  bool is_closing_ = false;
  std::unordered_map<const hc_lease*, std::unique_ptr<hc_lease>> leases_;
  std::unordered_map<const hc_offload*, std::unique_ptr<hc_offload>> offloads_;
  hc_counters counters_{};
  /// Why the node was last unusable; empty if it was usable.
  std::string trouble_;
  std::vector<std::thread> threads_;
};
