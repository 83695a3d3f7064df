// Tensors on CPUs in memory of the executable's own allocator. Part of libforebay_torch.so; called by allocator.rs.
//
// Each batch has another shape, and what libtorch keeps of some of them lies between what it frees of all: the C
// library's heap grows with every new length. An allocator that has pages for each size does not.
#include <cstddef>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

namespace {

// Gives so many bytes, aligned as libtorch wants it, or null.
using Allocate = void *(*)(size_t bytes);
// Takes back what that has given.
using Free = void (*)(void *start);

class ExecutablesAllocator final : public c10::Allocator {
public:
  ExecutablesAllocator(Allocate allocate, Free free) : allocate_(allocate), free_(free) {}

  c10::DataPtr allocate(size_t bytes) override {
    void *start = bytes == 0 ? nullptr : allocate_(bytes);
    TORCH_CHECK(start || bytes == 0, "not enough memory: a tensor takes ", bytes, " bytes");
    return {start, start, free_, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return free_; }

  void copy_data(void *to, const void *from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

private:
  Allocate allocate_;
  Free free_;
};

} // namespace

extern "C" {

// From now on; what was allocated before is freed as it would have been.
void forebay_allocate_with(Allocate allocate, Free free) {
  // Used until the process ends.
  c10::SetCPUAllocator(new ExecutablesAllocator(allocate, free));
}
}
