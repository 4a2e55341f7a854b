#pragma once

#include "backends/blocking_store.hpp"
#include "backends/page_files.hpp"

#include <cstdint>
#include <memory>
#include <optional>

namespace hicache {

struct file_backend_options {
  page_files_options files;
  /// `fingerprint_of` the namespace. Pages of another one do not verify. Empty: pages of any
  /// verify, and none are written.
  std::optional<uint64_t> fingerprint = 0;
};

/// Stores the pages of one namespace in a folder; see page_files.
/// @param clock Must outlive the store.
/// @returns as page_files::open.
result<std::unique_ptr<blocking_store>> make_file_backend(const file_backend_options& options,
                                                          const clock_source& clock);

} // namespace hicache
