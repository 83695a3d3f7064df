// What loops over numbers have in common: they are compiled for several kinds of CPU, of which whoever loads the
// library takes what suits its own. Without libtorch.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 12
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && !defined(__clang__) && defined(__GNUC__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif
#define INLINED inline __attribute__((always_inline))

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
