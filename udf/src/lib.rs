//! Models and functions: what a model is, how it is stored, and what executes it.
//!
//! - [`model`]: declarations, packages on disk, the catalog that gives them SQL names
//! - [`transform`]: columns → the plain arrays that a model takes (token ids, tensors)
//! - [`runtime`]: loads a model on a device and runs it (libtorch, ONNX Runtime, or emulated)
//! - [`feature`]: SQL functions for the work around models (vector distance, images)
//!
//! This is the lowest crate: it depends on arrow and DataFusion's expression API, and knows
//! neither plans nor operators nor scheduling. `tch` stays inside `runtime::torch`, and `unsafe` there
//! and where images call libjpeg-turbo.

pub mod error;
pub mod feature;
pub mod files;
pub mod folders;
pub mod model;
pub mod runtime;
pub mod transform;

#[cfg(test)]
mod fixture;

pub use error::{ErrorClass, ModelError, RuntimeError};
