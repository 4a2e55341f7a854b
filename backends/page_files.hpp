#pragma once

#include "backends/fair_mutex.hpp"
#include "backends/folder_log.hpp"
#include "backends/folder_table.hpp"
#include "backends/object_parts.hpp"
#include "backends/page_folder.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/page_header.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace hicache {

struct page_files_options {
  /// The folder; created if it does not exist.
  std::string path;
  /// Bound on the total size of the page files of all writers; 0 for none. Each process enforces
  /// its own bound. Processes read each other's writes before each batch of their own, so together
  /// they may exceed it by what they write concurrently.
  uint64_t max_bytes = 0;
  /// Files that do not verify are left alone.
  bool keeps_broken = false;
};

/// Pages in a folder, each in its own file that outlives the process: `<path>/<2 hex>/<64 hex>.kv`,
/// an encoded page_header and the page's bytes. Processes share the existence, parents and uses of
/// pages through logs in `<path>/.hicache` (`folder_log`), which are read in the background when
/// the folder is opened; no other file is scanned. When the bound is reached or the disk is full,
/// evicts the least recently used pages without a stored child, and only pages that hicache wrote.
/// A file that does not verify on read (magic, version, key, namespace, length, checksum) is
/// removed. Nothing is synced to the disk: after a power failure a torn page does not verify.
///
/// Calls block, take a batch, and answer per page in order, as storage_backend's; any thread,
/// several at a time. Namespaces are identified by `fingerprint_of`.
class page_files {
public:
  /// @param clock Must outlive the files.
  /// @returns io_failure, store_full or invalid_argument, with a sentence.
  static result<std::unique_ptr<page_files>> open(const page_files_options& options,
                                                  const clock_source& clock);

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline);

  /// Reads pages of a namespace, or of any, as blocking_store::read.
  std::vector<result<uint64_t>> read(std::span<const page_read> pages,
                                     std::optional<uint64_t> fingerprint, part_lengths rule,
                                     time_point deadline);

  /// Stores pages of a namespace, as storage_backend::write.
  std::vector<result<void>> set(std::span<const page_write> pages, uint64_t fingerprint,
                                time_point deadline);

  /// As storage_backend::remove.
  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline);

  /// As storage_backend::watch_evictions, without bytes, of what this process evicts. It is told at
  /// the end of the call that evicts.
  void watch_evictions(storage_backend::eviction_watch watch);

  /// As storage_backend::list.
  result<object_list> list(const std::string& from, time_point deadline);

  backend_health health();

private:
  page_files(page_folder folder, folder_log log, const page_files_options& options,
             const clock_source& clock);

  // -- reading ----------------------------------------------------------------

  /// Checks the file system, because other processes write to the folder too.
  bool file_exists(const page_key& key) const;

  /// @returns the page's length
  result<uint64_t> get_page(page_read page, std::optional<uint64_t> fingerprint, part_lengths rule,
                            std::vector<std::byte>& buffer);

  result<void> read_scattered(int fd, const std::string& path, const page_read& page,
                              std::optional<uint64_t> fingerprint,
                              std::vector<std::byte>& buffer) const;

  result<void> read_page(int fd, const std::string& path, const page_read& page,
                         std::optional<uint64_t> fingerprint) const;

  // -- writing ----------------------------------------------------------------

  result<void> set_page(const page_write& page, uint64_t fingerprint,
                        std::vector<std::byte>& buffer);

  /// Writes a page with reserved bytes: the header, and the parts.
  /// @returns store_full if the disk is full
  result<void> write_page(const page_write& page, const page_header& header);

  /// Reserves bytes for a file to be written, and protects its parent from eviction.
  result<void> reserve(const page_write& page, uint64_t bytes);

  /// @pre the lock is held
  void make_room(uint64_t bytes);

  /// Evicts pages of this many bytes after the disk turned out to be full.
  /// @returns false if there are none
  bool evict_for(const page_write& page, uint64_t bytes);

  /// @pre the lock is held
  bool evict(uint64_t bytes);

  void tell_evicted();

  // -- removing ---------------------------------------------------------------

  result<void> discard(const page_key& key);

  /// Drops the entry of a missing file, unless it has just come back.
  void forget(const page_key& key);

  /// @pre the lock is held
  void forget_known(const page_key& key);

  // -- events shared between processes ----------------------------------------

  /// A timestamp for an event, unique within this process.
  /// @pre the lock is held
  int64_t next_time();

  /// @pre the lock is held
  void use(const page_key& key);

  void tell_uses();

  /// Logs removals; processes that miss the event notice when they look for the file.
  /// @pre the lock is held
  void tell_removed(const std::vector<page_key>& keys);

  void hear_news();

  /// @pre the lock is held
  /// @returns false if there were no events
  bool apply(std::span<const folder_event> events);

  // -- opening ----------------------------------------------------------------

  /// Loads the folder's state from the logs. Reads and writes continue meanwhile.
  void load(const std::stop_token& stop);

  /// Adopts the pages of a folder without logs, written by an older version.
  void adopt(const std::stop_token& stop);

  /// Rewrites the content of old logs into this process's log, and removes them.
  /// @pre the lock is held
  void gather_logs();

  // -- data -------------------------------------------------------------------

  const page_folder folder_;
  /// 0 for none.
  const uint64_t capacity_;
  const bool keeps_broken_;
  const clock_source& clock_;
  /// Guards the following members. Never held while page bytes move.
  fair_mutex mutex_;
  std::condition_variable_any loaded_;
  bool is_loaded_ = false;
  folder_log log_;
  folder_table table_;
  std::vector<folder_event> uses_;
  storage_backend::eviction_watch watch_;
  /// To be told.
  std::vector<evicted_object> evicted_;
  int64_t last_time_ = 0;
  /// Bytes of files being written.
  uint64_t reserved_ = 0;
  backend_counters counters_;
  // Last, so that it ends before the members that it uses go.
  std::jthread loader_;
};

} // namespace hicache
