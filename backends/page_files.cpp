#include "backends/page_files.hpp"

#include "backends/store_outcomes.hpp"
#include "base/limits.hpp"
#include "base/page_checksum.hpp"
#include "base/try.hpp"
#include "base/units.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <utility>

namespace hicache {

namespace {

/// Constant, because a file name is never reused.
constexpr uint32_t file_generation = 1;

/// Objects with smaller parts on average use a buffer: copying 256 bytes is cheaper than an iovec.
constexpr uint64_t short_part_bytes = 4096;

template <class Byte>
bool is_scattered(const std::vector<std::span<Byte>>& parts) {
  return parts.size() > 1 && total_bytes(parts) / parts.size() < short_part_bytes;
}

using header_bytes = std::array<std::byte, page_header_bytes>;

/// The header and the parts as one list for readv or writev.
template <class Byte>
std::vector<iovec> pieces_of(header_bytes& header, const std::vector<std::span<Byte>>& parts) {
  auto pieces = std::vector<iovec>{{header.data(), header.size()}};
  pieces.reserve(parts.size() + 1);
  for (const auto& part : parts)
    pieces.push_back({const_cast<std::byte*>(part.data()), part.size()});
  return pieces;
}

/// A temporary file, removed unless it was published.
class temporary_file {
public:
  explicit temporary_file(std::pair<unique_fd, std::string> made)
    : file_(std::move(made.first)), path_(std::move(made.second)) {}
  temporary_file(temporary_file&& other) noexcept
    : file_(std::move(other.file_)), path_(std::exchange(other.path_, {})) {}
  temporary_file& operator=(temporary_file&&) = delete;
  ~temporary_file() {
    if (!path_.empty())
      ::unlink(path_.c_str());
  }

  int fd() const noexcept { return file_.get(); }

  const std::string& path() const noexcept { return path_; }

  /// The file has been renamed; do not remove it.
  void is_published() noexcept { path_.clear(); }

private:
  unique_fd file_;
  std::string path_;
};

result<temporary_file> write_temporary(const std::string& directory, const page_write& page,
                                       const page_header& header) {
  auto file = temporary_file{HICACHE_TRY(page_folder::make_temporary(directory, page.key))};
  auto encoded = header_bytes{};
  encode_page_header(header, encoded);
  const auto file_bytes = page_header_bytes + header.length;
  const auto written = write_pieces(file.fd(), pieces_of(encoded, page.parts));
  if (written.error != 0 || written.bytes != file_bytes)
    return file_failure("write", file.path(), written.error != 0 ? written.error : EIO);
  return file;
}

/// The length of an open page, as far as its file tells; nothing if that is not known.
std::optional<uint64_t> length_of(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) < page_header_bytes)
    return std::nullopt;
  return static_cast<uint64_t>(info.st_size) - page_header_bytes;
}

/// Nanoseconds since 1970.
int64_t wall_time() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
           std::chrono::system_clock::now().time_since_epoch())
    .count();
}

} // namespace

page_files::page_files(page_folder folder, folder_log log, const page_files_options& options,
                       const clock_source& clock)
  : folder_(std::move(folder)), capacity_(options.max_bytes), keeps_broken_(options.keeps_broken),
    clock_(clock), log_(std::move(log)), loader_([this](std::stop_token stop) { load(stop); }) {
  auto lock = std::unique_lock{mutex_};
  loaded_.wait_for(lock, limits::folder_load_wait, [this] { return is_loaded_; });
}

result<std::unique_ptr<page_files>> page_files::open(const page_files_options& options,
                                                     const clock_source& clock) {
  auto folder = HICACHE_TRY(page_folder::open(options.path));
  auto log = HICACHE_TRY(folder_log::open(folder.path()));
  return std::unique_ptr<page_files>{
    new page_files{std::move(folder), std::move(log), options, clock}};
}

std::vector<bool> page_files::exists(std::span<const page_key> keys, time_point deadline) {
  auto answers = std::vector<bool>(keys.size(), false);
  for (auto i = size_t{0}; i < keys.size() && clock_.now() < deadline; ++i)
    answers[i] = file_exists(keys[i]);
  return answers;
}

std::vector<result<uint64_t>> page_files::read(std::span<const page_read> pages,
                                               std::optional<uint64_t> fingerprint,
                                               part_lengths rule, time_point deadline) {
  auto answers = std::vector<result<uint64_t>>{};
  auto buffer = std::vector<std::byte>{};
  for (const auto& page : pages)
    answers.push_back(clock_.now() < deadline ? get_page(page, fingerprint, rule, buffer)
                                              : fail(ec::deadline_exceeded));
  {
    // Once for all: threads that read side by side would wake each other for each page.
    const auto lock = std::scoped_lock{mutex_};
    for (auto i = size_t{0}; i < pages.size(); ++i) {
      counters_.count_get(answers[i]);
      if (answers[i])
        use(pages[i].key);
    }
  }
  tell_uses();
  return answers;
}

std::vector<result<void>> page_files::set(std::span<const page_write> pages, uint64_t fingerprint,
                                          time_point deadline) {
  hear_news();
  auto answers = std::vector<result<void>>{};
  auto buffer = std::vector<std::byte>{};
  for (const auto& page : pages)
    answers.push_back(clock_.now() < deadline ? set_page(page, fingerprint, buffer)
                                              : fail(ec::deadline_exceeded));
  {
    const auto lock = std::scoped_lock{mutex_};
    for (const auto& answer : answers)
      counters_.count_set(answer);
  }
  tell_uses();
  tell_evicted();
  return answers;
}

std::vector<result<void>> page_files::remove(std::span<const page_key> keys, time_point deadline) {
  auto answers = std::vector<result<void>>{};
  for (const auto& key : keys)
    answers.push_back(clock_.now() < deadline ? discard(key) : fail(ec::deadline_exceeded));
  return answers;
}

void page_files::watch_evictions(storage_backend::eviction_watch watch) {
  const auto lock = std::scoped_lock{mutex_};
  watch_ = std::move(watch);
}

result<object_list> page_files::list(const std::string& from, time_point deadline) {
  auto lock = std::unique_lock{mutex_};
  while (!is_loaded_) {
    const auto left = deadline - clock_.now();
    if (left <= duration{0})
      return fail(ec::deadline_exceeded, "the folder's logs are still being read");
    loaded_.wait_for(lock, std::min<duration>(left, limits::folder_load_wait));
  }
  auto listed = table_.list(from);
  if (listed)
    for (auto& page : listed->objects)
      page.bytes -= std::min<uint64_t>(page.bytes, page_header_bytes);
  return listed;
}

backend_health page_files::health() {
  auto answer = backend_health{};
  if (::access(folder_.path().c_str(), W_OK | X_OK) != 0) {
    answer.ok = false;
    answer.detail = file_failure("use", folder_.path(), errno).value().detail;
  }
  hear_news();
  const auto lock = std::scoped_lock{mutex_};
  answer.objects = table_.size();
  answer.bytes = table_.bytes();
  answer.capacity_bytes = capacity_;
  answer.counters = counters_;
  return answer;
}

// -- reading ----------------------------------------------------------------

bool page_files::file_exists(const page_key& key) const {
  return ::access(folder_.page_path(key).c_str(), F_OK) == 0;
}

result<uint64_t> page_files::get_page(page_read page, std::optional<uint64_t> fingerprint,
                                      part_lengths rule, std::vector<std::byte>& buffer) {
  const auto path = folder_.page_path(page.key);
  const auto file = unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file) {
    if (errno != ENOENT)
      return file_failure("open", path, errno);
    forget(page.key);
    return fail(ec::not_found);
  }
  // A file that is longer, or too short for a header, fails when it is read.
  const auto length = rule == part_lengths::bounded ? length_of(file.get()) : std::nullopt;
  if (length && *length <= total_bytes(page.parts))
    page.parts = part_of<std::byte>(page.parts, 0, *length);
  auto answer = is_scattered(page.parts)
                  ? read_scattered(file.get(), path, page, fingerprint, buffer)
                  : read_page(file.get(), path, page, fingerprint);
  if (!answer && answer.error().code == ec::corrupt_page && !keeps_broken_)
    static_cast<void>(discard(page.key));
  return answer.map([&] { return total_bytes(page.parts); });
}

result<void> page_files::read_scattered(int fd, const std::string& path, const page_read& page,
                                        std::optional<uint64_t> fingerprint,
                                        std::vector<std::byte>& buffer) const {
  buffer.resize(total_bytes(page.parts));
  auto read = read_page(fd, path, {page.key, {buffer}}, fingerprint);
  if (read)
    scatter(buffer.data(), page.parts);
  return read;
}

result<void> page_files::read_page(int fd, const std::string& path, const page_read& page,
                                   std::optional<uint64_t> fingerprint) const {
  struct stat info {};
  if (::fstat(fd, &info) != 0)
    return file_failure("read", path, errno);
  const auto file_bytes = static_cast<uint64_t>(info.st_size);
  const auto length = total_bytes(page.parts);
  const auto length_fits = file_bytes == page_header_bytes + length;
  auto header = header_bytes{};
  // If the lengths differ, the header alone shows whether the file or the caller is wrong.
  const auto read
    = read_pieces(fd, length_fits ? pieces_of(header, page.parts)
                                  : std::vector<iovec>{{header.data(), header.size()}});
  if (read.error != 0)
    return file_failure("read", path, read.error);
  if (read.bytes < page_header_bytes + (length_fits ? length : 0))
    return fail(ec::corrupt_page, "'" + path + "' is short");
  const auto decoded = decode_page_header(header);
  if (!decoded)
    return fail(ec::corrupt_page, "'" + path + "': " + decoded.error().detail);
  if (decoded->key != page.key)
    return fail(ec::corrupt_page, "'" + path + "' holds a page of another key");
  if (fingerprint && decoded->fingerprint != *fingerprint)
    return tl::unexpected{other_namespace()};
  if (decoded->generation != file_generation)
    return fail(ec::corrupt_page, "'" + path + "' has a generation that no file has");
  if (decoded->length != file_bytes - page_header_bytes)
    return fail(ec::corrupt_page, "'" + path + "' has not the length that its header says");
  if (!length_fits)
    return fail(ec::invalid_argument, "'" + path + "' holds " + std::to_string(decoded->length)
                                        + " bytes, the parts " + std::to_string(length));
  if (decoded->checksum != page_checksum(page.parts))
    return fail(ec::corrupt_page, "'" + path + "' has not the checksum that its header says");
  return {};
}

// -- writing ----------------------------------------------------------------

result<void> page_files::set_page(const page_write& page, uint64_t fingerprint,
                                  std::vector<std::byte>& buffer) {
  {
    const auto lock = std::scoped_lock{mutex_};
    use(page.key);
    if (file_exists(page.key))
      return {};
  }
  if (is_scattered(page.parts)) {
    buffer.resize(total_bytes(page.parts));
    gather(page.parts, buffer.data());
  }
  const auto parts = is_scattered(page.parts) ? decltype(page.parts){{buffer}} : page.parts;
  const auto length = total_bytes(page.parts);
  const auto file_bytes = page_header_bytes + length;
  for (auto attempt = 0;; ++attempt) {
    HICACHE_TRY(reserve(page, file_bytes));
    const auto header
      = page_header{file_generation, fingerprint, page.key, length, page_checksum(page.parts)};
    auto written = write_page({page.key, page.parent, parts}, header);
    if (written || written.error().code != ec::store_full
        || attempt == limits::full_disk_attempts - 1 || !evict_for(page, file_bytes << attempt))
      return written;
  }
}

result<void> page_files::write_page(const page_write& page, const page_header& header) {
  auto file = write_temporary(log_.path(), page, header);
  const auto file_bytes = page_header_bytes + header.length;
  // Under the lock, so that the table entry and the file change together.
  const auto lock = std::scoped_lock{mutex_};
  reserved_ -= file_bytes;
  table_.release(page.parent);
  if (!file)
    return tl::unexpected{file.error()};
  // Logged before publishing: others may briefly count a missing page, but do not miss one.
  const auto time = next_time();
  if (auto told = log_.append(std::vector{
        folder_event{folder_event::action::added, page.key, page.parent, file_bytes, time}});
      !told)
    return told;
  if (const auto failed = folder_.publish(file->path(), page.key); failed != 0) {
    tell_removed({page.key});
    return file_failure("write", folder_.page_path(page.key), failed);
  }
  file->is_published();
  table_.add(page.key, page.parent, file_bytes, time);
  return {};
}

result<void> page_files::reserve(const page_write& page, uint64_t bytes) {
  const auto lock = std::scoped_lock{mutex_};
  if (capacity_ != 0 && bytes > capacity_)
    return fail(ec::store_full, "a page of " + format_bytes(bytes) + " does not fit into "
                                  + format_bytes(capacity_));
  table_.hold(page.parent);
  make_room(bytes);
  if (capacity_ != 0 && table_.bytes() + reserved_ + bytes > capacity_) {
    table_.release(page.parent);
    return fail(ec::store_full, "pages being written, and those before them, fill the store");
  }
  reserved_ += bytes;
  return {};
}

void page_files::make_room(uint64_t bytes) {
  if (const auto wanted = table_.bytes() + reserved_ + bytes; capacity_ != 0 && wanted > capacity_)
    evict(wanted - capacity_);
}

bool page_files::evict_for(const page_write& page, uint64_t bytes) {
  const auto lock = std::scoped_lock{mutex_};
  table_.hold(page.parent);
  const auto any = evict(bytes);
  table_.release(page.parent);
  return any;
}

bool page_files::evict(uint64_t bytes) {
  auto gone = std::vector<page_key>{};
  for (auto freed = uint64_t{0}; freed < bytes;) {
    const auto oldest = table_.oldest();
    if (!oldest)
      break;
    freed += table_.bytes_of(*oldest);
    if (watch_)
      evicted_.push_back({*oldest, table_.parent_of(*oldest), {}});
    // It is equally gone if another process has already removed the file.
    ::unlink(folder_.page_path(*oldest).c_str());
    table_.remove(*oldest, next_time());
    gone.push_back(*oldest);
    ++counters_.evicted;
  }
  tell_removed(gone);
  return !gone.empty();
}

void page_files::tell_evicted() {
  auto watch = storage_backend::eviction_watch{};
  auto evicted = std::vector<evicted_object>{};
  {
    const auto lock = std::scoped_lock{mutex_};
    watch = watch_;
    evicted = std::exchange(evicted_, {});
  }
  if (watch && !evicted.empty())
    watch(evicted);
}

// -- removing ---------------------------------------------------------------

result<void> page_files::discard(const page_key& key) {
  const auto lock = std::scoped_lock{mutex_};
  const auto path = folder_.page_path(key);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return file_failure("remove", path, errno);
  forget_known(key);
  return {};
}

void page_files::forget(const page_key& key) {
  const auto lock = std::scoped_lock{mutex_};
  if (table_.contains(key) && !file_exists(key))
    forget_known(key);
}

void page_files::forget_known(const page_key& key) {
  if (!table_.contains(key))
    return;
  table_.remove(key, next_time());
  tell_removed({key});
}

// -- events shared between processes ----------------------------------------

int64_t page_files::next_time() {
  last_time_ = std::max(last_time_ + 1, wall_time());
  return last_time_;
}

void page_files::use(const page_key& key) {
  const auto time = next_time();
  const auto before = table_.use(key, time);
  if (before && time - *before > std::chrono::nanoseconds{limits::folder_use_pause}.count())
    uses_.push_back({folder_event::action::used, key, {}, 0, time});
}

void page_files::tell_uses() {
  const auto lock = std::scoped_lock{mutex_};
  if (!uses_.empty())
    static_cast<void>(log_.append(std::exchange(uses_, {}))); // Only affects the eviction order.
}

void page_files::tell_removed(const std::vector<page_key>& keys) {
  auto events = std::vector<folder_event>{};
  for (const auto& key : keys)
    events.push_back({folder_event::action::removed, key, {}, 0, last_time_});
  if (!events.empty())
    static_cast<void>(log_.append(events));
}

void page_files::hear_news() {
  const auto lock = std::scoped_lock{mutex_};
  if (is_loaded_)
    while (apply(log_.news()))
      continue;
}

bool page_files::apply(std::span<const folder_event> events) {
  for (const auto& event : events)
    switch (event.what) {
      case folder_event::action::added:
        table_.add(event.key, event.parent, event.bytes, event.time);
        break;
      case folder_event::action::removed:
        table_.remove(event.key, event.time);
        break;
      case folder_event::action::used:
        table_.use(event.key, event.time);
        break;
    }
  return !events.empty();
}

// -- opening ----------------------------------------------------------------

void page_files::load(const std::stop_token& stop) {
  folder_.remove_abandoned(log_.path());
  {
    const auto lock = std::scoped_lock{mutex_};
    table_.keep_removed(true);
  }
  if (!log_.has_others())
    adopt(stop);
  // In slices, so that reads and writes wait for milliseconds only: with ten million pages, parts
  // of the table grow every 300 pages for a while.
  constexpr auto slice = size_t{256};
  for (auto events = log_.news(); !events.empty() && !stop.stop_requested(); events = log_.news())
    for (auto first = size_t{0}; first < events.size(); first += slice) {
      {
        const auto lock = std::scoped_lock{mutex_};
        apply(std::span{events}.subspan(first, std::min(slice, events.size() - first)));
      }
      std::this_thread::yield();
    }
  const auto lock = std::scoped_lock{mutex_};
  table_.keep_removed(false);
  if (!stop.stop_requested() && log_.is_wasteful(table_.size()))
    gather_logs();
  make_room(0);
  is_loaded_ = true;
  loaded_.notify_all();
}

void page_files::adopt(const std::stop_token& stop) {
  for (const auto& directory : folder_.directories()) {
    if (stop.stop_requested())
      return;
    auto events = std::vector<folder_event>{};
    for (const auto& page : folder_.scan(directory))
      events.push_back({folder_event::action::added, page.key, {}, page.bytes, page.modified});
    const auto lock = std::scoped_lock{mutex_};
    if (apply(events))
      static_cast<void>(log_.append(events));
  }
}

void page_files::gather_logs() {
  auto events = std::vector<folder_event>{};
  table_.visit([&](const page_key& key, const page_key& parent, uint64_t bytes, int64_t used) {
    events.push_back({folder_event::action::added, key, parent, bytes, used});
  });
  if (log_.append(events))
    log_.drop_old();
}

} // namespace hicache
