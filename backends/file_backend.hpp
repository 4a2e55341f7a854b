#pragma once

#include "backends/storage_backend.hpp"

#include <memory>
#include <string>

namespace hicache {

/// Which part of a folder's bound is this process's, where several processes (the ranks of an
/// instance) share a folder.
struct folder_share {
  /// From 0.
  uint32_t index = 0;
  uint32_t count = 1;
};

struct file_backend_options {
  /// The folder; created if it does not exist.
  std::string path;
  /// Bound on the sizes of the files of all sharing processes; 0 for none. Each process accounts
  /// for max_bytes / share.count: for the files it writes, and for its part, by key, of the files
  /// that it finds at the start. Files that others write meanwhile are read, but not counted here.
  uint64_t max_bytes = 0;
  folder_share share = {};
  /// `fingerprint_of` the namespace. A page of another one does not verify.
  uint64_t fingerprint = 0;
};

/// Keeps each page in a file of its own, which outlives the process: `<path>/<2 hex>/<64 hex>.kv`,
/// an encoded page_header and the page's bytes. Drops the files used longest ago to make room; uses
/// are remembered in memory, and a restart goes by the files' times. Files that are no pages are
/// left alone. A file that does not verify (magic, version, key, namespace, length, checksum) is
/// removed when it is read. Nothing is synced to the disk: after a power failure a torn page does
/// not verify.
/// @param clock Must outlive the store.
/// @returns io_failure, store_full or invalid_argument, with a sentence, if the folder cannot be
/// used.
result<std::unique_ptr<storage_backend>> make_file_backend(file_backend_options options,
                                                           const clock_source& clock);

} // namespace hicache
