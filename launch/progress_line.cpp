#include "launch/progress_line.hpp"

#include <absl/strings/str_format.h>

#include <unistd.h>

#include <cstdio>

namespace hicache {

namespace {

constexpr auto terminal_pause = std::chrono::milliseconds{200};
constexpr auto plain_pause = std::chrono::seconds{10};

} // namespace

progress_line::progress_line(bool shown, uint64_t total_requests)
  : shown_(shown), terminal_(isatty(STDERR_FILENO) == 1), total_(total_requests),
    start_(std::chrono::steady_clock::now()),
    next_(start_ + (terminal_ ? terminal_pause : std::chrono::milliseconds{plain_pause})) {}

void progress_line::show(uint64_t done, const replay_totals& so_far) {
  const auto now = std::chrono::steady_clock::now();
  if (!shown_ || now < next_)
    return;
  next_ = now + (terminal_ ? terminal_pause : std::chrono::milliseconds{plain_pause});
  const auto seconds = std::chrono::duration<double>(now - start_).count();
  const auto rate = static_cast<double>(done) / seconds;
  const auto hits = so_far.prompt_tokens == 0 ? 0.0
                                              : 100 * static_cast<double>(so_far.cached_tokens())
                                                  / static_cast<double>(so_far.prompt_tokens);
  const auto left = done == 0 ? 0.0 : static_cast<double>(total_ - done) / rate;
  const auto text
    = absl::StrFormat("%d of %d requests, %.1f/s, %.1f %% of tokens cached, %.0f s left", done,
                      total_, rate, hits, left);
  // "\r" and "erase to end of line" redraw in place.
  std::fprintf(stderr, terminal_ ? "\r%s\033[K" : "%s\n", text.c_str());
  std::fflush(stderr);
  drawn_ = terminal_;
}

void progress_line::finish() {
  if (drawn_)
    std::fputc('\n', stderr);
  drawn_ = false;
}

} // namespace hicache
