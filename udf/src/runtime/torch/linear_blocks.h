// Linear layers that are cut into blocks, each of which one of oneDNN's kernels of small products multiplies. Part of
// libforebay_torch.so; called by linear.cpp.
//
// oneDNN computes whole layers with these kernels itself where the CPU has AVX-512. With AVX2 it does not: there it
// copies what it multiplies for each product, as MKL does.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace blocks {

// Whether oneDNN has the kernels for this CPU.
bool are_known();

// Whether they are faster here than oneDNN's own layers, of so many inputs.
bool are_faster(int64_t inputs);

// Weights [outputs, inputs] of float32 as blocks [blocks, inputs, outputs of a block], with zeros behind the last
// output.
at::Tensor pack(const at::Tensor &weight);

// aten::linear with packed weights, and an activation: none, relu, tanh or gelu, of which `algorithm` says how it is
// approximated.
at::Tensor linear(const at::Tensor &input, const at::Tensor &packed, int64_t outputs,
                  const std::optional<at::Tensor> &bias, std::string_view activation, std::string_view algorithm);

// The same and what is added to it.
at::Tensor linear_plus(const at::Tensor &input, const at::Tensor &packed, int64_t outputs,
                       const std::optional<at::Tensor> &bias, const at::Tensor &added);

} // namespace blocks
