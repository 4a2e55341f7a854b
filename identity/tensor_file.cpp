#include "identity/tensor_file.hpp"

#include "base/limits.hpp"
#include "base/try.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace hicache {

namespace fs = std::filesystem;

tl::unexpected<error> bad_file(const fs::path& path, const std::string& what) {
  return fail(ec::invalid_argument, path.string() + " " + what);
}

input_file::input_file(fs::path path, unique_fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

result<input_file> input_file::open(const fs::path& path) {
  // Non-blocking, because opening a pipe would wait for its writer.
  auto file = input_file{path, unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)}};
  struct stat status = {};
  if (!file.fd_ || ::fstat(file.fd_.get(), &status) != 0)
    return bad_file(path, std::string{"cannot be read: "} + std::strerror(errno));
  if (!S_ISREG(status.st_mode))
    return bad_file(path, "is no file");
  file.bytes_ = static_cast<uint64_t>(status.st_size);
  return file;
}

result<void> input_file::read(uint64_t offset, void* target, uint64_t count) const {
  auto* next = static_cast<char*>(target);
  while (count > 0) {
    const auto got = ::pread(fd_.get(), next, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return bad_file(path_, got < 0 ? std::string{"cannot be read: "} + std::strerror(errno)
                                     : "became shorter while it was read");
    next += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<uint64_t>(got);
  }
  return {};
}

result<tensor_file> open_tensor_file(const fs::path& path) {
  auto file = HICACHE_TRY(input_file::open(path));
  auto length = std::array<uint8_t, 8>{};
  if (file.bytes() < length.size())
    return bad_file(path, "is too short for safetensors");
  HICACHE_TRY(file.read(0, length.data(), length.size()));
  auto header_bytes = uint64_t{0};
  for (auto i = size_t{0}; i < length.size(); ++i)
    header_bytes |= uint64_t{length[i]} << (8 * i);
  if (header_bytes > limits::safetensors_header_bytes
      || header_bytes > file.bytes() - length.size())
    return bad_file(path, "is no safetensors file: its first 8 bytes say that a header of "
                            + std::to_string(header_bytes) + " bytes follows");
  auto header = std::string(header_bytes, '\0');
  HICACHE_TRY(file.read(length.size(), header.data(), header.size()));
  const auto data = length.size() + header_bytes;
  auto tensors = parse_safetensors(header, file.bytes() - data);
  if (!tensors)
    return bad_file(path, tensors.error().detail);
  return tensor_file{std::move(file), data, std::move(*tensors)};
}

result<std::vector<tensor_file>> open_tensor_files(const fs::path& folder) {
  auto paths = std::vector<fs::path>{};
  auto trouble = std::error_code{};
  for (auto it = fs::directory_iterator{folder, trouble};
       !trouble && it != fs::directory_iterator{}; it.increment(trouble))
    if (it->path().extension() == ".safetensors")
      paths.push_back(it->path());
  if (trouble)
    return bad_file(folder, "cannot be listed: " + trouble.message());
  if (paths.empty())
    return bad_file(folder, "has no *.safetensors; expected the weights of a model in that format");
  std::ranges::sort(paths);
  auto files = std::vector<tensor_file>{};
  for (const auto& path : paths) {
    auto file = HICACHE_TRY(open_tensor_file(path));
    files.push_back(std::move(file));
  }
  return files;
}

} // namespace hicache
