// Linear layers whose weights are packed for other kernels than aten::linear's. Part of libforebay_torch.so; called by
// shim.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/script.h>

// How many layers others compute, how many activations and additions with them, with how many packed
// weights, and how many of these are in memory in their old layout as well; and how many attentions oneDNN computes.
struct PackedLayers {
  int64_t layers = 0;
  int64_t activations = 0;
  int64_t sums = 0;
  int64_t weights = 0;
  int64_t twice = 0;
  int64_t attentions = 0;
};

// What computes linear layers: aten::linear, which takes MKL for float32; oneDNN's layers; or its kernels of small
// products, for float32 on CPUs that have them: see linear_blocks.h.
enum class Kernels : int64_t { Mkl, OneDnn, Blocks };

// Gives the linear layers of a float32 or bfloat16 program on the CPU to these kernels, or each to those that compute
// its shape fastest. Their weights are packed once, for all threads that run the program. Attention is given to oneDNN:
// see attention.h. With MKL's, or without layers and attention, a program stays as it is; after an exception it computes
// the same as before.
PackedLayers pack_linear_layers(torch::jit::Module &module, std::optional<Kernels> wanted);

// Which kernels are faster for layers of a shape, where as many of the outputs are counted as were measured.
struct LinearChoice {
  int64_t inputs;
  int64_t outputs;
  int64_t threads;
  // Nothing, an addition, ReLU, GELU or tanh: 0 to 4.
  int64_t follower;
  Kernels kernels;
};

// All that this process has measured or was told.
std::vector<LinearChoice> linear_choices();

// Another process has measured it. What is known already stays.
void remember_linear_choice(const LinearChoice &choice);
