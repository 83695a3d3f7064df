#include "attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vectors.h"

namespace {

using attention::BFloat16;
using attention::kBlock;
using attention::Rows;

INLINED float number(float from) { return from; }

INLINED float number(BFloat16 from) {
  const uint32_t bits = static_cast<uint32_t>(from.bits) << 16;
  float to = 0;
  std::memcpy(&to, &bits, sizeof to);
  return to;
}

// What a mask adds to a score.
INLINED float number(bool is_kept) { return is_kept ? 0 : -INFINITY; }

INLINED void put(float from, float &to) { to = from; }

// The nearest, of two as near the even one.
INLINED void put(float from, BFloat16 &to) {
  constexpr uint32_t kHalf = 0x7FFF, kNotANumber = 0x7FC0;
  uint32_t bits = 0;
  std::memcpy(&bits, &from, sizeof bits);
  const uint32_t rounded = (bits + kHalf + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>(from == from ? rounded : kNotANumber);
}

// So that a row is in the second level of the cache when its turn comes: a head's rows are too far from each other for
// the CPU to see what comes next.
template <typename Element> INLINED void fetch_next(const Rows<Element> &rows, int64_t row) {
  constexpr int64_t kLine = 64 / sizeof(Element);
  const Element *next = rows.first + row * rows.stride + rows.next;
  for (int64_t j = 0; j < rows.width; j += kLine) __builtin_prefetch(next + j, 0, 2);
}

template <typename Element>
INLINED void packed_rows(const Rows<Element> &rows, int64_t padded, float scale, float *to) {
  const int64_t width = rows.width;
  for (int64_t i = 0; i < rows.count; i++) {
    const Element *row = rows.first + i * rows.stride;
#pragma omp simd
    for (int64_t j = 0; j < width; j++) to[i * width + j] = number(row[j]) * scale;
    fetch_next(rows, i);
  }
  std::memset(to + rows.count * width, 0, (padded - rows.count) * width * sizeof(float));
}

// A block of rows at a time, which stays in the first level of the cache until all of its columns are read.
template <typename Element> INLINED void packed_turned(const Rows<Element> &rows, int64_t padded, float *to) {
  const int64_t stride = rows.stride;
  for (int64_t first = 0; first < padded; first += kBlock) {
    const Element *block = rows.first + first * stride;
    const int64_t count = std::min(kBlock, rows.count - first);
    for (int64_t i = 0; i < count; i++) fetch_next(rows, first + i);
    for (int64_t j = 0; j < rows.width; j++) {
      float *row = to + j * padded + first;
      if (count == kBlock) {
#pragma omp simd
        for (int64_t i = 0; i < kBlock; i++) row[i] = number(block[i * stride + j]);
      } else {
        for (int64_t i = 0; i < kBlock; i++) row[i] = i < count ? number(block[i * stride + j]) : 0;
      }
    }
  }
}

template <typename Element>
INLINED void added(const Element *mask, int64_t mask_stride, int64_t rows, int64_t columns, float *scores,
                   int64_t stride) {
  for (int64_t i = 0; i < rows; i++) {
#pragma omp simd
    for (int64_t j = 0; j < columns; j++) scores[i * stride + j] += number(mask[i * mask_stride + j]);
  }
}

template <typename Element>
INLINED void divided(const float *from, int64_t rows, int64_t columns, const float *sums, Element *to, int64_t stride) {
  for (int64_t i = 0; i < rows; i++) {
    const float factor = sums[i] == 0 ? 0 : 1 / sums[i];
#pragma omp simd
    for (int64_t j = 0; j < columns; j++) put(from[i * columns + j] * factor, to[i * stride + j]);
  }
}

} // namespace

namespace attention {

FOR_EACH_CPU void pack_rows(const Rows<float> &rows, int64_t padded, float scale, float *to) {
  packed_rows(rows, padded, scale, to);
}

FOR_EACH_CPU void pack_rows(const Rows<BFloat16> &rows, int64_t padded, float scale, float *to) {
  packed_rows(rows, padded, scale, to);
}

FOR_EACH_CPU void pack_turned(const Rows<float> &rows, int64_t padded, float *to) {
  packed_turned(rows, padded, to);
}

FOR_EACH_CPU void pack_turned(const Rows<BFloat16> &rows, int64_t padded, float *to) {
  packed_turned(rows, padded, to);
}

FOR_EACH_CPU void add_mask(const float *mask, int64_t mask_stride, int64_t rows, int64_t columns, float *scores,
                           int64_t stride) {
  added(mask, mask_stride, rows, columns, scores, stride);
}

FOR_EACH_CPU void add_mask(const BFloat16 *mask, int64_t mask_stride, int64_t rows, int64_t columns, float *scores,
                           int64_t stride) {
  added(mask, mask_stride, rows, columns, scores, stride);
}

FOR_EACH_CPU void add_mask(const bool *mask, int64_t mask_stride, int64_t rows, int64_t columns, float *scores,
                           int64_t stride) {
  added(mask, mask_stride, rows, columns, scores, stride);
}

FOR_EACH_CPU void raise_largest(float *scores, int64_t stride, int64_t rows, int64_t columns, float *largest) {
  const int32_t rest = static_cast<int32_t>(columns - (stride - kBlock));
  for (int64_t i = 0; i < rows; i++) {
    float *row = scores + i * stride, *last = row + stride - kBlock;
    // All of the block: a vector that is read right after some of its numbers were written waits.
    if (rest < kBlock) {
#pragma omp simd
      for (int32_t j = 0; j < kBlock; j++) last[j] = j < rest ? last[j] : -INFINITY;
    }
    float most = largest[i];
#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < stride; j++) most = row[j] > most ? row[j] : most;
    largest[i] = most;
  }
}

FOR_EACH_CPU void exponentiate(float *scores, int64_t stride, int64_t rows, const float *largest, float *sums) {
  for (int64_t i = 0; i < rows; i++) {
    float *row = scores + i * stride;
    const float most = largest[i] == -INFINITY ? 0 : largest[i];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < stride; j++) {
      row[j] = exponential(row[j] - most);
      sum += row[j];
    }
    sums[i] += sum;
  }
}

FOR_EACH_CPU void divide(const float *from, int64_t rows, int64_t columns, const float *sums, float *to,
                         int64_t stride) {
  divided(from, rows, columns, sums, to, stride);
}

FOR_EACH_CPU void divide(const float *from, int64_t rows, int64_t columns, const float *sums, BFloat16 *to,
                         int64_t stride) {
  divided(from, rows, columns, sums, to, stride);
}

} // namespace attention
