#include "backends/serde/key_source.hpp"

#include "base/immovable.hpp"
#include "base/shell_process.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"
#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>

namespace hicache::serde {

namespace {

using steady = std::chrono::steady_clock;

/// Text that is wiped when it is destroyed, and never moves, so that no copies stay behind.
class secret_text : immovable {
public:
  secret_text() : bytes_(std::make_unique<std::array<char, key_text_bytes + 1>>()) {}
  ~secret_text() { wipe(std::as_writable_bytes(std::span{*bytes_})); }

  /// Appends what one read brings.
  /// @returns as ::read
  ssize_t read_from(int fd) {
    const auto count = ::read(fd, bytes_->data() + size_, bytes_->size() - size_);
    size_ += count > 0 ? static_cast<size_t>(count) : 0;
    return count;
  }

  bool is_too_long() const { return size_ > key_text_bytes; }

  std::string_view view() const { return {bytes_->data(), size_}; }

private:
  std::unique_ptr<std::array<char, key_text_bytes + 1>> bytes_;
  size_t size_ = 0;
};

tl::unexpected<error> failure(const std::string& what, int number) {
  return fail(ec::io_failure, what + ": " + system_message(number));
}

tl::unexpected<error> too_long(const std::string& what) {
  return fail(ec::io_failure,
              what + " has more than the " + std::to_string(key_text_bytes) + " bytes allowed");
}

tl::unexpected<error> expired() {
  return fail(ec::deadline_exceeded, "the key command did not end in time");
}

/// Reads until the end of the text or the deadline.
result<void> read_until(int fd, secret_text& text, steady::time_point deadline) {
  while (!text.is_too_long()) {
    const auto left
      = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady::now()).count();
    auto waiting = pollfd{fd, POLLIN, 0};
    const auto ready = left <= 0 ? 0 : ::poll(&waiting, 1, static_cast<int>(left));
    if (ready == 0)
      return expired();
    if (ready < 0 && errno == EINTR)
      continue;
    const auto count = ready < 0 ? -1 : text.read_from(fd);
    if (count == 0)
      return {};
    if (count < 0 && errno != EINTR)
      return failure("the output of the key command could not be read", errno);
  }
  return too_long("the output of the key command");
}

} // namespace

result<key_ring> read_key_file(const std::string& path) {
  const auto file = unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file)
    return failure("the key file '" + path + "' could not be opened", errno);
  auto text = secret_text{};
  auto count = ssize_t{1};
  while (count != 0 && !text.is_too_long()) {
    count = text.read_from(file.get());
    if (count < 0 && errno != EINTR)
      return failure("the key file '" + path + "' could not be read", errno);
  }
  if (text.is_too_long())
    return too_long("the key file '" + path + "'");
  return key_ring::parse(text.view());
}

result<key_ring> run_key_command(const std::string& command, std::chrono::milliseconds time) {
  const auto deadline = steady::now() + time;
  auto ends = std::array<int, 2>{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return failure("no pipe could be made for the key command", errno);
  const auto output = unique_fd{ends[0]};
  auto input = unique_fd{ends[1]};
  auto shell = shell_process::start(command, std::array{std::pair{input.get(), STDOUT_FILENO}});
  if (!shell)
    return fail(ec::io_failure, "the key command could not be started: " + shell.error().detail);
  input = unique_fd{};
  auto text = secret_text{};
  HICACHE_TRY(read_until(output.get(), text, deadline));
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady::now());
  const auto status = shell->await(std::max(left, std::chrono::milliseconds{0}));
  if (!status)
    return expired();
  if (*status != 0)
    return fail(ec::io_failure, "the key command " + describe_end(*status));
  return key_ring::parse(text.view());
}

} // namespace hicache::serde
