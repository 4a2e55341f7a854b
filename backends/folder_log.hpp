#pragma once

#include "base/unique_fd.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// A change of one page in a folder.
struct folder_event {
  enum class action : uint8_t { added, removed, used };

  action what = action::added;
  page_key key;
  /// added: the page before it.
  page_key parent{};
  /// added: the size of its file.
  uint64_t bytes = 0;
  /// Nanoseconds since 1970, by the writer's clock.
  int64_t time = 0;

  friend bool operator==(const folder_event&, const folder_event&) = default;
};

/// The log of a folder's pages, shared by all processes that use the folder. Each process appends
/// to its own file, `<folder>/.hicache/<16 hex>.log`, and reads the others' files incrementally. So
/// no two processes write to one file and nothing is locked, which suits network file systems.
/// Entries with wrong checksums are skipped. Not thread-safe, but `news` may run beside `append`.
class folder_log {
public:
  /// Creates a log in the folder, which must exist.
  static result<folder_log> open(const std::string& folder);

  /// Directory of the logs and of files that are being written.
  const std::string& path() const noexcept { return path_; }

  /// Whether other logs existed when this one was created.
  bool has_others() const noexcept { return has_others_; }

  /// Appends events for the other processes. After an error they may see the first events.
  result<void> append(std::span<const folder_event> events);

  /// New events of the other processes, sorted by time; some 100,000 at a time, empty at the end.
  std::vector<folder_event> news();

  /// Whether the old logs are too many, or several times as large as this many pages need, since
  /// they mention many pages that are gone. Counts only logs without recent writes.
  bool is_wasteful(uint64_t pages);

  /// Removes the logs without recent writes that were read to their ends.
  /// @pre this log has their content
  void drop_old();

private:
  folder_log(std::string path, std::string name, unique_fd file)
    : path_(std::move(path)), name_(std::move(name)), file_(std::move(file)) {}

  struct followed_log {
    unique_fd file;
    uint64_t read_bytes = 0;
  };

  /// Logs without writes for limits::folder_log_age that were read to their ends.
  std::vector<std::string> old_logs() const;

  std::string path_;
  /// Guards the name, which changes if another process removed this log by mistake.
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  std::string name_;
  unique_fd file_;
  bool has_others_ = false;
  std::map<std::string, followed_log> others_;
};

} // namespace hicache
