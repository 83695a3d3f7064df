//! What executes a model: loads its program on a device and runs batches.
//!
//! [`Replica::prepare`] is apart from [`Replica::forward`], so that batch k+1 becomes device input
//! while batch k computes. The engine sees Arrow arrays and these two calls, never a tensor.

mod cpu;
mod emulated;
mod labels;
pub mod onnx;
mod outputs;
mod places;
pub mod torch;
mod work;

pub use cpu::check_precision;

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::ArrayRef;

use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, RuntimeKind};

/// A device of this process that a replica can be loaded on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Device {
    /// The CPU cores of this process, which replicas share.
    Cpu,
    /// A CUDA device by ordinal.
    Cuda(u16),
    /// An emulated accelerator by ordinal.
    Emulated(u16),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Emulated(ordinal) => write!(f, "emulated:{ordinal}"),
        }
    }
}

/// A batch in the form that its replica's device takes.
pub struct Prepared {
    /// Rows in the batch.
    pub rows: usize,
    /// Padded size of the batch: rows times the longest row, in tokens; `rows` without tokens.
    pub padded: usize,
    pub(crate) inputs: Box<dyn Any + Send>,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("rows", &self.rows).field("padded", &self.padded).finish()
    }
}

/// One loaded copy of a model on one device. Shared: calls from several threads are independent.
pub trait Replica: fmt::Debug + Send + Sync {
    /// Turns prepared columns (the transform's output, at least one row, no NULLs) into device
    /// inputs. Cheap and without the device's compute.
    ///
    /// # Errors
    /// [`RuntimeError::Program`] or [`RuntimeError::OutOfMemory`].
    fn prepare(&self, columns: &[ArrayRef]) -> Result<Prepared, RuntimeError>;

    /// Runs the model: one array per declared output, of the declared type, `rows` long.
    /// Blocks the calling thread until the results are in host memory.
    ///
    /// # Errors
    /// [`RuntimeError::Program`], [`RuntimeError::OutOfMemory`], or [`RuntimeError::Output`] if
    /// the results disagree with the declaration.
    fn forward(&self, batch: Prepared) -> Result<Vec<ArrayRef>, RuntimeError>;

    /// Floating point operations that a batch of so many rows and so large a padded size takes, as far as
    /// they are counted: those of a program's matrices. `None` where they are not.
    fn operations(&self, _rows: usize, _padded: usize) -> Option<f64> {
        None
    }
}

/// The CUDA devices by the account of NVIDIA's driver, whatever library would use them.
///
/// # Errors
/// Why there are none.
pub fn driver_devices() -> Result<Vec<torch::CudaDevice>, String> {
    torch::driver_devices()
}

/// What [`enter_thread`] has set for the calling thread, undone on drop.
#[derive(Debug)]
pub struct ThreadGuard {
    _torch: Option<torch::ThreadGuard>,
    _onnx: Option<onnx::ThreadGuard>,
    // The settings belong to one thread, so the guard must stay on it.
    _not_send: PhantomData<*const ()>,
}

/// Readies the calling thread for this model on this device: called once, and kept for as long as
/// the thread calls [`Replica::prepare`] or [`Replica::forward`].
///
/// # Errors
/// [`RuntimeError::Library`] or [`RuntimeError::Device`].
pub fn enter_thread(model: &ModelDeclaration, device: Device) -> Result<ThreadGuard, RuntimeError> {
    let (mut torch, mut onnx) = (None, None);
    match &model.runtime {
        RuntimeKind::Torch { .. } => torch = Some(torch::enter_thread(&model.resources, device)?),
        RuntimeKind::Onnx { .. } => onnx = Some(onnx::enter_thread(&model.resources, device)?),
        RuntimeKind::Emulated { .. } => {}
    }
    Ok(ThreadGuard { _torch: torch, _onnx: onnx, _not_send: PhantomData })
}

/// Loads a model on a device. Blocks; takes as long as reading the weights.
///
/// # Errors
/// [`RuntimeError`] of every kind but those of a batch.
pub fn load(
    model: &ModelDeclaration,
    package: &Package,
    device: Device,
) -> Result<Arc<dyn Replica>, RuntimeError> {
    match &model.runtime {
        RuntimeKind::Torch { .. } => torch::load(model, package, device),
        RuntimeKind::Onnx { .. } => onnx::load(model, package, device),
        RuntimeKind::Emulated { .. } => emulated::load(model, device),
    }
}
