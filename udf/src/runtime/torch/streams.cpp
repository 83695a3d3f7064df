// The two streams of a thread that runs a model on a GPU, over the device-generic parts of libtorch. Declared in
// streams.rs, which also says what the order of the calls has to be; how long each buffer lives: docs/gpu.md.
//
// No exception leaves a function: as in shim.cpp.
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "streams.h"

namespace {

template <typename F> auto guarded(F body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const c10::Error &e) {
    forebay_remember_error(e.what_without_backtrace());
  } catch (const std::exception &e) {
    forebay_remember_error(e.what());
  } catch (...) {
    forebay_remember_error("unknown C++ exception");
  }
  return {};
}

c10::Stream stream_of_pool(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

// Where inputs are copied, and where the model runs; the latter is the thread's current stream.
struct Streams {
  explicit Streams(c10::Device device)
      : copies(stream_of_pool(device)), compute(stream_of_pool(device)), current(compute) {}
  c10::Stream copies;
  c10::Stream compute;
  c10::StreamGuard current;
};

at::Tensor pinned_like(const at::Tensor &tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
}

} // namespace

extern "C" {

// Two streams for the calling thread, which gives them back.
void *forebay_streams_enter(int ordinal) {
  return guarded([&] {
    return new Streams(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(ordinal)));
  });
}

void forebay_streams_leave(void *streams) { delete static_cast<Streams *>(streams); }

// A copy of a tensor of the CPU in pinned memory. Any thread may ask for it.
at::Tensor *forebay_pinned(const at::Tensor *tensor) {
  return guarded([&] {
    at::Tensor pinned = pinned_like(*tensor);
    pinned.copy_(*tensor);
    return new at::Tensor(std::move(pinned));
  });
}

// Frees a tensor in pinned memory. Its allocator records an event on each stream that has copied it, and if the
// device has failed that throws in a destructor, which would end the process: then the memory stays as it is.
void forebay_pinned_free(at::Tensor *pinned, int ordinal) {
  const bool answers = guarded([&] {
    c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    guard.queryStream(guard.getStream(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(ordinal))));
    return true;
  });
  if (answers) delete pinned;
}

// Enqueues the copy of pinned memory to the device.
at::Tensor *forebay_streams_copy_in(void *streams, const at::Tensor *pinned) {
  return guarded([&] {
    auto &copies = static_cast<Streams *>(streams)->copies;
    c10::StreamGuard current(copies);
    return new at::Tensor(pinned->to(copies.device(), pinned->scalar_type(), /*non_blocking=*/true));
  });
}

// What is enqueued for the model from now on waits for the copies that are enqueued by now.
bool forebay_streams_await_copies(void *streams) {
  return guarded([&] {
    auto &both = *static_cast<Streams *>(streams);
    c10::Event copied(both.copies.device_type());
    copied.record(both.copies);
    copied.block(both.compute);
    return true;
  });
}

// Enqueues the copy of a result to pinned memory, behind the model. What is half as wide as a float is widened
// on the device.
at::Tensor *forebay_streams_copy_out(const at::Tensor *result) {
  return guarded([&] {
    const auto kind = result->scalar_type();
    const bool is_half = kind == at::kHalf || kind == at::kBFloat16;
    const at::Tensor wide = result->to(is_half ? at::kFloat : kind).contiguous();
    at::Tensor pinned = pinned_like(wide);
    pinned.copy_(wide, /*non_blocking=*/true);
    return new at::Tensor(std::move(pinned));
  });
}

// An event that happens once all that is enqueued for the model by now is done.
void *forebay_streams_record(void *streams) {
  return guarded([&] {
    auto &compute = static_cast<Streams *>(streams)->compute;
    auto event = std::make_unique<c10::Event>(compute.device_type());
    event->record(compute);
    return static_cast<void *>(event.release());
  });
}

bool forebay_streams_synchronize(void *streams) {
  return guarded([&] {
    auto &both = *static_cast<Streams *>(streams);
    c10::impl::VirtualGuardImpl guard(both.copies.device_type());
    guard.synchronizeStream(both.copies);
    guard.synchronizeStream(both.compute);
    return true;
  });
}

bool forebay_event_wait(void *event) {
  return guarded([&] {
    static_cast<c10::Event *>(event)->synchronize();
    return true;
  });
}

void forebay_event_free(void *event) { delete static_cast<c10::Event *>(event); }

// Bytes of the device that libtorch has for tensors of this process, in use or kept for later ones.
bool forebay_reserved_bytes(int ordinal, uint64_t *bytes) {
  return guarded([&] {
    const auto stats = at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(ordinal));
    *bytes = static_cast<uint64_t>(stats.reserved_bytes[0].current);
    return true;
  });
}

// Gives pinned memory that no tensor uses back to the host.
bool forebay_empty_pinned() {
  return guarded([] {
    at::getHostAllocator(at::kCUDA)->empty_cache();
    return true;
  });
}

}
