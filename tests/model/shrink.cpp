#include "tests/model/shrink.hpp"

#include "base/check.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

namespace hicache::test {

namespace {

sequence without(const sequence& whole, size_t begin, size_t end) {
  auto rest = whole;
  rest.actions.erase(rest.actions.begin() + static_cast<ptrdiff_t>(begin),
                     rest.actions.begin() + static_cast<ptrdiff_t>(end));
  return rest;
}

} // namespace

bool passes_in_child(const std::function<bool()>& body, child_output output) {
  const auto child = fork();
  HICACHE_CHECK(child >= 0);
  if (child == 0) {
    if (output == child_output::silent)
      dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    _exit(body() ? 0 : 1);
  }
  auto status = 0;
  HICACHE_CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

sequence shrink(sequence from, const fault_test& shows) {
  for (auto size = from.actions.size(); size > 0;) {
    auto is_shorter = false;
    for (auto end = from.actions.size(); end > 0;) {
      const auto begin = end - std::min(end, size);
      if (auto rest = without(from, begin, end); shows(rest)) {
        from = std::move(rest);
        is_shorter = true;
      }
      end = begin;
    }
    // A shorter sequence may allow what a longer one did not.
    size = size == 1 && is_shorter ? 1 : size / 2;
  }
  return from;
}

void write_log(const sequence& played, const std::filesystem::path& path,
               const apply_function& apply) {
  const auto body = [&] {
    auto file = std::ofstream{path};
    play_alone(played, &file, apply);
    return true;
  };
  static_cast<void>(passes_in_child(body, child_output::silent));
}

} // namespace hicache::test
