//! What a model is, before anything runs it.
//!
//! A [`ModelDeclaration`] is all that a plan carries: signature, transform, resources, limits and
//! where the [`Package`] with the weights is, pinned by hash. The [`Catalog`] maps SQL names to
//! declarations. Nothing here loads weights or knows a device that exists.

mod batch;
mod batch_caps;
mod call;
mod catalog;
mod compiled;
mod declaration;
mod emulated;
mod hashes;
mod head;
mod learned;
mod location;
mod manifest;
mod number;
mod onnx;
mod options;
mod package;
mod quality;
mod resources;
mod row_error;
mod signature;
mod template;

pub use batch_caps::BatchCaps;
pub use catalog::{Catalog, CatalogEntry, IfExists};
pub use compiled::{Architecture, Compiled, Vectors};
pub use declaration::{
    BatchLimits, Filter, Fit, Layout, Middle, ModelDeclaration, RuntimeKind, Side, TransformKind,
};
pub use emulated::{Curve, EmulatedLoss};
pub use hashes::{hash_bytes, hash_file};
pub use head::{Activation, Dense, Function, Head, Pooling};
pub use learned::{BatchAdvice, Learned, Lesson, Observed, SearchRange, Taken};
pub use location::{Pinned, parse_location};
pub use manifest::Manifest;
pub use number::Number;
pub(crate) use onnx::products;
pub use options::{Determinism, DeviceChoice, ModelOptions, OnError, Precision};
pub use package::{Described, FileCheck, Package, packages_dir};
pub use quality::Quality;
pub use resources::{Resources, Share};
pub use row_error::{ERROR_COLUMN, RowError, error_field};
pub use signature::{Signature, parse_type, type_name};
pub(crate) use signature::{list_item, parts};
pub(crate) use template::Template;

/// What the names of columns begin with that exist only between Forebay's operators. No model and
/// no input may name a column so.
pub const HIDDEN_PREFIX: &str = "__forebay_";
