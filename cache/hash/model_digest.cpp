#include "cache/hash/model_digest.hpp"

#include "base/json_fields.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"
#include "cache/hash/sha256.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace hicache {

namespace {

using json = nlohmann::json;

/// Free-form metadata of safetensors writers.
constexpr auto notes = "__metadata__";

/// Fields that say where a copy came from, and nothing of what it computes.
constexpr auto origins
  = std::array{"_name_or_path", "transformers_version", "base_model_name_or_path", "revision"};

tl::unexpected<error> malformed(std::string what) {
  return fail(ec::malformed_message, std::move(what));
}

/// Parses a JSON object of bounded depth.
result<json> parse(std::string_view text, int levels) {
  if (nesting_of(text) > levels)
    return malformed("has more than " + std::to_string(levels) + " levels of JSON");
  auto object = parse_object(text, text.size(), levels);
  if (!object)
    return malformed("is no JSON object");
  return std::move(*object);
}

bool is_list_of_numbers(const json& value) {
  return value.is_array()
         && std::ranges::all_of(value, [](const json& x) { return x.is_number_unsigned(); });
}

result<stored_tensor> take_tensor(const std::string& name, const json& value) {
  const auto field = [&](const char* key) {
    const auto found = value.find(key);
    return found == value.end() ? json{} : *found;
  };
  const auto offsets = value.is_object() ? field("data_offsets") : json{};
  if (!is_list_of_numbers(offsets) || offsets.size() != 2 || !is_list_of_numbers(field("shape"))
      || !field("dtype").is_string())
    return malformed("does not say dtype, shape and data_offsets of the tensor '" + name + "'");
  auto tensor = stored_tensor{name, field("dtype"), field("shape"), offsets[0], offsets[1]};
  if (tensor.begin > tensor.end)
    return malformed("has a tensor '" + name + "' that ends before it begins");
  return tensor;
}

} // namespace

result<std::vector<stored_tensor>> parse_safetensors(std::string_view header, uint64_t data_bytes) {
  const auto object = parse(header, limits::safetensors_levels);
  if (!object)
    return malformed("has a header that " + object.error().detail);
  auto tensors = std::vector<stored_tensor>{};
  for (const auto& [name, value] : object->items()) {
    if (name == notes)
      continue;
    auto tensor = HICACHE_TRY(take_tensor(name, value));
    tensors.push_back(std::move(tensor));
  }
  std::ranges::sort(tensors, {},
                    [](const stored_tensor& x) { return std::tie(x.begin, x.end, x.name); });
  // Overlaps would let a small file cause an unbounded amount of reading.
  auto covered = uint64_t{0};
  for (const auto& tensor : tensors) {
    if (tensor.begin != covered)
      return malformed("has a gap or an overlap in front of the tensor '" + tensor.name + "'");
    covered = tensor.end;
  }
  if (covered != data_bytes)
    return malformed("holds " + std::to_string(data_bytes)
                     + " bytes of tensors where its header says " + std::to_string(covered));
  return tensors;
}

result<std::string> canonical_model_config(std::string_view text) {
  auto object = HICACHE_TRY(parse(text, limits::model_config_levels));
  for (const auto* name : origins)
    object.erase(name);
  return object.dump();
}

page_key tensors_digest(std::vector<hashed_tensor> tensors) {
  std::ranges::sort(tensors, {}, [](const hashed_tensor& x) {
    return std::tie(x.tensor.name, x.tensor.dtype, x.tensor.shape, x.bytes);
  });
  auto hash = sha256{};
  hash.add_framed("hicache-tensors-v1").add_number(tensors.size());
  for (const auto& [tensor, bytes] : tensors) {
    hash.add_framed(tensor.name).add_framed(tensor.dtype).add_number(tensor.shape.size());
    for (const auto extent : tensor.shape)
      hash.add_number(extent);
    hash.add_number(tensor.end - tensor.begin).add_framed(bytes);
  }
  return hash.finish();
}

page_key model_digest(const std::map<std::string, std::string>& parts) {
  auto hash = sha256{};
  hash.add_framed("hicache-model-v2").add_number(parts.size());
  for (const auto& [name, digest] : parts)
    hash.add_framed(name).add_framed(digest);
  return hash.finish();
}

} // namespace hicache
