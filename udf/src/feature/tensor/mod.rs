//! Tensors as columns, in the two types that Arrow defines for them.
//!
//! - all of one shape: `arrow.fixed_shape_tensor` over a fixed-size list, which is what models take
//! - each of its own shape: `arrow.variable_shape_tensor` over `STRUCT<data, shape>`
//!
//! Elements are in row-major order.

mod builder;
mod functions;
mod part;
mod shapes;
mod types;

use std::sync::Arc;

use datafusion::logical_expr::ScalarUDF;

pub(super) use builder::TensorBuilder;
pub use types::{check_tensor, column_type_name, tensor_type_name};
pub(crate) use types::{fixed_shape_field, variable_shape_field};

/// All functions of this folder.
pub(super) fn functions() -> Vec<Arc<ScalarUDF>> {
    [functions::functions(), shapes::functions()].concat()
}

/// What planning puts in the place of some of them.
pub(super) fn planned_functions() -> Vec<Arc<ScalarUDF>> {
    shapes::planned_functions()
}
