// The loops of linear_blocks.cpp, which are compiled for several kinds of CPU. Without libtorch.
#pragma once

#include <cstdint>

namespace blocks {

// What is computed with a layer.
enum class Follower : int64_t { None, Addition, Relu, Gelu, Tanh };

// Part of the rows and columns of a layer's output, a row every `stride` numbers.
struct Part {
  float *first;
  int64_t rows, columns, stride;
};

// So many outputs are computed at a time.
constexpr int64_t kColumns = 32;

// Puts there what was multiplied, [rows, kColumns], with the bias of these columns, and ReLU or GELU, as aten::gelu has
// it without an approximation. What an addition adds is laid out as the output.
void finish(const float *products, const float *bias, Follower follower, const float *added, const Part &to);

} // namespace blocks
