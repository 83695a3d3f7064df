// Attention by oneDNN's products. Part of libforebay_torch.so; called by linear.cpp.
#pragma once

#include <cstdint>

#include <torch/script.h>

// Gives the products of scaled_dot_product_attention in a float32 or bfloat16 program on the CPU to oneDNN, on CPUs
// with AVX2; in bfloat16 not on those with AMX. libtorch takes MKL for them in float32. Returns how many attentions there
// are.
int64_t replace_attention(torch::jit::Graph &graph);
