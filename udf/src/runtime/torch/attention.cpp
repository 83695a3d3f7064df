// As libtorch was compiled: what it is told of a call is laid out otherwise without.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/record_function.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/library.h>

#include "attention_kernels.h"

namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using OptionalTensor = std::optional<at::Tensor>;

// Scores that are computed at a time, so many that they stay in a core's own cache.
constexpr int64_t kScores = 32 * 1024;

// Numbers between two rows of a head, at least as many as a row has.
int64_t stride_of(const at::Tensor &tensor) {
  return tensor.size(2) > 1 ? tensor.stride(2) : tensor.size(3);
}

// [batch, heads, rows, width], whose rows oneDNN can read where they are.
bool is_readable(const at::Tensor &tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu() &&
         tensor.scalar_type() == at::kFloat && tensor.dim() == 4 && tensor.numel() > 0 &&
         (tensor.stride(3) == 1 || tensor.size(3) == 1) && stride_of(tensor) >= tensor.size(3);
}

// All that one head's products need, for queries [batch, heads, queries, width].
struct Attention {
  const at::Tensor &query, &key, &value;
  // [batch, heads, queries, keys], or nothing. What is boolean says which keys count, what is a number is added.
  OptionalTensor mask;
  float scale;
  // [batch, queries, heads, width of values]
  at::Tensor output;

  int64_t heads() const { return query.size(1); }
  int64_t queries() const { return query.size(2); }
  int64_t keys() const { return key.size(2); }
  int64_t width() const { return query.size(3); }

  // Queries whose scores are computed at a time.
  int64_t rows() const {
    constexpr int64_t kBlock = 16;
    return std::min(queries(), std::max<int64_t>(1, kScores / keys() / kBlock) * kBlock);
  }

  const float *head_of(const at::Tensor &tensor, int64_t batch, int64_t head) const {
    return tensor.const_data_ptr<float>() + batch * tensor.stride(0) + head * tensor.stride(1);
  }

  // Writes what is added to the scores of these queries to where they will be. False if that is nothing.
  bool write_mask(int64_t batch, int64_t head, int64_t first, int64_t rows, float *scores) const {
    if (!mask) return false;
    const int64_t stride = mask->stride(2);
    const int64_t start = batch * mask->stride(0) + head * mask->stride(1) + first * stride;
    if (mask->scalar_type() == at::kBool) {
      const bool *from = mask->const_data_ptr<bool>() + start;
      const int64_t distinct = stride == 0 ? 1 : rows;
      bool is_all = true;
      for (int64_t i = 0; i < distinct && is_all; i++) is_all = !std::memchr(from + i * stride, 0, keys());
      if (is_all) return false;
      attention::write_addends(from, stride, rows, keys(), scores);
    } else {
      const float *from = mask->const_data_ptr<float>() + start;
      for (int64_t i = 0; i < rows; i++) {
        std::memcpy(scores + i * keys(), from + i * stride, keys() * sizeof(float));
      }
    }
    return true;
  }

  // One head, with room for its keys, for the scores of `rows()` queries, and for their sums.
  void compute(int64_t batch, int64_t head, float *keys_transposed, float *scores, float *sums) const {
    using at::native::cpublas::brgemm;
    attention::transpose_scaled(head_of(key, batch, head), stride_of(key), keys(), width(), scale,
                                keys_transposed);
    const float *queries_of_head = head_of(query, batch, head);
    for (int64_t first = 0; first < queries(); first += rows()) {
      const int64_t count = std::min(rows(), queries() - first);
      const bool is_masked = write_mask(batch, head, first, count, scores);
      brgemm(count, keys(), width(), stride_of(query), keys(), keys(), is_masked,
             queries_of_head + first * stride_of(query), keys_transposed, scores);
      attention::exponentiate_rows(scores, count, keys(), sums);
      float *given = output.data_ptr<float>() + batch * output.stride(0) + first * output.stride(1) +
                     head * output.stride(2);
      brgemm(count, value.size(3), keys(), keys(), stride_of(value), output.stride(1), false, scores,
             head_of(value, batch, head), given);
      attention::divide_rows(given, output.stride(1), count, value.size(3), sums);
    }
  }

  void compute_all() const {
    RECORD_FUNCTION("forebay::heads", std::vector<c10::IValue>({query, key, value}));
    at::parallel_for(0, query.size(0) * heads(), 1, [&](int64_t begin, int64_t end) {
      const at::Tensor room =
          at::empty({width() * keys() + rows() * keys() + rows()}, query.options());
      float *transposed = room.data_ptr<float>();
      float *scores = transposed + width() * keys();
      for (int64_t i = begin; i < end; i++) {
        compute(i / heads(), i % heads(), transposed, scores, scores + rows() * keys());
      }
      at::native::cpublas::brgemm_release(/*is_vnni=*/false);
    });
  }
};

// A mask with a row for each query, if it is one that is read here.
std::optional<at::Tensor> readable_mask(const at::Tensor &mask, const at::Tensor &query, int64_t keys) {
  const bool is_known = mask.scalar_type() == at::kBool || mask.scalar_type() == at::kFloat;
  if (!is_known || !mask.device().is_cpu() || mask.layout() != at::kStrided || mask.dim() != 4) return {};
  const std::vector<int64_t> sizes = {query.size(0), query.size(1), query.size(2), keys};
  for (int64_t dim = 0; dim < 4; dim++) {
    if (mask.size(dim) != sizes[dim] && mask.size(dim) != 1) return {};
  }
  const at::Tensor expanded = mask.expand(sizes);
  if (keys > 1 && expanded.stride(3) != 1) return {};
  return expanded;
}

bool fit_together(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value) {
  const auto is_same = [&](const at::Tensor &tensor) {
    return tensor.size(0) == query.size(0) && tensor.size(1) == query.size(1) && tensor.size(2) == key.size(2);
  };
  return is_same(key) && is_same(value) && key.size(3) == query.size(3);
}

// What takes the place of scaled_dot_product_attention in a program. What it would refuse or read otherwise goes there.
at::Tensor attend(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                  const OptionalTensor &mask, std::optional<double> scale) {
  const auto by_libtorch = [&] {
    return at::scaled_dot_product_attention(query, key, value, mask, 0.0, false, scale);
  };
  if (!is_readable(query) || !is_readable(key) || !is_readable(value)) return by_libtorch();
  if (!fit_together(query, key, value)) return by_libtorch();
  OptionalTensor readable;
  if (mask && mask->defined()) {
    readable = readable_mask(*mask, query, key.size(2));
    if (!readable) return by_libtorch();
  }
  const double usual = 1 / std::sqrt(static_cast<double>(query.size(3)));
  at::Tensor output =
      at::empty({query.size(0), query.size(2), query.size(1), value.size(3)}, query.options());
  Attention{query, key, value, readable, static_cast<float>(scale.value_or(usual)), output}.compute_all();
  return output.transpose(1, 2);
}

// Without dropout, and each query sees all keys that the mask leaves.
bool is_replaceable(const Node *node) {
  static const auto kind = c10::Symbol::fromQualString("aten::scaled_dot_product_attention");
  if (node->kind() != kind || node->inputs().size() != 8) return false;
  const auto is_off = [&](size_t i) {
    const auto value = torch::jit::toIValue(node->input(i));
    return value && (value->isDouble() ? value->toDouble() == 0 : value->isBool() && !value->toBool());
  };
  return is_off(4) && is_off(5) && is_off(7);
}

void find(Block *block, std::vector<Node *> &found) {
  for (Node *node : block->nodes()) {
    if (is_replaceable(node)) found.push_back(node);
    for (Block *inner : node->blocks()) find(inner, found);
  }
}

} // namespace

TORCH_LIBRARY_FRAGMENT(forebay, library) {
  library.def("attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float? scale) -> Tensor", attend);
}

int64_t replace_attention(Graph &graph) {
  // With fewer instructions oneDNN has no kernels for it.
  if (at::get_cpu_capability() == "DEFAULT") return 0;
  static const auto kind = c10::Symbol::fromQualString("forebay::attention");
  std::vector<Node *> found;
  find(graph.block(), found);
  for (Node *node : found) {
    const torch::jit::WithInsertPoint before(node);
    const auto in = [&](size_t i) { return node->input(i); };
    node->output()->replaceAllUsesWith(graph.insert(kind, {in(0), in(1), in(2), in(3), in(6)}));
    node->destroy();
  }
  return static_cast<int64_t>(found.size());
}
