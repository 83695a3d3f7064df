// The loops of attention.cpp, which are compiled for several kinds of CPU. Without libtorch, so that optimising
// them takes no time.
#pragma once

#include <cstdint>

namespace attention {

// [keys, width] with rows that are `stride` apart becomes [width, keys], each number times `scale`.
void transpose_scaled(const float *from, int64_t stride, int64_t keys, int64_t width, float scale, float *to);

// What a mask, whose rows are `stride` apart, adds to scores: 0 where it is true, minus infinity elsewhere.
void write_addends(const bool *mask, int64_t stride, int64_t rows, int64_t columns, float *to);

// e^(score - the row's largest) in the scores' place, and the sum of each row: 0 if all its scores are minus
// infinity, not a number if one of them is none.
void exponentiate_rows(float *scores, int64_t rows, int64_t columns, float *sums);

// Divides rows that are `stride` apart by their sums; what has the sum 0 becomes 0.
void divide_rows(float *values, int64_t stride, int64_t rows, int64_t columns, const float *sums);

} // namespace attention
