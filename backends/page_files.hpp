#pragma once

#include "backends/fair_mutex.hpp"
#include "backends/folder_log.hpp"
#include "backends/folder_table.hpp"
#include "backends/page_folder.hpp"
#include "hicache/storage_backend.hpp"

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
  /// Bound on the sizes of the pages' files, whoever wrote them; 0 for none. Each process that uses
  /// the folder keeps to its own bound. Processes hear of each other's writes before each batch of
  /// their own, so together they may exceed it by what they write at the same time.
  uint64_t max_bytes = 0;
};

/// Pages in a folder, each in a file of its own which outlives the process: `<path>/<2 hex>/<64
/// hex>.kv`, an encoded page_header and the page's bytes. What is there, what belongs to what and
/// what was used when, processes tell each other in `<path>/.hicache` (`folder_log`); that is read
/// in the background when the folder is opened, and no other file is looked at. To make room, and
/// when the disk is full, drops the pages used longest ago among those without a stored child.
/// Evicts only pages that hicache wrote. A file that does not verify (magic, version, key,
/// namespace, length, checksum) is removed when it is read. Nothing is synced to the disk: after a
/// power failure a torn page does not verify.
///
/// Calls block, carry a batch, and answer per page in order, as storage_backend's; any thread,
/// several at a time. Namespaces are told by `fingerprint_of`.
class page_files {
public:
  /// @param clock Must outlive the files.
  /// @returns io_failure, store_full or invalid_argument, with a sentence, if the folder cannot be
  /// used.
  static result<std::unique_ptr<page_files>> open(const page_files_options& options,
                                                  const clock_source& clock);

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline);

  /// The lengths of pages of a namespace, by the headers of their files, which are not verified;
  /// nothing where there is no such page, or for those behind the deadline.
  std::vector<std::optional<uint32_t>> lengths(std::span<const page_key> keys, uint64_t fingerprint,
                                               time_point deadline);

  /// Reads pages of a namespace.
  /// @returns page_checksum of each page, or an error as storage_backend::get
  std::vector<result<uint64_t>> get(std::span<const page_read> pages, uint64_t fingerprint,
                                    time_point deadline);

  /// Keeps pages of a namespace, as storage_backend::set.
  /// @param checksums page_checksum of each page; computed here if it is empty.
  std::vector<result<void>> set(std::span<const page_write> pages,
                                std::span<const uint64_t> checksums, uint64_t fingerprint,
                                time_point deadline);

  /// As storage_backend::remove. A page of another namespace than this one is left alone.
  std::vector<result<void>> remove(std::span<const page_key> keys,
                                   std::optional<uint64_t> fingerprint, time_point deadline);

  /// The parts of the folder that pages lie in, for clear().
  std::vector<std::string> directories() const { return folder_.directories(); }

  /// Removes the pages of a namespace in one part of the folder, looking at each file.
  /// @returns how many
  uint64_t clear(const std::string& directory, uint64_t fingerprint);

  backend_health health();

private:
  page_files(page_folder folder, folder_log log, uint64_t capacity, const clock_source& clock);

  // -- reading ----------------------------------------------------------------

  /// Asks the file system, because other processes write to the folder too.
  bool file_exists(const page_key& key) const;

  result<uint64_t> get_page(const page_read& page, uint64_t fingerprint,
                            std::vector<std::byte>& buffer);

  result<uint64_t> read_scattered(int fd, const std::string& path, const page_read& page,
                                  uint64_t fingerprint, std::vector<std::byte>& buffer) const;

  result<uint64_t> read_page(int fd, const std::string& path, const page_read& page,
                             uint64_t fingerprint) const;

  // -- writing ----------------------------------------------------------------

  result<void> set_page(const page_write& page, std::optional<uint64_t> checksum,
                        uint64_t fingerprint, std::vector<std::byte>& buffer);

  /// Writes a page for which bytes are set aside: the header, and the parts.
  /// @returns store_full if the disk is full
  result<void> write_page(const page_write& page, const page_header& header);

  /// Sets bytes aside for a file that is about to be written, and keeps its parent.
  result<void> reserve(const page_write& page, uint64_t bytes);

  /// @pre the lock is held
  void make_room(uint64_t bytes);

  /// The disk has no room for a page: evicts others that take as many bytes.
  /// @returns false if there are none
  bool evict_for(const page_write& page, uint64_t bytes);

  /// @pre the lock is held
  bool evict(uint64_t bytes);

  // -- removing ---------------------------------------------------------------

  result<void> discard(const page_key& key);

  /// Drops the entry of a file that is not there, unless it has just come back.
  void forget(const page_key& key);

  /// @pre the lock is held
  void forget_known(const page_key& key);

  // -- what processes tell each other -----------------------------------------

  /// The time of an event. No two of this process are the same.
  /// @pre the lock is held
  int64_t next_time();

  /// @pre the lock is held
  void use(const page_key& key);

  void tell_uses();

  /// Others that do not hear of it find out when they look for the file.
  /// @pre the lock is held
  void tell_removed(const std::vector<page_key>& keys);

  void hear_news();

  /// @pre the lock is held
  /// @returns false if there was nothing
  bool apply(std::span<const folder_event> events);

  // -- opening ----------------------------------------------------------------

  /// Learns what the folder holds. Reads and writes go on meanwhile.
  void load(const std::stop_token& stop);

  /// Takes over the pages of a folder without logs: an older version wrote them.
  void adopt(const std::stop_token& stop);

  /// Writes down what logs of processes that are gone tell, and removes them.
  /// @pre the lock is held
  void gather_logs();

  // -- data -------------------------------------------------------------------

  const page_folder folder_;
  /// 0 for none.
  const uint64_t capacity_;
  const clock_source& clock_;
  /// Guards what follows. Never held while page bytes move.
  fair_mutex mutex_;
  std::condition_variable_any loaded_;
  bool is_loaded_ = false;
  folder_log log_;
  folder_table table_;
  std::vector<folder_event> uses_;
  int64_t last_time_ = 0;
  /// Bytes of files that are being written.
  uint64_t reserved_ = 0;
  backend_counters counters_;
  // Last, so that it has ended before what it uses is gone.
  std::jthread loader_;
};

} // namespace hicache
