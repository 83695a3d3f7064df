#include "linear_kernels.h"

#include "vectors.h"

namespace {

// x Φ(x), where Φ is half of 1 + erf(x / √2). The error function is a quotient of polynomials of x², times x, fitted to it
// up to 3.9, behind which it is 1 but for 4e-8; its error is 2e-8 and what rounding adds. Far below 0 the result is 0,
// however large what is left of Φ is multiplied with.
INLINED float gelu(float x) {
  constexpr float kHalfRoot = 0.70710678118654752F, kEnd = 3.9F;
  const float scaled = x * kHalfRoot;
  const float bounded = scaled > -kEnd ? scaled : -kEnd;
  const float y = bounded < kEnd ? bounded : kEnd;
  const float z = y * y;
  float above = 2.050362432e-6F, below = 3.822936424e-5F;
  above = above * z + 2.874360124e-4F;
  above = above * z + 3.836330085e-3F;
  above = above * z + 5.296522865e-2F;
  above = above * z + 0.1919295188F;
  above = above * z + 1.128379033F;
  below = below * z + 1.181584744e-3F;
  below = below * z + 1.510812751e-2F;
  below = below * z + 0.1147532939F;
  below = below * z + 0.5034248911F;
  below = below * z + 1.0F;
  const float part = 0.5F + 0.5F * y * above / below;
  return x * (scaled > -kEnd ? part : 0);
}

// A row at a time: `computed` is told where in the output it is.
template <typename Computed>
INLINED void each_of(int64_t columns, const float *products, const float *bias, const blocks::Part &to,
                     Computed computed) {
  for (int64_t i = 0; i < to.rows; i++) {
    const float *from = products + i * blocks::kColumns;
    float *row = to.first + i * to.stride;
#pragma omp simd
    for (int64_t j = 0; j < columns; j++) row[j] = computed(from[j] + bias[j], i * to.stride + j);
  }
}

// All columns but in the last block: a number that the compiler knows makes loops without a rest.
template <typename Computed>
INLINED void each(const float *products, const float *bias, const blocks::Part &to, Computed computed) {
  if (to.columns == blocks::kColumns) each_of(blocks::kColumns, products, bias, to, computed);
  else each_of(to.columns, products, bias, to, computed);
}

} // namespace

namespace blocks {

FOR_EACH_CPU void finish(const float *products, const float *bias, Follower follower, const float *added,
                         const Part &to) {
  switch (follower) {
  case Follower::Addition: each(products, bias, to, [=](float x, int64_t at) { return x + added[at]; }); break;
  // What is not a number stays so.
  case Follower::Relu: each(products, bias, to, [](float x, int64_t) { return x < 0 ? 0 : x; }); break;
  case Follower::Gelu: each(products, bias, to, [](float x, int64_t) { return gelu(x); }); break;
  default: each(products, bias, to, [](float x, int64_t) { return x; });
  }
}

} // namespace blocks
