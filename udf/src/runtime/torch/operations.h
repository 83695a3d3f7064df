// Counts what a program computes. Part of libforebay_torch.so; called by shim.cpp.
#pragma once

#include <vector>

#include <torch/script.h>

// Floating point operations of a program's products of matrices, attention and convolutions for these
// inputs: two for each product of two numbers that is added up. The program runs once, on this thread.
double counted_operations(torch::jit::Module &module, std::vector<c10::IValue> inputs);
