//! Columns → the plain arrays that a model takes.
//!
//! A transform is CPU work that runs in front of the exchange, on the producers' side, so that
//! batches are formed by the true length of a row and the accelerator never waits for a tokenizer.
//! Its results travel as ordinary Arrow columns. Rows with a NULL input stay NULL and never reach
//! the model.

mod image;
mod interface;
mod tensor;
mod text;
mod tokens;

pub use interface::{Transform, Transformed};
pub(crate) use tokens::TokenColumn;

use std::sync::Arc;

use arrow::datatypes::FieldRef;

use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, TransformKind};

/// The prepared columns of a model, without loading anything: for planning.
pub fn output_fields(model: &ModelDeclaration) -> Vec<FieldRef> {
    match &model.transform {
        TransformKind::Tokenize { .. } => tokens::output_fields(model),
        TransformKind::Tensor => tensor::output_fields(&model.signature),
        TransformKind::Image { crop, .. } => vec![image::output_field(*crop)],
    }
}

/// Loads the transform of a model from its verified package.
///
/// # Errors
/// [`RuntimeError::Load`] if a file that it needs is not usable.
pub fn load(
    model: &ModelDeclaration,
    package: &Package,
) -> Result<Arc<dyn Transform>, RuntimeError> {
    Ok(match &model.transform {
        TransformKind::Tokenize { .. } => Arc::new(text::Tokenize::load(model, package)?),
        TransformKind::Tensor => Arc::new(tensor::Tensors::new(model)),
        TransformKind::Image { resize, crop, filter, fit, middle, .. } => {
            Arc::new(image::Images::new(model, (*resize, *crop), (*filter, *fit, *middle))?)
        }
    })
}
