//! The functions of `streams.cpp`, made safe: two streams of a GPU, and pinned memory.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tch::Tensor;

use super::super::replica::Device;
use super::shim::{Failure, checked, last_error};

unsafe extern "C" {
    fn forebay_streams_enter(ordinal: c_int) -> *mut c_void;
    fn forebay_streams_leave(streams: *mut c_void);
    fn forebay_pinned(tensor: *const c_void) -> *mut c_void;
    fn forebay_pinned_free(pinned: *mut c_void, ordinal: c_int);
    fn forebay_streams_copy_in(streams: *mut c_void, pinned: *const c_void) -> *mut c_void;
    fn forebay_streams_await_copies(streams: *mut c_void) -> bool;
    fn forebay_streams_copy_out(result: *const c_void) -> *mut c_void;
    fn forebay_streams_record(streams: *mut c_void) -> *mut c_void;
    fn forebay_streams_synchronize(streams: *mut c_void) -> bool;
    fn forebay_event_wait(event: *mut c_void) -> bool;
    fn forebay_event_free(event: *mut c_void);
    fn forebay_reserved_bytes(ordinal: c_int, bytes: *mut u64) -> bool;
}

/// Takes what a function gave, which is null if it failed.
fn owned(tensor: *mut c_void) -> Result<Tensor, Failure> {
    let tensor = NonNull::new(tensor).ok_or_else(last_error)?;
    // SAFETY: a new at::Tensor, which nobody else frees.
    Ok(unsafe { Tensor::from_ptr(tensor.as_ptr().cast()) })
}

/// Bytes of pinned memory in use.
pub(super) type PinnedBytes = Arc<AtomicU64>;

/// A tensor in pinned memory, counted while it lives.
#[derive(Debug)]
pub(super) struct Pinned {
    tensor: ManuallyDrop<Tensor>,
    device: Device,
    bytes: u64,
    counter: PinnedBytes,
}

impl Pinned {
    /// A copy of a tensor of the CPU, for a device; a CPU needs no other memory than any.
    pub(super) fn of(
        tensor: &Tensor,
        device: Device,
        counter: &PinnedBytes,
    ) -> Result<Self, Failure> {
        let pinned = match device {
            // SAFETY: borrows a tensor for the call.
            Device::Cuda(_) => owned(unsafe { forebay_pinned(tensor.as_ptr().cast()) })?,
            Device::Cpu | Device::Emulated(_) => tensor
                .f_empty_like()
                .and_then(|mut copy| copy.f_copy_(tensor).map(|()| copy))
                .map_err(|e| e.to_string())?,
        };
        Ok(Self::counted(pinned, device, counter))
    }

    pub(super) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    fn counted(tensor: Tensor, device: Device, counter: &PinnedBytes) -> Self {
        let bytes = (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
        counter.fetch_add(bytes, Ordering::Relaxed);
        Self { tensor: ManuallyDrop::new(tensor), device, bytes, counter: Arc::clone(counter) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.bytes, Ordering::Relaxed);
        // SAFETY: the tensor is not used again.
        let tensor = unsafe { ManuallyDrop::take(&mut self.tensor) };
        if let Device::Cuda(ordinal) = self.device {
            let tensor = ManuallyDrop::new(tensor);
            // SAFETY: a tensor of this value alone, whose own drop does not run.
            unsafe { forebay_pinned_free(tensor.as_ptr().cast_mut().cast(), c_int::from(ordinal)) }
        }
    }
}

/// Two streams, of which the program's is the thread's current one while it lives. The raw pointer keeps it on its
/// thread.
#[derive(Debug)]
pub(super) struct StreamPair {
    streams: NonNull<c_void>,
    device: Device,
}

/// Something that happens on the program's stream.
#[derive(Debug)]
pub(super) struct Event(NonNull<c_void>);

impl StreamPair {
    pub(super) fn enter(ordinal: u16) -> Result<Self, Failure> {
        // SAFETY: no pointers; exceptions are caught on the other side, here and below.
        let streams = unsafe { forebay_streams_enter(c_int::from(ordinal)) };
        let streams = NonNull::new(streams).ok_or_else(last_error)?;
        Ok(Self { streams, device: Device::Cuda(ordinal) })
    }

    /// Enqueues the copy of an input. The memory of neither side may be freed before both streams are done with it.
    pub(super) fn copy_in(&self, pinned: &Pinned) -> Result<Tensor, Failure> {
        let input = pinned.tensor().as_ptr().cast();
        // SAFETY: made by `enter` on this thread, and a tensor that is borrowed for the call; whoever calls keeps it.
        owned(unsafe { forebay_streams_copy_in(self.streams.as_ptr(), input) })
    }

    /// Has the program's stream wait for the copies so far.
    pub(super) fn await_copies(&self) -> Result<(), Failure> {
        // SAFETY: made by `enter` on this thread.
        checked(unsafe { forebay_streams_await_copies(self.streams.as_ptr()) })
    }

    /// Enqueues the copy of a result, behind the program.
    pub(super) fn copy_out(
        &self,
        result: &Tensor,
        counter: &PinnedBytes,
    ) -> Result<Pinned, Failure> {
        // SAFETY: a tensor that is borrowed for the call; the program's stream is current while `self` lives.
        let pinned = owned(unsafe { forebay_streams_copy_out(result.as_ptr().cast()) })?;
        Ok(Pinned::counted(pinned, self.device, counter))
    }

    /// What happens once all that is on the program's stream by now is done.
    pub(super) fn record(&self) -> Result<Event, Failure> {
        // SAFETY: made by `enter` on this thread.
        let event = unsafe { forebay_streams_record(self.streams.as_ptr()) };
        NonNull::new(event).map(Event).ok_or_else(last_error)
    }

    /// Waits until both are empty.
    pub(super) fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: made by `enter` on this thread.
        checked(unsafe { forebay_streams_synchronize(self.streams.as_ptr()) })
    }
}

impl Drop for StreamPair {
    fn drop(&mut self) {
        // SAFETY: made by `enter` on this thread, left once.
        unsafe { forebay_streams_leave(self.streams.as_ptr()) }
    }
}

impl Event {
    /// Waits until it has happened.
    pub(super) fn wait(&self) -> Result<(), Failure> {
        // SAFETY: made by `StreamPair::record`, freed on drop.
        checked(unsafe { forebay_event_wait(self.0.as_ptr()) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: owned by this value; freed once.
        unsafe { forebay_event_free(self.0.as_ptr()) }
    }
}

/// Bytes of a device that libtorch has for all tensors of this process, in use or kept for later ones.
pub(super) fn reserved_bytes(ordinal: u16) -> Result<u64, Failure> {
    let mut bytes = 0;
    // SAFETY: a pointer to a local that outlives the call.
    checked(unsafe { forebay_reserved_bytes(c_int::from(ordinal), &mut bytes) })?;
    Ok(bytes)
}
