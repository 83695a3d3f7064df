// The two streams of a thread that runs a model on a GPU. Part of libforebay_torch.so.
#pragma once

#include <string>

// Keeps what went wrong for the calling thread, which asks for it (shim.cpp).
void forebay_remember_error(std::string message) noexcept;
