#pragma once

#include "backends/storage_backend.hpp"

#include <memory>
#include <string>

namespace hicache {

struct file_backend_options {
  /// The folder; created if it does not exist.
  std::string path;
  /// Bound on the sizes of the pages' files, whoever wrote them; 0 for none. Each process that uses
  /// the folder keeps to its own bound. Processes hear of each other's writes before each batch of
  /// their own, so together they may exceed it by what they write at the same time.
  uint64_t max_bytes = 0;
  /// `fingerprint_of` the namespace. A page of another one does not verify.
  uint64_t fingerprint = 0;
};

/// Keeps each page in a file of its own, which outlives the process: `<path>/<2 hex>/<64 hex>.kv`,
/// an encoded page_header and the page's bytes. What is there, what belongs to what and what was
/// used when, processes tell each other in `<path>/.hicache` (`folder_log`); that is read in the
/// background when the folder is opened, and no other file is looked at. To make room, and when the
/// disk is full, drops the pages used longest ago among those without a stored child. Evicts only
/// pages that hicache wrote. A file that does not verify (magic, version, key, namespace, length,
/// checksum) is removed when it is read. Nothing is synced to the disk: after a power failure a
/// torn page does not verify.
/// @param clock Must outlive the store.
/// @returns io_failure, store_full or invalid_argument, with a sentence, if the folder cannot be
/// used.
result<std::unique_ptr<storage_backend>> make_file_backend(file_backend_options options,
                                                           const clock_source& clock);

} // namespace hicache
