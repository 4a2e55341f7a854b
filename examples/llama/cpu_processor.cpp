#include "examples/llama/processor.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace llama {

namespace {

/// Rows of Q multiplied with a page at once; bounds the buffer of scores.
constexpr auto block_rows = size_t{64};

/// A matrix of floats, with the floats from a row to the next.
struct matrix {
  const float* data = nullptr;
  size_t stride = 0;
};

/// c (m x n) = a (m x k) * b, plus what c is if `adds`. b is k x n, or n x k if `b_order` says so.
void multiply(size_t m, size_t n, size_t k, matrix a, matrix b, CBLAS_TRANSPOSE b_order, bool adds,
              float* c, size_t c_stride) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, b_order, static_cast<int>(m), static_cast<int>(n),
              static_cast<int>(k), 1, a.data, static_cast<int>(a.stride), b.data,
              static_cast<int>(b.stride), adds ? 1 : 0, c, static_cast<int>(c_stride));
}

/// Softmax of the values times `scale`.
void softmax(std::span<float> values, float scale) {
  const auto largest = *std::max_element(values.begin(), values.end());
  auto sum = 0.0F;
  for (auto& each : values)
    sum += each = std::exp((each - largest) * scale);
  for (auto& each : values)
    each /= sum;
}

class cpu_processor final : public processor {
public:
  std::pmr::memory_resource* memory() noexcept override { return std::pmr::new_delete_resource(); }

  const float* place(const std::vector<float>& constants) override {
    return constants.empty() ? nullptr : constants.data();
  }

  void multiply(const linear_layer& layer, size_t rows, const float* input, float* output,
                size_t stride) override {
    llama::multiply(rows, layer.outputs, layer.inputs, {input, layer.inputs},
                    {layer.weights.data(), layer.inputs}, CblasTrans, false, output, stride);
  }

  void run(const kernel& what, size_t count) override {
    if (const auto* const job = std::get_if<attention_kernel>(&what))
      return attend(*job, count / job->shape.heads);
    for (auto index = size_t{0}; index < count; ++index)
      std::visit([&](const auto& each) { each(single_thread{}, index); }, what);
  }

  void wait_for(const hicache::layer_progress& loading, uint32_t layer) override {
    loading.wait(layer);
  }

  void* mark() override { return nullptr; }

  result<void> finish() override { return {}; }

private:
  /// Attention by matrix products, for the rows of a sequence together.
  void attend(const attention_kernel& job, size_t rows) {
    std::fill_n(job.target, rows * job.shape.q_width(), 0.0F);
    for (auto first = size_t{0}; first < rows;) {
      auto count = size_t{1};
      while (count < block_rows && first + count < rows
             && job.places[first + count].pages == job.places[first].pages)
        ++count;
      for (auto head = uint32_t{0}; head < job.shape.heads; ++head)
        attend_block(job, first, count, head);
      first += count;
    }
  }

  void attend_block(const attention_kernel& job, size_t first, size_t rows, uint32_t head) {
    const auto& shape = job.shape;
    const auto& pages = job.pages;
    const auto width = size_t{shape.head_dim};
    const auto kv_head = head / (shape.heads / shape.kv_heads);
    const auto place = job.places[first];
    const auto seen = place.position + rows; // Tokens that the last row attends to.
    const auto scale = 1 / std::sqrt(static_cast<float>(width));
    const auto q = matrix{job.qkv + first * shape.row_width() + head * width, shape.row_width()};
    auto* const out = job.target + first * shape.q_width() + head * width;
    // A head of the tokens of a page, the first at position `begin`. Floats stay in place, narrower
    // numbers are widened into a buffer.
    const auto read = [&](const hicache::layer_buffer& part, size_t begin, size_t count) -> matrix {
      const auto* const bytes = pages.head_at(part, place.pages, begin, kv_head * width);
      if (pages.type == element_type::fp32)
        return {reinterpret_cast<const float*>(bytes), part.token_stride / sizeof(float)};
      widened_.resize(count * width);
      for (auto i = size_t{0}; i < widened_.size(); ++i)
        widened_[i] = number_at(pages.type, bytes + i / width * part.token_stride, i % width);
      return {widened_.data(), width};
    };
    scores_.resize(rows * seen);
    for (auto begin = size_t{0}; begin < seen; begin += pages.page_size) {
      const auto count = std::min<size_t>(pages.page_size, seen - begin);
      llama::multiply(rows, count, width, q, read(pages.keys, begin, count), CblasTrans, false,
                      scores_.data() + begin, seen);
    }
    for (auto row = size_t{0}; row < rows; ++row) {
      const auto line = std::span{scores_}.subspan(row * seen, seen);
      const auto visible = place.position + row + 1;
      softmax(line.first(visible), scale);
      std::ranges::fill(line.subspan(visible), 0.0F);
    }
    for (auto begin = size_t{0}; begin < seen; begin += pages.page_size) {
      const auto count = std::min<size_t>(pages.page_size, seen - begin);
      llama::multiply(rows, width, count, {scores_.data() + begin, seen},
                      read(pages.values, begin, count), CblasNoTrans, true, out, shape.q_width());
    }
  }

  std::vector<float> scores_;
  std::vector<float> widened_;
};

} // namespace

std::unique_ptr<processor> make_cpu_processor() {
  return std::make_unique<cpu_processor>();
}

#ifndef HICACHE_HAVE_CUDA
result<std::unique_ptr<processor>> make_cuda_processor(uint64_t) {
  return fail(ec::unsupported,
              "--device: this engine was built without CUDA or cuBLAS; expected host");
}
#endif

} // namespace llama
