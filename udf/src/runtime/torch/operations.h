// Counts what a program computes. Part of libforebay_torch.so; called by shim.cpp.
#pragma once

#include <vector>

#include "program.h"

// Floating point operations of a program's products of matrices, attention and convolutions for these
// inputs: two for each product of two numbers that is added up. The program runs once, on this thread.
double counted_operations(Program &program, std::vector<at::Tensor> inputs);
