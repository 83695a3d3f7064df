//! What the rows of a batch weigh, and how to keep no more than that.
//!
//! A batch is often a slice of larger arrays. Most arrays are written as what they show; views are
//! written with all of the buffers that they point into, so that a slice of a hundredth weighs as
//! much as the whole.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, GenericByteViewArray, RecordBatch, UInt64Array, make_array,
};
use arrow::compute::take;
use arrow::datatypes::{ByteViewType, DataType};
use arrow::error::Result;

/// The bytes of the batch's rows, not of the larger arrays that they may be a slice of: a slice
/// of a large batch counts as what it shows.
pub fn bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(array_bytes).sum()
}

/// The same of one column.
pub fn array_bytes(array: &ArrayRef) -> usize {
    let fixed = array.to_data().get_slice_memory_size();
    // Arrow's count leaves the data of views out.
    let views = match array.data_type() {
        DataType::Utf8View => array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => array.as_binary_view().total_buffer_bytes_used(),
        _ => 0,
    };
    fixed.unwrap_or_else(|_| array.get_array_memory_size()) + views
}

/// Slices of at most `rows_max` rows and, going by the mean size of a row, `bytes_max` bytes.
pub fn slices(
    batch: RecordBatch,
    rows_max: usize,
    bytes_max: usize,
) -> impl Iterator<Item = RecordBatch> {
    let rows = batch.num_rows();
    let row_bytes = bytes(&batch).div_ceil(rows.max(1)).max(1);
    let step = rows_max.min(bytes_max / row_bytes).max(1);
    (0..rows).step_by(step).map(move |start| batch.slice(start, step.min(rows - start)))
}

/// The same rows, without what the buffers of views hold beside them. Copies only views of which
/// the rows use less than three quarters, also those in lists, structs and maps.
///
/// # Errors
/// None that is known: if arrow cannot copy a nested array.
pub fn compact(batch: &RecordBatch) -> Result<RecordBatch> {
    if !batch.columns().iter().any(|column| holds_views(column.data_type())) {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter().map(compact_array).collect::<Result<_>>()?;
    RecordBatch::try_new(batch.schema(), columns)
}

fn compact_array(array: &ArrayRef) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        DataType::Utf8View => compact_views(array, array.as_string_view()),
        DataType::BinaryView => compact_views(array, array.as_binary_view()),
        nested if holds_views(nested) => compact_children(array)?,
        _ => Arc::clone(array),
    })
}

fn compact_views<T: ByteViewType>(array: &ArrayRef, views: &GenericByteViewArray<T>) -> ArrayRef {
    let held: usize = views.data_buffers().iter().map(|buffer| buffer.len()).sum();
    let is_sparse = views.total_buffer_bytes_used() < held / 4 * 3;
    if is_sparse { Arc::new(views.gc()) } else { Arc::clone(array) }
}

fn compact_children(array: &ArrayRef) -> Result<ArrayRef> {
    // A slice of lists still has the children of all.
    let rows = UInt64Array::from_iter_values(0..array.len() as u64);
    let data = take(array, &rows, None)?.into_data();
    let children = data.child_data().iter().cloned().map(make_array);
    let children = children.map(|child| Ok(compact_array(&child)?.into_data()));
    let children = children.collect::<Result<_>>()?;
    Ok(make_array(data.into_builder().child_data(children).build()?))
}

fn holds_views(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View | DataType::BinaryView => true,
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => holds_views(field.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| holds_views(field.data_type())),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        BinaryViewArray, Int64Array, ListBuilder, StringArray, StringViewArray, StringViewBuilder,
        StructArray,
    };
    use arrow::ipc::writer::StreamWriter;

    use super::*;

    fn text(row: usize) -> String {
        format!("a text that is longer than twelve bytes: {row:06}")
    }

    fn batch(column: ArrayRef) -> RecordBatch {
        RecordBatch::try_from_iter([("column", column)]).unwrap()
    }

    fn views() -> ArrayRef {
        Arc::new(StringViewArray::from_iter_values((0..1000).map(text)))
    }

    fn lists_of_views() -> ArrayRef {
        let mut lists = ListBuilder::new(StringViewBuilder::new());
        for row in 0..1000 {
            lists.values().append_value(text(row));
            lists.values().append_null();
            lists.append(row % 7 != 0);
        }
        Arc::new(lists.finish())
    }

    fn written(batch: &RecordBatch) -> usize {
        let mut writer = StreamWriter::try_new(vec![], &batch.schema()).unwrap();
        writer.write(batch).unwrap();
        writer.into_inner().unwrap().len()
    }

    #[test]
    fn a_slice_counts_as_what_it_shows() {
        let strings: ArrayRef = Arc::new(StringArray::from_iter_values((0..1000).map(text)));
        for column in [strings, views()] {
            let batch = batch(column);
            let (whole, tenth) = (bytes(&batch), bytes(&batch.slice(500, 100)));
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
    fn a_compact_slice_is_written_without_the_rest_and_is_the_same() {
        let binary = (0..1000).map(|row| text(row).into_bytes());
        let binary: ArrayRef = Arc::new(BinaryViewArray::from_iter_values(binary));
        let views_field = batch(views()).schema().field(0).clone();
        let structs: ArrayRef =
            Arc::new(StructArray::new(vec![views_field].into(), vec![views()], None));
        for column in [views(), binary, lists_of_views(), structs] {
            let whole = batch(column);
            let slice = whole.slice(500, 20);
            let compacted = compact(&slice).unwrap();
            assert_eq!(compacted, slice);
            let (all, as_it_is, less) = (written(&whole), written(&slice), written(&compacted));
            assert!(as_it_is > all / 2, "views are written whole: {as_it_is} of {all}");
            assert!(less * 10 < as_it_is, "{less} of {as_it_is}");
        }
    }

    #[test]
    fn what_is_dense_is_not_copied() {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        assert!(Arc::ptr_eq(&compact_array(&numbers).unwrap(), &numbers));
        let views = views();
        assert!(Arc::ptr_eq(&compact_array(&views).unwrap(), &views));
    }

    #[test]
    fn no_rows_stay_no_rows() {
        for column in [views(), lists_of_views()] {
            let none = batch(column).slice(10, 0);
            assert_eq!(compact(&none).unwrap(), none);
        }
    }
}
