#include "examples/llama/checkpoint.hpp"

#include "base/names.hpp"
#include "base/try.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <utility>

namespace llama {

namespace {

using nlohmann::json;

/// In the order of number_format.
constexpr auto kv_names = std::to_array<std::string_view>({"fp32", "fp16", "bf16"});
constexpr auto tensor_names = std::to_array<std::string_view>({"F32", "F16", "BF16"});

} // namespace

result<number_format> parse_kv_format(std::string_view dtype) {
  return hicache::find_name<number_format>(kv_names, dtype,
                                           "a --dtype that this engine computes with");
}

result<checkpoint> checkpoint::open(const std::filesystem::path& folder) {
  auto files = HICACHE_TRY(hicache::open_tensor_files(folder));
  auto opened = checkpoint{};
  opened.files_ = std::move(files);
  for (const auto& file : opened.files_)
    for (const auto& each : file.tensors)
      if (!opened.tensors_.try_emplace(each.name, place{&file, &each}).second)
        return fail(ec::invalid_argument, file.file.path().string() + " has the tensor \""
                                            + each.name + "\" that another file has, too");
  return opened;
}

result<void> checkpoint::append(std::vector<float>& target, const std::string& name, uint64_t rows,
                                uint64_t columns, const tensor_part& part) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    return fail(ec::invalid_argument, "the model has no tensor \"" + name + "\"");
  const auto& [file, tensor] = found->second;
  const auto expected = rows == 1 ? std::vector{columns} : std::vector{rows, columns};
  const auto format = hicache::find_name<number_format>(tensor_names, tensor->dtype);
  const auto number_bytes = format ? size_of(*format) : 0;
  if (!format || tensor->shape != expected
      || tensor->end - tensor->begin != rows * columns * number_bytes)
    return fail(ec::invalid_argument,
                "the tensor \"" + name + "\" is " + tensor->dtype + " " + json(tensor->shape).dump()
                  + " in " + std::to_string(tensor->end - tensor->begin) + " bytes; expected "
                  + json(expected).dump() + " of F32, F16 or BF16");
  target.reserve(target.size() + part.rows * part.columns);
  auto row_numbers = std::vector<float>(part.columns); // Aligned for every format.
  auto* const row_bytes = reinterpret_cast<std::byte*>(row_numbers.data());
  for (auto row = uint64_t{0}; row < part.rows; ++row) {
    const auto first = (part.first_row + row) * columns + part.first_column;
    if (auto got = file->file.read(file->data + tensor->begin + first * number_bytes, row_bytes,
                                   part.columns * number_bytes);
        !got)
      return got;
    for (auto column = uint64_t{0}; column < part.columns; ++column)
      target.push_back(number_at(*format, row_bytes, column));
  }
  return {};
}

} // namespace llama
