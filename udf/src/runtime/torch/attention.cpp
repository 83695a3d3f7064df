// As libtorch was compiled: what it is told of a call is laid out otherwise without.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
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

// libtorch keeps a kernel for each size of a product and for each thread, and each takes a third of a megabyte. So
// matrices are cut into tiles of these sizes, with zeros behind the last row and column.
constexpr std::array<int64_t, 4> kRows = {64, 32, 16, 8};
constexpr std::array<int64_t, 6> kColumns = {128, 96, 64, 48, 32, attention::kBlock};

int64_t padded(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// The largest of the sizes that a rest has room for; the rest is a multiple of the least.
template <size_t N> int64_t tile_of(const std::array<int64_t, N> &sizes, int64_t rest) {
  return *std::find_if(sizes.begin(), sizes.end(), [&](int64_t size) { return size <= rest; });
}

// Of four dimensions, in memory as its strides and its type say.
bool is_plain(const at::Tensor &tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested() && tensor.device().is_cpu() &&
         !tensor.is_neg() && !tensor._is_zerotensor() && tensor.dim() == 4 && tensor.numel() > 0;
}

// [batch, heads, rows, width], whose rows are not broken up.
bool is_readable(const at::Tensor &tensor) {
  const at::ScalarType type = tensor.scalar_type();
  const bool is_known = type == at::kFloat || type == at::kBFloat16;
  return is_plain(tensor) && is_known && (tensor.stride(3) == 1 || tensor.size(3) == 1);
}

// All that the heads' products need, for queries [batch, heads, queries, width].
struct Attention {
  const at::Tensor &query, &key, &value;
  // [batch, heads, queries, keys], or nothing. What is boolean says which keys count, what is a number is added.
  OptionalTensor mask;
  float scale;
  // [batch, heads, queries, width of values]
  const at::Tensor &output;

  int64_t heads() const { return query.size(1); }
  int64_t queries() const { return query.size(2); }
  int64_t keys() const { return key.size(2); }
  int64_t width() const { return query.size(3); }
  int64_t given() const { return value.size(3); }
  int64_t padded_queries() const { return padded(queries(), kRows.back()); }
  int64_t padded_keys() const { return padded(keys(), kColumns.back()); }
};

// What one head at a time is copied to, and computed in: 32 bits, whatever the elements have.
template <typename Element> class Room {
public:
  explicit Room(const Attention &of)
      : of_(of), numbers_(at::empty({of.padded_queries() * of.width() +
                                     of.padded_keys() * (of.width() + of.given() + kRows[0]) +
                                     kRows[0] * (of.given() + 2)},
                                    of.query.options().dtype(at::kFloat))) {
    float *next = numbers_.data_ptr<float>();
    const auto take = [&](int64_t count) { return std::exchange(next, next + count); };
    queries_ = take(of.padded_queries() * of.width());
    keys_ = take(of.padded_keys() * of.width());
    values_ = take(of.padded_keys() * of.given());
    scores_ = take(of.padded_keys() * kRows[0]);
    products_ = take(of.given() * kRows[0]);
    largest_ = take(kRows[0]);
    sums_ = take(kRows[0]);
  }

  void compute(int64_t batch, int64_t head) {
    pack(batch, head);
    int64_t rows = 0;
    for (int64_t first = 0; first < of_.padded_queries(); first += rows) {
      rows = tile_of(kRows, of_.padded_queries() - first);
      compute(batch, head, first, rows);
    }
  }

private:
  // Calls with the first key, how many there are, and how many with zeros, of each tile.
  template <typename F> void each_tile(F visit) const {
    int64_t columns = 0;
    for (int64_t first = 0; first < of_.padded_keys(); first += columns) {
      columns = tile_of(kColumns, of_.padded_keys() - first);
      visit(first, std::min(columns, of_.keys() - first), columns);
    }
  }

  // Some rows of a head.
  attention::Rows<Element> rows_of(const at::Tensor &tensor, int64_t batch, int64_t head, int64_t first,
                                   int64_t count) const {
    const int64_t next = head + 1 < of_.heads() ? tensor.stride(1) : 0;
    const int64_t start = batch * tensor.stride(0) + head * tensor.stride(1) + first * tensor.stride(2);
    const auto *numbers = static_cast<const Element *>(tensor.const_data_ptr());
    return {numbers + start, count, tensor.size(3), tensor.stride(2), next};
  }

  void pack(int64_t batch, int64_t head) {
    attention::pack_rows(rows_of(of_.query, batch, head, 0, of_.queries()), of_.padded_queries(), of_.scale, queries_);
    attention::pack_rows(rows_of(of_.value, batch, head, 0, of_.keys()), of_.padded_keys(), 1, values_);
    each_tile([&](int64_t first, int64_t count, int64_t columns) {
      attention::pack_turned(rows_of(of_.key, batch, head, first, count), columns, keys_ + first * of_.width());
    });
  }

  // Some queries of a head, of which the last may be zeros. The scores of a tile are next to each other.
  void compute(int64_t batch, int64_t head, int64_t first, int64_t rows) {
    using at::native::cpublas::brgemm;
    const int64_t count = std::min(rows, of_.queries() - first);
    std::fill_n(largest_, count, -INFINITY);
    std::fill_n(sums_, count, 0.0F);
    std::fill_n(products_, rows * of_.given(), 0.0F);
    each_tile([&](int64_t key, int64_t keys, int64_t columns) {
      float *scores = scores_ + rows * key;
      brgemm(rows, columns, of_.width(), of_.width(), columns, columns, false, queries_ + first * of_.width(),
             keys_ + key * of_.width(), scores);
      if (of_.mask) add_mask(batch, head, first, count, key, keys, scores, columns);
      attention::raise_largest(scores, columns, count, keys, largest_);
    });
    each_tile([&](int64_t key, int64_t, int64_t columns) {
      float *scores = scores_ + rows * key;
      attention::exponentiate(scores, columns, count, largest_, sums_);
      brgemm(rows, of_.given(), columns, columns, of_.given(), of_.given(), true, scores, values_ + key * of_.given(),
             products_);
    });
    const at::Tensor &to = of_.output;
    const int64_t start = batch * to.stride(0) + head * to.stride(1) + first * to.stride(2);
    attention::divide(products_, count, of_.given(), sums_, static_cast<Element *>(to.data_ptr()) + start, to.stride(2));
  }

  void add_mask(int64_t batch, int64_t head, int64_t query, int64_t queries, int64_t key, int64_t keys, float *scores,
                int64_t stride) const {
    const at::Tensor &mask = *of_.mask;
    const int64_t start = batch * mask.stride(0) + head * mask.stride(1) + query * mask.stride(2) + key;
    if (mask.scalar_type() != at::kBool) {
      const Element *from = static_cast<const Element *>(mask.const_data_ptr()) + start;
      attention::add_mask(from, mask.stride(2), queries, keys, scores, stride);
      return;
    }
    const bool *from = mask.const_data_ptr<bool>() + start;
    const int64_t distinct = mask.stride(2) == 0 ? 1 : queries;
    for (int64_t i = 0; i < distinct; i++) {
      // Of texts of one length nothing is left out.
      if (!std::memchr(from + i * mask.stride(2), 0, keys)) continue;
      attention::add_mask(from, mask.stride(2), queries, keys, scores, stride);
      return;
    }
  }

  const Attention &of_;
  at::Tensor numbers_;
  float *queries_, *keys_, *values_, *scores_, *products_, *largest_, *sums_;
};

template <typename Element> void compute(const Attention &all) {
  RECORD_FUNCTION("forebay::heads", std::vector<c10::IValue>({all.query, all.key, all.value}));
  at::parallel_for(0, all.query.size(0) * all.heads(), 1, [&](int64_t begin, int64_t end) {
    Room<Element> room(all);
    for (int64_t i = begin; i < end; i++) room.compute(i / all.heads(), i % all.heads());
  });
}

// A mask with a row for each query, if it is one that is read here.
std::optional<at::Tensor> readable_mask(const at::Tensor &mask, const at::Tensor &query, int64_t keys) {
  const bool is_known = mask.scalar_type() == at::kBool || mask.scalar_type() == query.scalar_type();
  if (!is_plain(mask) || !is_known) return {};
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
    return tensor.scalar_type() == query.scalar_type() && tensor.size(0) == query.size(0) &&
           tensor.size(1) == query.size(1) && tensor.size(2) == key.size(2);
  };
  return is_same(key) && is_same(value) && key.size(3) == query.size(3);
}

// CPUs with AMX multiply numbers of 16 bits several times as fast as those of 32, and libtorch's attention has them do so.
bool is_better_left(const at::Tensor &query) {
  static const bool has_amx = [] {
    const auto known = at::cpu::get_cpu_capabilities();
    const auto found = known.find("amx_bf16");
    return found != known.end() && found->second.isBool() && found->second.toBool();
  }();
  return has_amx && query.scalar_type() != at::kFloat;
}

// Whether there is enough to multiply: keys and values are copied for each head, a few queries are computed as eight,
// and a head is computed by one thread.
bool is_worth_it(const at::Tensor &query) {
  return query.size(2) >= kRows.back() && query.size(0) * query.size(1) >= at::get_num_threads();
}

// In the order of what libtorch gives: that of the queries, if the result is as wide.
at::Tensor empty_output(const at::Tensor &query, const at::Tensor &value) {
  if (value.size(3) == query.size(3)) return at::empty_like(query);
  return at::empty({query.size(0), query.size(1), query.size(2), value.size(3)}, query.options());
}

// What takes the place of scaled_dot_product_attention in a program. What is not read here goes there.
at::Tensor attend(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                  const OptionalTensor &mask, std::optional<double> scale) {
  const auto by_libtorch = [&] {
    return at::scaled_dot_product_attention(query, key, value, mask, 0.0, false, scale);
  };
  if (!is_readable(query) || !is_readable(key) || !is_readable(value)) return by_libtorch();
  if (!fit_together(query, key, value) || !is_worth_it(query) || is_better_left(query)) return by_libtorch();
  OptionalTensor readable;
  if (mask && mask->defined()) {
    readable = readable_mask(*mask, query, key.size(2));
    if (!readable) return by_libtorch();
  }
  const at::Tensor output = empty_output(query, value);
  if (output.stride(3) != 1 && output.size(3) > 1) return by_libtorch();
  const double usual = 1 / std::sqrt(static_cast<double>(query.size(3)));
  const Attention all = {query, key, value, readable, static_cast<float>(scale.value_or(usual)), output};
  if (query.scalar_type() == at::kFloat) compute<float>(all);
  else compute<attention::BFloat16>(all);
  return output;
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
  // For other instructions oneDNN has no kernels for it.
  if (at::get_cpu_capability().rfind("AVX", 0) != 0) return 0;
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
