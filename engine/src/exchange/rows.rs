//! What a batch holds for a model: its prepared columns, their bytes, the rows' lengths.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use forebay_udf::model::HIDDEN_PREFIX;

use crate::{ROW_ERROR_COLUMN, SEQUENCE_COLUMN, TOKENS_COLUMN, weight};

/// The bytes of the model's input: of its prepared columns, or of all if there are none.
pub(super) fn input_bytes(batch: &RecordBatch) -> usize {
    let bytes: usize =
        prepared_columns(batch).map(|(_, column)| weight::array_bytes(&column)).sum();
    if bytes > 0 { bytes } else { weight::bytes(batch) }
}

/// The columns that the model is given, by name.
pub(super) fn prepared_columns(batch: &RecordBatch) -> impl Iterator<Item = (&str, ArrayRef)> {
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, column)| (field.name().as_str(), Arc::clone(column)));
    columns.filter(|(name, _)| {
        name.starts_with(HIDDEN_PREFIX) && ![SEQUENCE_COLUMN, ROW_ERROR_COLUMN].contains(name)
    })
}

/// Each row's length in tokens, if the rows have tokens; 0 for NULL.
pub(super) fn token_lengths(batch: &RecordBatch) -> Option<Vec<u32>> {
    let tokens = batch.column_by_name(TOKENS_COLUMN)?;
    weight::lengths_of(tokens)
}
