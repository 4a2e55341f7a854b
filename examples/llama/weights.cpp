#include "examples/llama/weights.hpp"

#include "examples/llama/checkpoint.hpp"

#include <string>

namespace llama {

namespace {

/// Reads tensors and keeps the first error.
class tensor_reader {
public:
  explicit tensor_reader(const checkpoint& from) : from_(from) {}

  void append(std::vector<float>& target, const std::string& name, uint64_t rows, uint64_t columns,
              const tensor_part& part) {
    if (const auto read
        = error_.detail.empty() ? from_.append(target, name, rows, columns, part) : result<void>{};
        !read)
      error_ = read.error();
  }

  std::vector<float> vector(const std::string& name, uint64_t length) {
    auto whole = std::vector<float>{};
    append(whole, name, 1, length, {0, 1, 0, length});
    return whole;
  }

  /// Appends the outputs [first, first + count) of a layer with `inputs` inputs.
  void append_outputs(linear_layer& layer, const std::string& name, uint64_t outputs,
                      uint64_t inputs, uint64_t first, uint64_t count, bool has_bias) {
    append(layer.weights, name + ".weight", outputs, inputs, {first, count, 0, inputs});
    if (has_bias)
      append(layer.bias, name + ".bias", 1, outputs, {0, 1, first, count});
    layer.inputs = static_cast<uint32_t>(inputs);
    layer.outputs += static_cast<uint32_t>(count);
  }

  /// A layer restricted to the inputs [first, first + count).
  linear_layer inputs_of(const std::string& name, uint64_t outputs, uint64_t inputs, uint64_t first,
                         uint64_t count, bool has_bias) {
    auto layer = linear_layer{static_cast<uint32_t>(count), static_cast<uint32_t>(outputs), {}, {}};
    append(layer.weights, name + ".weight", outputs, inputs, {0, outputs, first, count});
    if (has_bias)
      layer.bias = vector(name + ".bias", outputs);
    return layer;
  }

  const hicache::error& error() const { return error_; }

private:
  const checkpoint& from_;
  hicache::error error_;
};

struct rank_place {
  uint32_t rank;
  uint32_t ranks;
  /// Split of the KV heads; ranks that outnumber heads share them.
  hicache::head_split split;
};

layer_weights load_layer(const model_config& config, tensor_reader& from, uint32_t layer,
                         const rank_place& place) {
  const auto prefix = "model.layers." + std::to_string(layer) + ".";
  const auto attention = prefix + "self_attn.";
  const auto mlp = prefix + "mlp.";
  const auto width = uint64_t{config.head_dim};
  const auto q = width * config.heads;
  const auto kv = width * config.kv_heads;
  const auto my_q = q / place.ranks;
  const auto my_kv = width * place.split.heads;
  const auto first_q = my_q * place.rank;
  const auto first_kv = my_kv * place.split.part_of(place.rank);
  const auto inner = config.intermediate / place.ranks;
  const auto first_inner = uint64_t{inner} * place.rank;
  auto loaded = layer_weights{};
  loaded.attention_norm = from.vector(prefix + "input_layernorm.weight", config.hidden);
  loaded.mlp_norm = from.vector(prefix + "post_attention_layernorm.weight", config.hidden);
  from.append_outputs(loaded.qkv, attention + "q_proj", q, config.hidden, first_q, my_q,
                      config.qkv_bias);
  for (const auto* name : {"k_proj", "v_proj"})
    from.append_outputs(loaded.qkv, attention + name, kv, config.hidden, first_kv, my_kv,
                        config.qkv_bias);
  if (config.qk_norm) {
    loaded.q_norm = from.vector(attention + "q_norm.weight", width);
    loaded.k_norm = from.vector(attention + "k_norm.weight", width);
  }
  loaded.output
    = from.inputs_of(attention + "o_proj", config.hidden, q, first_q, my_q, config.output_bias);
  for (const auto* name : {"gate_proj", "up_proj"})
    from.append_outputs(loaded.gate_up, mlp + name, config.intermediate, config.hidden, first_inner,
                        inner, config.mlp_bias);
  loaded.down = from.inputs_of(mlp + "down_proj", config.hidden, config.intermediate, first_inner,
                               inner, config.mlp_bias);
  return loaded;
}

} // namespace

result<model_weights> load_weights(const model_config& config, const checkpoint& from,
                                   uint32_t rank, uint32_t ranks) {
  const auto split = hicache::split_heads(config.kv_heads, ranks);
  if (!split || config.heads % ranks != 0 || config.intermediate % ranks != 0)
    return fail(ec::invalid_argument,
                std::to_string(ranks)
                  + " ranks do not divide the model's heads, KV heads and intermediate size");
  auto reader = tensor_reader{from};
  auto loaded = model_weights{};
  loaded.heads = config.heads / ranks;
  loaded.kv_heads = split->heads;
  const auto whole = tensor_part{0, config.vocabulary, 0, config.hidden};
  reader.append(loaded.embedding, "model.embed_tokens.weight", config.vocabulary, config.hidden,
                whole);
  for (auto layer = uint32_t{0}; layer < config.layers; ++layer)
    loaded.layers.push_back(load_layer(config, reader, layer, {rank, ranks, *split}));
  loaded.final_norm = reader.vector("model.norm.weight", config.hidden);
  loaded.first_token = static_cast<uint32_t>(uint64_t{config.vocabulary} * rank / ranks);
  const auto end = static_cast<uint32_t>(uint64_t{config.vocabulary} * (rank + 1) / ranks);
  reader.append_outputs(loaded.head, config.tied_embeddings ? "model.embed_tokens" : "lm_head",
                        config.vocabulary, config.hidden, loaded.first_token,
                        end - loaded.first_token, false);
  if (!reader.error().detail.empty())
    return tl::unexpected{reader.error()};
  return loaded;
}

} // namespace llama
