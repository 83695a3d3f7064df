//! What a batch of rows weighs, and cutting it into slices of bounded weight.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use forebay_udf::model::HIDDEN_PREFIX;

use crate::{ROW_ERROR_COLUMN, SEQUENCE_COLUMN, TOKENS_COLUMN};

/// The bytes of the batch's rows, not of the larger arrays that they may be a slice of: a slice
/// of a large batch counts as what it shows.
pub(super) fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(array_bytes).sum()
}

fn array_bytes(array: &ArrayRef) -> usize {
    let fixed = array.to_data().get_slice_memory_size().unwrap_or(0);
    // Arrow's count leaves the data of views out.
    let views = match array.data_type() {
        DataType::Utf8View => array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => array.as_binary_view().total_buffer_bytes_used(),
        _ => 0,
    };
    fixed + views
}

/// The bytes of the model's input: of its prepared columns, or of all if there are none.
pub(super) fn input_bytes(batch: &RecordBatch) -> usize {
    let bytes: usize = prepared_columns(batch).map(|(_, column)| array_bytes(&column)).sum();
    if bytes > 0 { bytes } else { batch_bytes(batch) }
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

/// Slices of at most `rows_max` rows and, going by the mean size of a row, `bytes_max` bytes.
pub(super) fn slices(
    batch: RecordBatch,
    rows_max: usize,
    bytes_max: usize,
) -> impl Iterator<Item = RecordBatch> {
    let rows = batch.num_rows();
    let row_bytes = batch_bytes(&batch).div_ceil(rows.max(1)).max(1);
    let step = rows_max.min(bytes_max / row_bytes).max(1);
    (0..rows).step_by(step).map(move |start| batch.slice(start, step.min(rows - start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int64Array, ListArray, StringArray, StringViewArray};
    use arrow::datatypes::Int32Type;

    #[test]
    fn a_slice_counts_as_what_it_shows() {
        let text = |row: usize| format!("a text that is longer than twelve bytes: {row:06}");
        let strings: ArrayRef = Arc::new(StringArray::from_iter_values((0..1000).map(text)));
        let views: ArrayRef = Arc::new(StringViewArray::from_iter_values((0..1000).map(text)));
        for column in [strings, views] {
            let batch = RecordBatch::try_from_iter([("text", column)]).unwrap();
            let whole = batch_bytes(&batch);
            let tenth = batch_bytes(&batch.slice(500, 100));
            assert!(whole >= 47_000, "{whole}");
            assert!(tenth * 9 < whole && whole < tenth * 11, "{tenth} of {whole}");
        }
    }

    #[test]
    fn slices_cover_the_batch_once_within_the_limits() {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
        let batch = RecordBatch::try_from_iter([("id", column)]).unwrap();
        let sizes = |rows_max, bytes_max| {
            slices(batch.clone(), rows_max, bytes_max)
                .map(|slice| slice.num_rows())
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(1000, 1000), [100]);
        assert_eq!(sizes(40, 1000), [40, 40, 20]);
        assert_eq!(sizes(1000, 400), [50, 50]);
        assert_eq!(sizes(1000, 1).len(), 100);
    }

    #[test]
    fn lengths_are_the_lists_lengths_and_zero_for_null() {
        let lists = vec![Some(vec![Some(1), Some(2)]), None, Some(vec![]), Some(vec![Some(3)])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        assert_eq!(lengths_of(&lists).unwrap(), [2, 0, 0, 1]);
        assert_eq!(lengths_of(&lists.slice(2, 2)).unwrap(), [0, 1]);
    }
}
