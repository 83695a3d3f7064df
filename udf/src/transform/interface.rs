//! What a transform is.

use arrow::array::ArrayRef;
use arrow::datatypes::FieldRef;

use crate::error::RuntimeError;

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
