// Attention by oneDNN's products. Part of libforebay_torch.so; called by linear.cpp.
#pragma once

#include <cstdint>
#include <memory>

#include <torch/script.h>

// Gives scaled_dot_product_attention of a program on the CPU to oneDNN, where it computes the products of each
// head faster than MKL, which libtorch takes. Returns how many there are.
int64_t replace_attention(torch::jit::Graph &graph);
