// As libtorch was compiled: what it is told of a call is laid out otherwise without.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "linear_blocks.h"

#include <algorithm>
#include <array>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include "linear_kernels.h"

namespace {

using OptionalTensor = std::optional<at::Tensor>;
using blocks::Follower;

constexpr int64_t kOutputs = blocks::kColumns;
// Inputs that are multiplied at a time: a block's weights for so many, 200 kB, stay in the second level of the cache while
// rows go by.
constexpr int64_t kInputs = 1536;
// Rows that are multiplied at a time. libtorch keeps a kernel for each number of them and each thread, so there are few.
// With AVX2 a kernel has three rows in its registers: one that is left takes as long as two.
constexpr std::array<int64_t, 5> kRows = {6, 12, 24, 36, 48};
// So many, 256 kB, are taken to stay in the second level of the cache.
constexpr int64_t kNearNumbers = int64_t{64} << 10;

// Rows that are multiplied together, of which some were multiplied before or are none of the layer's.
struct Tile {
  int64_t first, rows;
  // Those that count.
  int64_t begin, end;
};

// The last tile has rows of the one before it, if there is one: what is multiplied twice is less than it would cost to
// have a kernel for the rest.
std::vector<Tile> tiles_of(int64_t rows) {
  std::vector<Tile> tiles;
  for (int64_t done = 0; done < rows;) {
    const int64_t rest = rows - done;
    auto size = std::lower_bound(kRows.begin(), kRows.end(), std::min(rest, kRows.back()));
    while (*size > std::max(rows, kRows.front())) size--;
    const int64_t first = *size > rest ? std::max<int64_t>(rows - *size, 0) : done;
    const int64_t end = std::min(first + *size, rows);
    tiles.push_back({first, *size, done - first, end - first});
    done = end;
  }
  return tiles;
}

// A layer whose input and output have rows that are next to each other.
struct Layer {
  const float *input, *packed, *bias, *added;
  float *output;
  int64_t inputs, outputs;
  Follower follower;

  void compute(const Tile &tile, int64_t block) const {
    alignas(64) std::array<float, kRows.back() * kOutputs> products;
    const int64_t parts = (inputs + kInputs - 1) / kInputs, most = (inputs + parts - 1) / parts;
    for (int64_t at = 0; at < inputs; at += most) {
      const int64_t width = std::min(most, inputs - at);
      at::native::cpublas::brgemm(tile.rows, kOutputs, width, inputs, kOutputs, kOutputs, at > 0,
                                  input + tile.first * inputs + at, packed + (block * inputs + at) * kOutputs,
                                  products.data());
    }
    const int64_t column = block * kOutputs;
    const int64_t start = (tile.first + tile.begin) * outputs + column;
    const blocks::Part part = {output + start, tile.end - tile.begin, std::min(kOutputs, outputs - column), outputs};
    blocks::finish(products.data() + tile.begin * kOutputs, bias + column, follower, added ? added + start : nullptr,
                   part);
  }
};

bool is_plain(const at::Tensor &tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested() && tensor.device().is_cpu() &&
         !tensor.is_neg() && !tensor._is_zerotensor() && tensor.scalar_type() == at::kFloat && tensor.numel() > 0;
}

bool takes(const at::Tensor &input, const at::Tensor &packed) {
  return is_plain(input) && input.dim() >= 2 && input.size(-1) == packed.size(1);
}

at::Tensor unpacked(const at::Tensor &packed, int64_t outputs) {
  return packed.transpose(1, 2).reshape({-1, packed.size(1)}).narrow(0, 0, outputs);
}

at::Tensor computed(const at::Tensor &given, const at::Tensor &packed, int64_t outputs, const OptionalTensor &bias,
                    Follower follower, const at::Tensor *added) {
  std::vector<int64_t> sizes = given.sizes().vec();
  sizes.back() = outputs;
  const at::Tensor output = at::empty(sizes, given.options());
  const int64_t inputs = packed.size(1), rows = given.numel() / inputs, least = kRows.front();
  at::Tensor input = given.contiguous();
  if (rows < least) input = at::constant_pad_nd(input.reshape({rows, inputs}), {0, 0, 0, least - rows});
  RECORD_FUNCTION("forebay::blocks", std::vector<c10::IValue>({given, outputs}));
  const auto numbers = [](const at::Tensor &tensor) { return tensor.const_data_ptr<float>(); };
  const at::Tensor biases = bias && bias->defined() ? *bias : at::zeros({outputs}, given.options());
  const float *others = added ? numbers(*added) : nullptr;
  const Layer layer = {numbers(input),           numbers(packed), numbers(biases), others,
                       output.data_ptr<float>(), inputs,          outputs,         follower};
  const std::vector<Tile> tiles = tiles_of(rows);
  const int64_t tile_count = static_cast<int64_t>(tiles.size()), block_count = packed.size(0);
  // A block's weights stay near while all rows go by; or a tile's inputs do while all blocks go by, if both are too much.
  const bool by_block = inputs * (kRows.back() + kOutputs) <= kNearNumbers;
  at::parallel_for(0, tile_count * block_count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      if (by_block) layer.compute(tiles[i % tile_count], i / tile_count);
      else layer.compute(tiles[i / block_count], i % block_count);
    }
  });
  return output;
}

} // namespace

namespace blocks {

bool are_known() { return at::get_cpu_capability().rfind("AVX", 0) == 0; }

// With more inputs than are multiplied at a time, rows come from the third level of the cache for each block.
bool are_faster(int64_t inputs) { return at::get_cpu_capability() == "AVX2" && inputs <= kInputs; }

at::Tensor pack(const at::Tensor &weight) {
  const int64_t outputs = weight.size(0), inputs = weight.size(1), full = outputs / kOutputs, rest = outputs % kOutputs;
  const at::Tensor packed = at::empty({full + (rest > 0), inputs, kOutputs}, weight.options());
  const at::Tensor blocks = weight.narrow(0, 0, full * kOutputs).view({full, kOutputs, inputs});
  packed.narrow(0, 0, full).copy_(blocks.transpose(1, 2));
  if (rest > 0) packed[full].zero_().narrow(1, 0, rest).copy_(weight.narrow(0, full * kOutputs, rest).t());
  return packed;
}

at::Tensor linear(const at::Tensor &input, const at::Tensor &packed, int64_t outputs, const OptionalTensor &bias,
                  std::string_view activation, std::string_view algorithm) {
  const bool is_exact_gelu = activation == "gelu" && algorithm == "none", is_relu = activation == "relu";
  const Follower follower = is_exact_gelu ? Follower::Gelu : is_relu ? Follower::Relu : Follower::None;
  const bool is_taken = takes(input, packed);
  at::Tensor output = is_taken ? computed(input, packed, outputs, bias, follower, nullptr)
                               : at::linear(input, unpacked(packed, outputs), bias);
  if (activation == "none" || (is_taken && follower != Follower::None)) return output;
  if (activation == "relu") return at::relu_(output);
  return activation == "gelu" ? at::gelu_(output, algorithm) : at::tanh_(output);
}

at::Tensor linear_plus(const at::Tensor &input, const at::Tensor &packed, int64_t outputs, const OptionalTensor &bias,
                       const at::Tensor &added) {
  std::vector<int64_t> sizes = input.sizes().vec();
  if (takes(input, packed)) sizes.back() = outputs;
  if (takes(input, packed) && is_plain(added) && added.is_contiguous() && added.sizes() == sizes) {
    return computed(input, packed, outputs, bias, Follower::Addition, &added);
  }
  return at::add(linear(input, packed, outputs, bias, "none", ""), added);
}

} // namespace blocks

TORCH_LIBRARY_FRAGMENT(forebay, library) {
  library.def("linear_blocks(Tensor input, Tensor packed, int outputs, Tensor? bias, str activation, str algorithm)"
              " -> Tensor",
              blocks::linear);
  library.def("linear_blocks_plus(Tensor input, Tensor packed, int outputs, Tensor? bias, Tensor added) -> Tensor",
              blocks::linear_plus);
}
