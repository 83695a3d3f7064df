// What tch lacks, over the device-generic parts of libtorch, so that neither CUDA headers nor CUDA
// libraries are needed to build it. Part of libforebay_torch.so; declared in shim.rs.
//
// No exception leaves a function: it returns false or null, and the calling thread's message says
// why. A device is an ordinal, or -1 for the CPU; a kind is a c10::ScalarType, or -1 for "as it is".
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <caffe2/core/common.h>
#include <torch/script.h>

#include "linear.h"
#include "operations.h"
#include "program.h"
#include "streams.h"

namespace {

thread_local std::string last_error;

template <typename F> auto guarded(F body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const c10::Error &e) {
    last_error = e.what_without_backtrace();
  } catch (const std::exception &e) {
    last_error = e.what();
  } catch (...) {
    last_error = "unknown C++ exception";
  }
  return {};
}

c10::Device device_of(int ordinal) {
  return ordinal < 0 ? c10::Device(c10::kCPU)
                     : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(ordinal));
}

// Module::to converts every buffer, also integer ones such as position ids, which then no longer
// index anything. This one converts floating point tensors only.
void convert(const torch::jit::Module &module, c10::ScalarType kind) {
  torch::NoGradGuard no_grad;
  auto one = [kind](const at::Tensor &tensor) {
    if (tensor.is_floating_point()) tensor.set_data(tensor.to(kind));
  };
  for (const at::Tensor &tensor : module.parameters()) one(tensor);
  for (const at::Tensor &tensor : module.buffers()) one(tensor);
}

std::vector<at::Tensor> tensors_at(at::Tensor *const *pointers, size_t count) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(count);
  for (size_t i = 0; i < count; i++) tensors.push_back(*pointers[i]);
  return tensors;
}

} // namespace

void forebay_remember_error(std::string message) noexcept { last_error = std::move(message); }

extern "C" {

const char *forebay_last_error() { return last_error.c_str(); }

// What this library was built from; the executable asks before it calls anything else.
const char *forebay_interface() { return FOREBAY_INTERFACE; }

// The version of libtorch, or nothing. Not by at::show_config(): that asks for the functions of CUDA, which
// libtorch then takes for missing as long as the process lives.
const char *forebay_torch_version() {
  const auto &options = caffe2::GetBuildOptions();
  auto found = options.find("TORCH_VERSION");
  return found == options.end() ? "" : found->second.c_str();
}

// The vectors that libtorch's kernels use on this machine, as PyTorch names them.
const char *forebay_cpu_capability() {
  static const std::string name = at::get_cpu_capability();
  return name.c_str();
}

// Settings of the process. fp32 means fp32, in convolutions too, which would be computed in TF32 on a GPU. And
// attention in half precision is not left to cuDNN: it makes a plan for each pair of rows and length, which takes
// longer than most batches.
bool forebay_configure() {
  return guarded([] {
    at::Context &context = at::globalContext();
    context.setAllowTF32CuDNN(false);
    context.setAllowTF32CuBLAS(false);
    context.setSDPUseCuDNN(false);
    return true;
  });
}

// Whether products of fp32 may be rounded to TF32, by all threads that start some from now on.
bool forebay_allow_tf32(bool allow) {
  return guarded([&] {
    at::Context &context = at::globalContext();
    context.setAllowTF32CuDNN(allow);
    context.setAllowTF32CuBLAS(allow);
    if (context.allowTF32CuDNN() != allow || context.allowTF32CuBLAS() != allow) {
      throw std::runtime_error("libtorch did not take the setting for TF32");
    }
    return true;
  });
}

// Inference mode for the calling thread: no autograd bookkeeping, no version counters.
void *forebay_inference_mode_enter() { return new c10::InferenceMode(true); }

void forebay_inference_mode_leave(void *guard) { delete static_cast<c10::InferenceMode *>(guard); }

// Threads that one operation started by the calling thread may use. With OpenMP this is the
// thread's own setting, except that a thread's first operation resets it to the value set last by
// any thread; asking first makes that happen now.
bool forebay_set_threads(int count) {
  return guarded([&] {
    at::get_num_threads();
    at::set_num_threads(count);
    return true;
  });
}

// Accelerators that libtorch sees; -1 on failure.
int forebay_device_count() {
  return guarded([] { return c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() + 1; }) - 1;
}

bool forebay_device_memory(int device, uint64_t *free, uint64_t *total) {
  return guarded([&] {
    auto info = at::accelerator::getMemoryInfo(static_cast<c10::DeviceIndex>(device));
    *free = info.first;
    *total = info.second;
    return true;
  });
}

// Gives memory that no tensor uses back to the devices.
bool forebay_empty_cache() {
  return guarded([] {
    at::accelerator::emptyCache();
    return true;
  });
}

// Waits for all that the calling thread has started on the device.
bool forebay_stream_synchronize(int device) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    guard.synchronizeStream(guard.getStream(device_of(device)));
    return true;
  });
}

// A TorchScript file on a device, in evaluation mode.
void *forebay_program_load(const char *path, int device, int kind) {
  return guarded([&]() -> Program * {
    auto module = torch::jit::load(path, device_of(device), /*load_debug_files=*/false);
    module.eval();
    if (kind >= 0) convert(module, static_cast<c10::ScalarType>(kind));
    return new ScriptProgram(std::move(module));
  });
}

// Native code on a device: see program.h.
void *forebay_program_load_compiled(const char *path, int device, size_t calls) {
  return guarded([&]() -> Program * { return new CompiledProgram(path, device, calls); });
}

// Whether it can be run without a mask: see program.h.
bool forebay_program_can_do_without_mask(void *program) {
  return static_cast<Program *>(program)->can_do_without_mask();
}

// Gives linear layers and attention of a TorchScript program on the CPU to these kernels, or with a negative number to
// the fastest: see linear.h.
bool forebay_program_pack(void *program, int64_t kernels, PackedLayers *packed) {
  return guarded([&] {
    if (auto *module = static_cast<Program *>(program)->module()) {
      const auto wanted = static_cast<Kernels>(kernels);
      *packed = pack_linear_layers(*module, kernels < 0 ? std::nullopt : std::optional(wanted));
    }
    return true;
  });
}

// How many shapes of linear layers were measured, of which the first `capacity` are written; -1 on failure.
int64_t forebay_linear_choices(LinearChoice *choices, size_t capacity) {
  return guarded([&]() -> int64_t {
    const std::vector<LinearChoice> known = linear_choices();
    std::copy_n(known.begin(), std::min(known.size(), capacity), choices);
    return static_cast<int64_t>(known.size()) + 1;
  }) - 1;
}

// Takes what another process measured.
bool forebay_linear_remember(const LinearChoice *choices, size_t count) {
  return guarded([&] {
    std::for_each(choices, choices + count, remember_linear_choice);
    return true;
  });
}

void forebay_program_free(void *program) { delete static_cast<Program *>(program); }

// Runs the program. Returns how many tensors it gave, of which the first `capacity` are in
// `outputs` and belong to the caller; -1 on failure.
int64_t forebay_program_run(void *program, bool without_mask, at::Tensor *const *inputs,
                            size_t count, at::Tensor **outputs, size_t capacity) {
  return guarded([&]() -> int64_t {
    auto *found = static_cast<Program *>(program);
    auto given = tensors_at(inputs, count);
    const auto tensors =
        without_mask ? found->run_without_mask(std::move(given)) : found->run(std::move(given));
    for (size_t i = 0; i < tensors.size() && i < capacity; i++) {
      outputs[i] = new at::Tensor(tensors[i]);
    }
    return static_cast<int64_t>(tensors.size()) + 1;
  }) - 1;
}

// Floating point operations of the program for these inputs: see operations.h. -1 on failure.
double forebay_program_operations(void *program, at::Tensor *const *inputs, size_t count) {
  return guarded([&]() -> double {
    return counted_operations(*static_cast<Program *>(program), tensors_at(inputs, count)) + 1;
  }) - 1;
}

// torch-sys lets C++ call back into Rust streams. This library cannot see the executable's
// functions, and we load models from files only, so every stream fails here.
bool tch_write_stream_destructor(void *) { return false; }
bool tch_write_stream_write(void *, const uint8_t *, size_t, size_t *) { return false; }
bool tch_read_stream_destructor(void *) { return false; }
bool tch_read_stream_stream_position(void *, uint64_t *) { return false; }
bool tch_read_stream_seek_start(void *, uint64_t, uint64_t *) { return false; }
bool tch_read_stream_seek_end(void *, int64_t, uint64_t *) { return false; }
bool tch_read_stream_read(void *, uint8_t *, size_t, size_t *) { return false; }

}
