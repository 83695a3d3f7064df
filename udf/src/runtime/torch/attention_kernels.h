// The loops of attention.cpp, which are compiled for several kinds of CPU. Without libtorch, so that optimising
// them takes no time. Matrices are row by row; a stride is how many numbers its rows are apart.
#pragma once

#include <cstdint>

namespace attention {

// So many numbers are taken at a time: columns are padded to a multiple.
constexpr int64_t kBlock = 16;

// As libtorch has it: the upper half of a float's bits.
struct BFloat16 {
  uint16_t bits;
};

// The rows of a head. Those of the next one, if there is one, are `next` numbers further on: they are fetched
// meanwhile.
template <typename Element> struct Rows {
  const Element *first;
  int64_t count, width, stride, next;
};

// Rows of numbers next to each other, each times `scale`, and zeros up to `padded` rows.
void pack_rows(const Rows<float> &rows, int64_t padded, float scale, float *to);
void pack_rows(const Rows<BFloat16> &rows, int64_t padded, float scale, float *to);

// The same turned: [width, padded], with fewer than kBlock rows of zeros.
void pack_turned(const Rows<float> &rows, int64_t padded, float *to);
void pack_turned(const Rows<BFloat16> &rows, int64_t padded, float *to);

// Adds a mask to scores [rows, stride]: its numbers, or minus infinity where it is false.
void add_mask(const float *mask, int64_t mask_stride, int64_t rows, int64_t columns, float *scores, int64_t stride);
void add_mask(const BFloat16 *mask, int64_t mask_stride, int64_t rows, int64_t columns, float *scores, int64_t stride);
void add_mask(const bool *mask, int64_t mask_stride, int64_t rows, int64_t columns, float *scores, int64_t stride);

// Raises `largest` of each row to what is in it, and puts minus infinity behind its columns. From here on rows are
// taken with that: vectors of their whole length have no rest.
void raise_largest(float *scores, int64_t stride, int64_t rows, int64_t columns, float *largest);

// e^(score - the row's largest) in the scores' place, and their sum added to that of the row. Of a row whose largest is
// minus infinity all are zeros.
void exponentiate(float *scores, int64_t stride, int64_t rows, const float *largest, float *sums);

// Rows divided by their sums; what has the sum 0 becomes 0.
void divide(const float *from, int64_t rows, int64_t columns, const float *sums, float *to, int64_t stride);
void divide(const float *from, int64_t rows, int64_t columns, const float *sums, BFloat16 *to, int64_t stride);

} // namespace attention
