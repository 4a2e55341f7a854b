#include "examples/llama/checkpoint.hpp"

#include "cache/hash/model_digest.hpp"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

namespace llama {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Limit of the format's reference implementation.
constexpr auto header_bytes_max = uint64_t{100'000'000};

tl::unexpected<hicache::error> bad(const fs::path& path, const std::string& what) {
  return fail(ec::invalid_argument, path.string() + " " + what);
}

float float_of_half(uint16_t half) noexcept {
  const auto sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const auto exponent = (half >> 10) & 0x1fU;
  const auto fraction = static_cast<uint32_t>(half & 0x3ffU);
  if (exponent == 0) // Zero or subnormal: fraction * 2^-24.
    return std::bit_cast<float>(sign
                                | std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24F));
  const auto wide = exponent == 0x1f ? 0xffU : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

uint16_t half_of_float(float value) noexcept {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const auto magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U)
    return static_cast<uint16_t>(sign | 0x7e00U); // NaN.
  if (magnitude >= 0x477ff000U)
    return static_cast<uint16_t>(sign | 0x7c00U); // Rounds beyond the largest half.
  if (magnitude < 0x38800000U) {                  // Subnormal: the addition rounds.
    const auto shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  }
  const auto odd = (magnitude >> 13) & 1U;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xfffU + odd) >> 13));
}

uint16_t bfloat_of_float(float value) noexcept {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U)
    return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// A tensor as a file's header describes it.
result<tensor> locate(const fs::path& path, const hicache::stored_tensor& entry,
                      std::span<const std::byte> data) {
  auto found = tensor{};
  found.shape = entry.shape;
  if (entry.dtype == "F32")
    found.format = number_format::f32;
  else if (entry.dtype == "F16")
    found.format = number_format::f16;
  else if (entry.dtype == "BF16")
    found.format = number_format::bf16;
  else
    return bad(path, "has a tensor \"" + entry.name + "\" of type " + entry.dtype
                       + "; expected F32, F16 or BF16");
  auto bytes = uint64_t{size_of(found.format)};
  auto is_too_large = false;
  for (const auto length : entry.shape)
    is_too_large |= __builtin_mul_overflow(bytes, length, &bytes);
  if (is_too_large || entry.end - entry.begin != bytes)
    return bad(path, "has a tensor \"" + entry.name
                       + "\" with a place whose length is not that of its shape");
  found.bytes = data.subspan(entry.begin, bytes);
  return found;
}

/// The files that an index names.
result<std::set<std::string>> read_index(const fs::path& path, std::string_view text) {
  const auto index = json::parse(text, nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    return bad(path, "is no JSON object with a \"weight_map\"");
  auto files = std::set<std::string>{};
  for (const auto& each : index["weight_map"]) {
    const auto name = each.is_string() ? each.get<std::string>() : std::string{};
    if (name.empty() || name == ".." || name.find('/') != std::string::npos)
      return bad(path, "names " + each.dump() + ", which is no file of the folder");
    files.insert(name);
  }
  return files;
}

} // namespace

uint32_t size_of(number_format format) noexcept {
  return format == number_format::f32 ? 4 : 2;
}

void to_floats(number_format format, const std::byte* source, size_t count,
               float* target) noexcept {
  if (format == number_format::f32) {
    std::memcpy(target, source, count * sizeof(float));
    return;
  }
  for (auto i = size_t{0}; i < count; ++i) {
    auto word = uint16_t{};
    std::memcpy(&word, source + i * sizeof word, sizeof word);
    target[i] = format == number_format::f16
                  ? float_of_half(word)
                  : std::bit_cast<float>(static_cast<uint32_t>(word) << 16);
  }
}

void from_floats(number_format format, const float* source, size_t count,
                 std::byte* target) noexcept {
  if (format == number_format::f32) {
    std::memcpy(target, source, count * sizeof(float));
    return;
  }
  for (auto i = size_t{0}; i < count; ++i) {
    const auto word
      = format == number_format::f16 ? half_of_float(source[i]) : bfloat_of_float(source[i]);
    std::memcpy(target + i * sizeof word, &word, sizeof word);
  }
}

struct checkpoint::mapped_file {
  explicit mapped_file(std::span<const std::byte> memory) : bytes(memory) {}

  mapped_file(const mapped_file&) = delete;

  mapped_file& operator=(const mapped_file&) = delete;

  ~mapped_file() { ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size()); }

  static result<std::shared_ptr<const mapped_file>> open(const fs::path& path) {
    // O_NONBLOCK, because opening a pipe would wait for its writer.
    const auto file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
      return bad(path, std::string{"cannot be read: "} + std::strerror(errno));
    struct stat status = {};
    const auto is_file = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    const auto length = is_file ? static_cast<size_t>(status.st_size) : 0;
    auto* memory
      = length > 0 ? ::mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    ::close(file);
    if (memory == MAP_FAILED)
      return bad(path, "is no file that can be mapped");
    return std::make_shared<mapped_file>(std::span{static_cast<const std::byte*>(memory), length});
  }

  const std::span<const std::byte> bytes;
};

result<void> checkpoint::add_file(const fs::path& path) {
  auto opened = mapped_file::open(path);
  if (!opened)
    return tl::unexpected{opened.error()};
  const auto bytes = (*opened)->bytes;
  files_.push_back(std::move(*opened));
  auto header_bytes = uint64_t{};
  if (bytes.size() < sizeof header_bytes)
    return bad(path, "is too short for a safetensors file");
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes); // Little-endian, as this machine.
  const auto rest = bytes.subspan(sizeof header_bytes);
  if (header_bytes > std::min<uint64_t>(rest.size(), header_bytes_max))
    return bad(path, "has a header that is longer than the file or than 100 MB");
  const auto* text = reinterpret_cast<const char*>(rest.data());
  const auto data = rest.subspan(header_bytes);
  const auto header = hicache::parse_safetensors({text, header_bytes}, data.size());
  if (!header)
    return bad(path, header.error().detail);
  for (const auto& entry : *header) {
    auto found = locate(path, entry, data);
    if (!found)
      return tl::unexpected{found.error()};
    if (!tensors_.emplace(entry.name, std::move(*found)).second)
      return bad(path, "has the tensor \"" + entry.name + "\" that another file has, too");
  }
  return {};
}

result<checkpoint> checkpoint::open(const fs::path& folder) {
  auto opened = checkpoint{};
  auto names = std::set<std::string>{"model.safetensors"};
  const auto index = folder / "model.safetensors.index.json";
  auto ignored = std::error_code{};
  if (fs::exists(index, ignored)) {
    const auto mapped = mapped_file::open(index);
    if (!mapped)
      return tl::unexpected{mapped.error()};
    const auto bytes = (*mapped)->bytes;
    auto listed = read_index(index, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (!listed)
      return tl::unexpected{listed.error()};
    names = std::move(*listed);
  }
  for (const auto& name : names)
    if (auto added = opened.add_file(folder / name); !added)
      return tl::unexpected{added.error()};
  return opened;
}

result<std::vector<float>> checkpoint::read(const std::string& name, uint64_t rows,
                                            uint64_t columns, const tensor_part& part) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    return fail(ec::invalid_argument, "the model has no tensor \"" + name + "\"");
  const auto& whole = found->second;
  const auto expected = rows == 1 ? std::vector{columns} : std::vector{rows, columns};
  if (whole.shape != expected)
    return fail(ec::invalid_argument, "the tensor \"" + name + "\" has the shape "
                                        + json(whole.shape).dump() + "; expected "
                                        + json(expected).dump());
  auto floats = std::vector<float>(part.rows * part.columns);
  for (auto row = uint64_t{0}; row < part.rows; ++row) {
    const auto first = (part.first_row + row) * columns + part.first_column;
    to_floats(whole.format, whole.bytes.data() + first * size_of(whole.format), part.columns,
              floats.data() + row * part.columns);
  }
  return floats;
}

} // namespace llama
