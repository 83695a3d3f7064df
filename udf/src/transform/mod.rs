//! Columns → the plain arrays that a model takes.
//!
//! A transform is CPU work that runs in front of the exchange, on the producers' side, so that
//! batches are formed by the true length of a row and the accelerator never waits for a tokenizer.
//! Its results travel as ordinary Arrow columns. Rows with a NULL input stay NULL and never reach
//! the model.

mod image;
mod tensor;
mod text;
mod tokens;

pub(crate) use tokens::TokenColumn;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::FieldRef;

use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, TransformKind};

/// What becomes of rows.
#[derive(Clone, Debug)]
pub struct Transformed {
    /// Those of [`Transform::output_fields`], each with as many rows as the input.
    pub columns: Vec<ArrayRef>,
    /// How many rows held more than the model takes, and lost the rest.
    pub truncated: usize,
}

/// Prepares a model's input columns. Stateless and shared between threads.
pub trait Transform: std::fmt::Debug + Send + Sync {
    /// The prepared columns. A list column's length is the row's length in tokens.
    fn output_fields(&self) -> Vec<FieldRef>;

    /// Prepares the model's input columns (in the order of the signature, all of equal length)
    /// into the columns of [`Self::output_fields`], row by row and of the same length. A row with
    /// a NULL in any input is NULL in every result.
    ///
    /// # Errors
    /// [`RuntimeError::Transform`] names the input and the reason.
    fn apply(&self, inputs: &[ArrayRef]) -> Result<Transformed, RuntimeError>;
}

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
