#pragma once

#include "base/unique_fd.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// Format of pages in a folder, and the few system calls on them.
namespace hicache {

/// Progress of a transfer: all bytes if `error` is 0 and the file was long enough.
struct transfer_outcome {
  uint64_t bytes = 0;
  /// An errno value, or 0.
  int error = 0;
};

/// Fills the pieces from the start of the file, in order, until they are full or the file ends.
transfer_outcome read_pieces(int fd, std::vector<iovec> pieces);

/// Writes the pieces to the start of the file, in order.
transfer_outcome write_pieces(int fd, std::vector<iovec> pieces);

/// The names in a folder, as far as it can be read.
std::vector<std::string> names_in(const std::string& folder);

/// "cannot <action> '<path>': <reason>", as io_failure, or as store_full if the reason is a full
/// disk or quota.
tl::unexpected<error> file_failure(const std::string& action, const std::string& path,
                                   int error_number);

/// A folder of pages: `<2 hex>/<64 hex>.kv`, where the directory repeats the first two digits, so
/// that no directory grows large. Files with other names are ignored.
class page_folder {
public:
  struct found_page {
    page_key key;
    uint64_t bytes = 0;
    /// Nanoseconds since 1970.
    int64_t modified = 0;
  };

  /// Creates the folder if it does not exist, and checks that it is writable.
  /// @returns io_failure or store_full with a sentence.
  static result<page_folder> open(std::string path);

  const std::string& path() const noexcept { return path_; }

  std::string page_path(const page_key& key) const;

  /// A new temporary file for this page, in another folder of the same file system, and its path.
  static result<std::pair<unique_fd, std::string>> make_temporary(const std::string& directory,
                                                                  const page_key& key);

  /// Renames a temporary file to the name of its page.
  /// @returns 0 or an errno value.
  int publish(const std::string& temporary, const page_key& key) const;

  /// Removes abandoned temporary files: those that are too old by the file system's clock.
  static void remove_abandoned(const std::string& directory);

  /// The names of the directories that contain pages.
  std::vector<std::string> directories() const;

  /// The pages of one directory: files that begin with the header of the page in their name. Reads
  /// each; skips unreadable ones, which a cache treats as missing.
  std::vector<found_page> scan(const std::string& directory) const;

private:
  explicit page_folder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

} // namespace hicache
