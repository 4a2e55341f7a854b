#include "transport/rank_process.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <optional>
#include <sstream>

namespace hicache {

namespace {

/// Fields of /proc/PID/stat, see proc(5).
struct process_status {
  char state = '?';
  uint64_t start_time = 0;
};

std::optional<process_status> read_status(const std::string& pid) {
  auto file = std::ifstream{"/proc/" + pid + "/stat"};
  auto line = std::string{};
  if (!std::getline(file, line))
    return std::nullopt;
  // The second field is the program's name in parentheses and may contain anything.
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos)
    return std::nullopt;
  auto fields = std::istringstream{line.substr(name_end + 1)};
  auto status = process_status{};
  fields >> status.state;
  // The state is field 3, the start time field 22.
  auto skipped = std::string{};
  for (auto field = 4; field < 22; ++field)
    fields >> skipped;
  fields >> status.start_time;
  return fields ? std::optional{status} : std::nullopt;
}

std::string this_machine() {
  auto boot = std::string{};
  auto file = std::ifstream{"/proc/sys/kernel/random/boot_id"};
  std::getline(file, boot);
  auto link = std::array<char, 40>{};
  const auto length = ::readlink("/proc/self/ns/pid", link.data(), link.size());
  return boot + " " + std::string(link.data(), length > 0 ? static_cast<size_t>(length) : 0);
}

} // namespace

rank_process rank_process::self() {
  auto mine = rank_process{};
  mine.pid = ::getpid();
  if (const auto status = read_status("self"))
    mine.start_time = status->start_time;
  const auto machine = this_machine();
  std::copy_n(machine.begin(), std::min(machine.size(), mine.machine.size()), mine.machine.begin());
  return mine;
}

process_state look_at(const rank_process& which) {
  if (which.machine != rank_process::self().machine || which.start_time == 0)
    return process_state::unknown;
  const auto status = read_status(std::to_string(which.pid));
  if (!status) // Missing or unreadable.
    return ::kill(static_cast<pid_t>(which.pid), 0) != 0 && errno == ESRCH ? process_state::gone
                                                                           : process_state::unknown;
  if (status->start_time != which.start_time)
    return process_state::gone;
  switch (status->state) {
    case 'T':
    case 't':
      return process_state::stopped;
    case 'X':
    case 'Z':
      return process_state::gone;
    default:
      return process_state::alive;
  }
}

std::string describe_lost(const std::vector<rank_process>& ranks, uint32_t me) {
  auto text = std::string{};
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    const auto state = i == me ? process_state::alive : look_at(ranks[i]);
    if (state != process_state::stopped && state != process_state::gone)
      continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(i) + " (process "
            + std::to_string(ranks[i].pid)
            + (state == process_state::stopped ? ") is stopped" : ") is gone");
  }
  return text.empty() ? "which rank is missing cannot be told" : text;
}

} // namespace hicache
