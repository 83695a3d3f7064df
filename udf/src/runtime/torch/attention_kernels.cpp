#include "attention_kernels.h"

#include <cmath>
#include <cstring>

// Who loads the library takes what suits its CPU.
#if defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 12
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && !defined(__clang__) && defined(__GNUC__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif
#define INLINED inline __attribute__((always_inline))

namespace {

// Of numbers that are 0 or less, with a relative error of 2e-7; below e^-87 it is 0. As Cody and Waite have it: x = n ln 2
// + r with n whole and r at most half of ln 2, so that e^x = 2^n e^r, whose power series is cut off after r^7.
INLINED float exponential(float x) {
  constexpr float kLeast = -87.0F, kLog2E = 1.4426950408889634F;
  // ln 2 in two parts: the first has so few bits that its product with n is exact.
  constexpr float kHigh = 0.693359375F, kLow = -2.12194440054690583e-4F;
  // Added to a small number, it leaves that number rounded in the last bits.
  constexpr float kRounding = 12582912.0F;
  constexpr int32_t kRoundingBits = 0x4B400000, kBias = 127, kMantissaBits = 23;
  const float rounded = x * kLog2E + kRounding;
  const float n = rounded - kRounding;
  const float r = (x - n * kHigh) - n * kLow;
  float series = 1.0F / 5040;
  series = series * r + 1.0F / 720;
  series = series * r + 1.0F / 120;
  series = series * r + 1.0F / 24;
  series = series * r + 1.0F / 6;
  series = series * r + 0.5F;
  series = series * r + 1.0F;
  series = series * r + 1.0F;
  uint32_t bits = 0;
  std::memcpy(&bits, &rounded, sizeof bits);
  bits = (bits - kRoundingBits + kBias) << kMantissaBits;
  float power = 0;
  std::memcpy(&power, &bits, sizeof power);
  return x < kLeast ? 0 : series * power;
}

} // namespace

namespace attention {

FOR_EACH_CPU void pack_rows(const float *from, int64_t stride, int64_t rows, int64_t padded, int64_t width, float scale,
                            float *to) {
  for (int64_t i = 0; i < rows; i++) {
#pragma omp simd
    for (int64_t j = 0; j < width; j++) to[i * width + j] = from[i * stride + j] * scale;
  }
  std::memset(to + rows * width, 0, (padded - rows) * width * sizeof(float));
}

FOR_EACH_CPU void pack_turned(const float *from, int64_t stride, int64_t rows, int64_t padded, int64_t width,
                              float *to) {
  for (int64_t j = 0; j < width; j++) {
    float *row = to + j * padded;
#pragma omp simd
    for (int64_t i = 0; i < rows; i++) row[i] = from[i * stride + j];
    for (int64_t i = rows; i < padded; i++) row[i] = 0;
  }
}

FOR_EACH_CPU void add_mask(const float *mask, int64_t mask_stride, int64_t rows, int64_t columns, float *scores,
                           int64_t stride) {
  for (int64_t i = 0; i < rows; i++) {
#pragma omp simd
    for (int64_t j = 0; j < columns; j++) scores[i * stride + j] += mask[i * mask_stride + j];
  }
}

FOR_EACH_CPU void add_mask(const bool *mask, int64_t mask_stride, int64_t rows, int64_t columns, float *scores,
                           int64_t stride) {
  for (int64_t i = 0; i < rows; i++) {
#pragma omp simd
    for (int64_t j = 0; j < columns; j++) scores[i * stride + j] += mask[i * mask_stride + j] ? 0 : -INFINITY;
  }
}

FOR_EACH_CPU void raise_largest(float *scores, int64_t stride, int64_t rows, int64_t columns, float *largest) {
  for (int64_t i = 0; i < rows; i++) {
    float *row = scores + i * stride;
    for (int64_t j = columns; j < stride; j++) row[j] = -INFINITY;
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
  for (int64_t i = 0; i < rows; i++) {
    const float factor = sums[i] == 0 ? 0 : 1 / sums[i];
#pragma omp simd
    for (int64_t j = 0; j < columns; j++) to[i * stride + j] = from[i * columns + j] * factor;
  }
}

} // namespace attention
