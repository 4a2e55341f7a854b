#include "examples/llama/weights.hpp"

#include "base/try.hpp"
#include "examples/llama/kernels.hpp"
#include "identity/tensor_file.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <string_view>

namespace llama {

using namespace hicache;

namespace {

using nlohmann::json;

/// Rows [first_row, first_row + rows) and columns [first_column, first_column + columns).
struct tensor_part {
  uint64_t first_row = 0;
  uint64_t rows = 0;
  uint64_t first_column = 0;
  uint64_t columns = 0;
};

/// Reads tensors of a model as floats, and keeps the first error.
class tensor_reader {
public:
  /// @param files Must outlive the reader.
  explicit tensor_reader(const std::vector<tensor_file>& files) {
    for (const auto& file : files)
      for (const auto& each : file.tensors)
        if (!places_.try_emplace(each.name, place{&file, &each}).second && status_)
          status_ = fail(ec::invalid_argument, file.file.path().string() + " has the tensor \""
                                                 + each.name + "\" that another file has, too");
  }

  /// A vector, or a whole matrix.
  std::vector<float> whole(const std::string& name, uint64_t columns, uint64_t rows = 1) {
    auto numbers = std::vector<float>{};
    status_ = read(numbers, name, rows, columns, {0, rows, 0, columns});
    return numbers;
  }

  /// Appends a part of a layer: rows are outputs, columns are inputs.
  void append(linear_layer& layer, const std::string& name, uint64_t outputs, uint64_t inputs,
              const tensor_part& part, bool has_bias) {
    status_ = read(layer.weights, name + ".weight", outputs, inputs, part);
    if (has_bias)
      status_ = read(layer.bias, name + ".bias", 1, outputs, {0, 1, part.first_row, part.rows});
    layer.inputs = static_cast<uint32_t>(part.columns);
    layer.outputs += static_cast<uint32_t>(part.rows);
  }

  const result<void>& status() const { return status_; }

private:
  struct place {
    const tensor_file* file;
    const stored_tensor* tensor;
  };

  /// Appends part of a matrix of `rows` and `columns`; a vector has one row.
  result<void> read(std::vector<float>& target, const std::string& name, uint64_t rows,
                    uint64_t columns, const tensor_part& part) const {
    if (!status_)
      return status_;
    static const auto types = std::map<std::string_view, element_type>{
      {"F32", element_type::fp32}, {"F16", element_type::fp16}, {"BF16", element_type::bf16}};
    const auto found = places_.find(name);
    if (found == places_.end())
      return fail(ec::invalid_argument, "the model has no tensor \"" + name + "\"");
    const auto& [file, tensor] = found->second;
    const auto expected = rows == 1 ? std::vector{columns} : std::vector{rows, columns};
    const auto type = types.find(tensor->dtype);
    const auto number_bytes = type == types.end() ? 0 : size_of(type->second);
    if (number_bytes == 0 || tensor->shape != expected
        || tensor->end - tensor->begin != rows * columns * number_bytes)
      return fail(ec::invalid_argument, "the tensor \"" + name + "\" is " + tensor->dtype + " "
                                          + json(tensor->shape).dump() + " in "
                                          + std::to_string(tensor->end - tensor->begin)
                                          + " bytes; expected " + json(expected).dump()
                                          + " of F32, F16 or BF16");
    target.reserve(target.size() + part.rows * part.columns);
    auto numbers = std::vector<float>(part.columns); // Aligned for every type.
    auto* const bytes = reinterpret_cast<std::byte*>(numbers.data());
    for (auto row = part.first_row; row < part.first_row + part.rows; ++row) {
      const auto first = row * columns + part.first_column;
      HICACHE_TRY(file->file.read(file->data + tensor->begin + first * number_bytes, bytes,
                                  part.columns * number_bytes));
      for (auto column = uint64_t{0}; column < part.columns; ++column)
        target.push_back(number_at(type->second, bytes, column));
    }
    return {};
  }

  std::map<std::string, place> places_;
  result<void> status_;
};

layer_weights load_layer(const model_config& config, tensor_reader& from, uint32_t layer,
                         const head_split& split, uint32_t rank, uint32_t ranks) {
  const auto prefix = "model.layers." + std::to_string(layer) + ".";
  const auto attention = prefix + "self_attn.";
  const auto mlp = prefix + "mlp.";
  const auto width = uint64_t{config.head_dim};
  const auto q = width * config.heads;
  const auto kv = width * config.kv_heads;
  const auto my_q = q / ranks;
  const auto my_kv = width * split.heads;
  const auto first_kv = my_kv * split.part_of(rank);
  const auto inner = uint64_t{config.intermediate} / ranks;
  const auto hidden = uint64_t{config.hidden};
  auto loaded = layer_weights{};
  loaded.attention_norm = from.whole(prefix + "input_layernorm.weight", hidden);
  loaded.mlp_norm = from.whole(prefix + "post_attention_layernorm.weight", hidden);
  from.append(loaded.qkv, attention + "q_proj", q, hidden, {my_q * rank, my_q, 0, hidden},
              config.qkv_bias);
  for (const auto* name : {"k_proj", "v_proj"})
    from.append(loaded.qkv, attention + name, kv, hidden, {first_kv, my_kv, 0, hidden},
                config.qkv_bias);
  if (config.qk_norm) {
    loaded.q_norm = from.whole(attention + "q_norm.weight", width);
    loaded.k_norm = from.whole(attention + "k_norm.weight", width);
  }
  from.append(loaded.output, attention + "o_proj", hidden, q, {0, hidden, my_q * rank, my_q},
              config.output_bias);
  for (const auto* name : {"gate_proj", "up_proj"})
    from.append(loaded.gate_up, mlp + name, config.intermediate, hidden,
                {inner * rank, inner, 0, hidden}, config.mlp_bias);
  from.append(loaded.down, mlp + "down_proj", hidden, config.intermediate,
              {0, hidden, inner * rank, inner}, config.mlp_bias);
  return loaded;
}

} // namespace

result<model_weights> load_weights(const model_config& config, const std::filesystem::path& folder,
                                   uint32_t rank, uint32_t ranks) {
  const auto split = split_heads(config.kv_heads, ranks);
  if (!split || config.heads % ranks != 0 || config.intermediate % ranks != 0)
    return fail(ec::invalid_argument,
                std::to_string(ranks)
                  + " ranks do not divide the model's heads, KV heads and intermediate size");
  const auto files = HICACHE_TRY(open_tensor_files(folder));
  auto reader = tensor_reader{files};
  auto loaded = model_weights{};
  loaded.heads = config.heads / ranks;
  loaded.kv_heads = split->heads;
  loaded.embedding = reader.whole("model.embed_tokens.weight", config.hidden, config.vocabulary);
  for (auto layer = uint32_t{0}; layer < config.layers; ++layer)
    loaded.layers.push_back(load_layer(config, reader, layer, *split, rank, ranks));
  loaded.final_norm = reader.whole("model.norm.weight", config.hidden);
  loaded.first_token = static_cast<uint32_t>(uint64_t{config.vocabulary} * rank / ranks);
  const auto end = uint64_t{config.vocabulary} * (rank + 1) / ranks;
  reader.append(loaded.head, config.tied_embeddings ? "model.embed_tokens" : "lm_head",
                config.vocabulary, config.hidden,
                {loaded.first_token, end - loaded.first_token, 0, config.hidden}, false);
  HICACHE_TRY(reader.status());
  return loaded;
}

} // namespace llama
