#include "gpu/available_memory.hpp"

#include "base/units.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

namespace hicache {

namespace {

using namespace literals;

constexpr auto no_limit = std::numeric_limits<uint64_t>::max();

/// The number after `name` in a file of names and numbers.
std::optional<uint64_t> value_of(const std::filesystem::path& path, std::string_view name) {
  auto file = std::ifstream{path};
  auto word = std::string{};
  auto value = uint64_t{0};
  while (file >> word >> value) {
    if (word == name)
      return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

/// The number in a file; empty if there is none, or for "max".
std::optional<uint64_t> number_in(const std::filesystem::path& path) {
  auto file = std::ifstream{path};
  auto value = uint64_t{0};
  return file >> value ? std::optional{value} : std::nullopt;
}

/// File names of a control group version.
struct cgroup_files {
  std::filesystem::path mount;
  const char* limit;
  /// Above this limit the kernel throttles the group instead of killing a process; may be null.
  const char* soft_limit;
  const char* usage;
  const char* inactive_files;
  const char* active_files;
};

/// Bytes left in one group; no_limit if it has no limit.
uint64_t left_in(const std::filesystem::path& group, const cgroup_files& files) {
  auto limit = number_in(group / files.limit).value_or(no_limit);
  if (files.soft_limit != nullptr)
    limit = std::min(limit, number_in(group / files.soft_limit).value_or(no_limit));
  const auto usage = number_in(group / files.usage);
  if (limit == no_limit || !usage)
    return no_limit;
  const auto droppable = value_of(group / "memory.stat", files.inactive_files).value_or(0)
                         + value_of(group / "memory.stat", files.active_files).value_or(0);
  const auto used = *usage - std::min(droppable, *usage);
  return limit - std::min(used, limit);
}

/// Bytes left in the named group and its ancestors. In a container the name may be known to the
/// host only; then the group is the mount itself.
uint64_t left_in_all(const cgroup_files& files, const std::filesystem::path& name) {
  auto left = left_in(files.mount, files);
  for (auto path = name.relative_path(); !path.empty(); path = path.parent_path())
    left = std::min(left, left_in(files.mount / path, files));
  return left;
}

uint64_t left_in_cgroups(const std::filesystem::path& root) {
  const auto mount = root / "sys/fs/cgroup";
  const auto v1
    = cgroup_files{mount / "memory",        "memory.limit_in_bytes", nullptr,
                   "memory.usage_in_bytes", "total_inactive_file",   "total_active_file"};
  const auto v2 = cgroup_files{mount,           "memory.max", "memory.high", "memory.current",
                               "inactive_file", "active_file"};
  auto left = no_limit;
  // Lines are "4:cpu,memory:/name" and, in version 2, "0::/name".
  auto file = std::ifstream{root / "proc/self/cgroup"};
  for (auto line = std::string{}; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos)
      continue;
    const auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const auto name = std::filesystem::path{line.substr(second + 1)};
    if (controllers == ",,")
      left = std::min(left, left_in_all(v2, name));
    else if (controllers.find(",memory,") != std::string::npos)
      left = std::min(left, left_in_all(v1, name));
  }
  return left;
}

} // namespace

std::optional<uint64_t> available_memory(const std::filesystem::path& root) {
  const auto kibibytes = value_of(root / "proc/meminfo", "MemAvailable:");
  const auto left = left_in_cgroups(root);
  if (!kibibytes)
    return left == no_limit ? std::nullopt : std::optional{left};
  return std::min(*kibibytes * 1_KiB, left);
}

} // namespace hicache
