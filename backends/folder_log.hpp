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

/// What happened to one page of a folder.
struct folder_event {
  enum class action : uint8_t { added, removed, used };

  action what = action::added;
  page_key key;
  /// added: the page before it.
  page_key parent{};
  /// added: the size of its file.
  uint64_t bytes = 0;
  /// Nanoseconds since 1970, by the clock of who did it.
  int64_t time = 0;

  friend bool operator==(const folder_event&, const folder_event&) = default;
};

/// What all processes that use a folder of pages tell each other: which pages are there. Each
/// process appends to a file of its own, `<folder>/.hicache/<16 hex>.log`, and reads those of the
/// others from where it stopped. So no two processes write to one file and nothing is locked, which
/// suits network file systems. An entry has a checksum; what does not fit is skipped. Not
/// thread-safe, but for `news`, which may run beside `append`.
class folder_log {
public:
  /// Begins a log in the folder, which exists.
  static result<folder_log> open(const std::string& folder);

  /// Where the logs are, and files that are being written.
  const std::string& path() const noexcept { return path_; }

  /// Whether other logs were there when this one began.
  bool has_others() const noexcept { return has_others_; }

  /// Tells the others. After an error they may know of the first events.
  result<void> append(std::span<const folder_event> events);

  /// What the others told since the last call, the earliest first; some 100,000 events at a time,
  /// none if that is all.
  std::vector<folder_event> news();

  /// Whether reading the logs takes several times as long as it has to for so many pages, since
  /// they tell of many that are gone. Only logs that nobody has written to for a while count.
  bool is_wasteful(uint64_t pages);

  /// Removes the logs that nobody has written to for a while and that were read to their ends.
  /// @pre what they told is in this one
  void drop_old();

private:
  folder_log(std::string path, std::string name, unique_fd file)
    : path_(std::move(path)), name_(std::move(name)), file_(std::move(file)) {}

  struct followed_log {
    unique_fd file;
    uint64_t read_bytes = 0;
  };

  /// Logs that nobody has written to for limits::folder_log_age, and that were read.
  std::vector<std::string> old_logs() const;

  std::string path_;
  /// Guards the name, which changes when others took this log for that of a process that is gone.
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  std::string name_;
  unique_fd file_;
  bool has_others_ = false;
  std::map<std::string, followed_log> others_;
};

} // namespace hicache
