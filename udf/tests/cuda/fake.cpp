// What libtorch's CUDA part registers when it is loaded, and what the executable then finds of it.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

namespace at {

struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

} // namespace at

extern "C" {

bool is_found() { return at::detail::getCUDAHooks().hasCUDA(); }

bool rounds_fp32() {
  const at::Context &context = at::globalContext();
  return context.allowTF32CuDNN() || context.allowTF32CuBLAS();
}

bool plans_attention() { return at::globalContext().userEnabledCuDNNSDP(); }
}
