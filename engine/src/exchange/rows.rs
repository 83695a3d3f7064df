//! What a batch holds for a model: its prepared columns, their bytes, the rows' lengths.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
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
    lengths_of(tokens)
}

/// The length of each list; 0 for NULL.
pub(crate) fn lengths_of(lists: &ArrayRef) -> Option<Vec<u32>> {
    let length = |row: usize, length: usize| {
        if lists.is_null(row) { 0 } else { u32::try_from(length).unwrap_or(u32::MAX) }
    };
    if let Some(list) = lists.as_list_opt::<i32>() {
        let lengths = list.offsets().lengths().enumerate();
        return Some(lengths.map(|(row, found)| length(row, found)).collect());
    }
    let list = lists.as_list_opt::<i64>()?;
    let lengths = list.offsets().lengths().enumerate();
    Some(lengths.map(|(row, found)| length(row, found)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::ListArray;
    use arrow::datatypes::Int32Type;

    #[test]
    fn lengths_are_the_lists_lengths_and_zero_for_null() {
        let lists = vec![Some(vec![Some(1), Some(2)]), None, Some(vec![]), Some(vec![Some(3)])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        assert_eq!(lengths_of(&lists).unwrap(), [2, 0, 0, 1]);
        assert_eq!(lengths_of(&lists.slice(2, 2)).unwrap(), [0, 1]);
    }
}
