//! What becomes of rows whose inference fails, when the query is to go on without them.
//!
//! Their outputs are NULL. The error of each row comes from its transform or from the model, and
//! says nothing of the batch that the row was in.

use arrow::array::{Array, ArrayRef};
use arrow::compute::is_not_null;
use arrow::compute::kernels::zip::zip;
use arrow::error::ArrowError;
use forebay_udf::model::RowError;

use crate::device::BatchError;

/// The errors of a batch's computed rows (which row, what, at which attempt), as a column of the type of `_error`; `None` if there are
/// none.
pub(super) fn row_errors(errors: Vec<(usize, BatchError, i32)>, rows: usize) -> Option<ArrayRef> {
    if errors.is_empty() {
        return None;
    }
    let mut column = vec![None; rows];
    for (row, error, attempt) in errors {
        if let BatchError::Runtime(error) = error {
            column[row] = Some(RowError::new(&error, attempt));
        }
    }
    Some(RowError::column(&column))
}

/// The errors of the transform, and of the model for the rows that passed it.
pub(super) fn route(transform: &ArrayRef, model: Option<ArrayRef>) -> Result<ArrayRef, ArrowError> {
    match model {
        Some(model) if transform.null_count() == transform.len() => Ok(model),
        Some(model) => zip(&is_not_null(transform)?, transform, &model),
        None => Ok(ArrayRef::clone(transform)),
    }
}
