#pragma once

#include "base/immovable.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace hicache {

/// Progress on standard error: one redrawn line on a terminal, occasional plain lines otherwise.
class status_line : immovable {
public:
  status_line() = default;

  ~status_line() {
    if (drawn_ && terminal_)
      std::fputc('\n', stderr);
  }

  /// Shows a text, unless another one was shown a moment ago.
  /// @param text Returns it.
  template <class Text>
  void show(Text text) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_)
      return;
    next_ = now + pause();
    const std::string shown = text();
    std::fprintf(stderr, terminal_ ? "\r%s\033[K" : "%s\n", shown.c_str());
    std::fflush(stderr);
    drawn_ = true;
  }

private:
  std::chrono::milliseconds pause() const {
    return terminal_ ? std::chrono::milliseconds{200} : std::chrono::seconds{10};
  }

  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + pause();
};

} // namespace hicache
