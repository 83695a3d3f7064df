//! What the rows of a batch weigh, and how to keep no more than that.
//!
//! A batch is often a slice of larger arrays. Most arrays are written as what they show; views are
//! written with all of the buffers that they point into, so that a slice of a hundredth weighs as
//! much as the whole.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, GenericByteViewArray, GenericListArray, MapArray, MutableArrayData,
    OffsetSizeTrait, RecordBatch, RecordBatchOptions, UInt64Array, make_array,
};
use arrow::compute::take;
use arrow::datatypes::{ArrowNativeType, ByteViewType, DataType};
use arrow::error::Result;
use datafusion::common::utils::memory::get_record_batch_memory_size;

/// The bytes of the batch's rows, not of the larger arrays that they may be a slice of: a slice
/// of a large batch counts as what it shows.
pub fn bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(array_bytes).sum()
}

/// The same of one column.
pub fn array_bytes(array: &ArrayRef) -> usize {
    let nulls = array.nulls().map_or(0, |nulls| nulls.len().div_ceil(8));
    match array.data_type() {
        DataType::Utf8View => nulls + views_bytes(array.as_string_view()),
        DataType::BinaryView => nulls + views_bytes(array.as_binary_view()),
        DataType::List(_) => nulls + lists_bytes(array.as_list::<i32>()),
        DataType::LargeList(_) => nulls + lists_bytes(array.as_list::<i64>()),
        DataType::Map(..) => nulls + map_bytes(array.as_map()),
        DataType::FixedSizeList(..) => nulls + array_bytes(array.as_fixed_size_list().values()),
        DataType::Struct(_) => {
            nulls + array.as_struct().columns().iter().map(array_bytes).sum::<usize>()
        }
        _ => flat_bytes(array),
    }
}

/// Arrow's own count, which leaves out what views point to and counts the children of all lists
/// for a slice of them.
fn flat_bytes(array: &ArrayRef) -> usize {
    let counted = array.to_data().get_slice_memory_size();
    counted.unwrap_or_else(|_| array.get_array_memory_size())
}

fn views_bytes<T: ByteViewType>(views: &GenericByteViewArray<T>) -> usize {
    size_of_val::<[u128]>(views.views()) + views.total_buffer_bytes_used()
}

fn lists_bytes<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> usize {
    let offsets = lists.offsets();
    let (first, last) = (offsets[0].as_usize(), offsets[lists.len()].as_usize());
    size_of_val::<[O]>(offsets) + array_bytes(&lists.values().slice(first, last - first))
}

fn map_bytes(map: &MapArray) -> usize {
    let offsets = map.offsets();
    let (first, last) = (offsets[0].as_usize(), offsets[map.len()].as_usize());
    let entries: ArrayRef = Arc::new(map.entries().slice(first, last - first));
    size_of_val::<[i32]>(offsets) + array_bytes(&entries)
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

/// The same rows in arrays that hold nothing else. Copies the rows.
///
/// # Errors
/// As [`compact`].
pub fn owned(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(owned_array).collect::<Result<_>>()?;
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    compact(&RecordBatch::try_new_with_options(batch.schema(), columns, &rows)?)
}

fn owned_array(array: &ArrayRef) -> Result<ArrayRef> {
    // Others would have the buffers to which these point.
    Ok(match array.data_type() {
        DataType::Utf8View => Arc::new(array.as_string_view().gc()),
        DataType::BinaryView => Arc::new(array.as_binary_view().gc()),
        _ => {
            let data = array.to_data();
            let mut copy = MutableArrayData::new(vec![&data], false, data.len());
            copy.try_extend(0, 0, data.len())?;
            make_array(copy.freeze())
        }
    })
}

/// The same rows, [`owned`] if their buffers are parts of much larger ones: those would be kept as long as any of the
/// rows, and whoever counts what buffers take counts them with each batch.
///
/// # Errors
/// As [`compact`].
pub fn detached(batch: RecordBatch) -> Result<RecordBatch> {
    let rows = bytes(&batch);
    let is_part = get_record_batch_memory_size(&batch) > rows + rows / 2;
    if is_part { owned(&batch) } else { Ok(batch) }
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
        BinaryViewArray, FixedSizeListBuilder, Int64Array, Int64Builder, ListArray, ListBuilder,
        MapBuilder, StringArray, StringBuilder, StringViewArray, StringViewBuilder, StructArray,
    };
    use arrow::buffer::Buffer;
    use arrow::datatypes::{Int32Type, Schema};
    use arrow::ipc::reader::StreamDecoder;
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

    fn structs(column: ArrayRef) -> ArrayRef {
        Arc::new(StructArray::from(batch(column)))
    }

    fn structs_of_lists() -> ArrayRef {
        structs(lists_of_views())
    }

    fn maps() -> ArrayRef {
        let mut maps = MapBuilder::new(None, Int64Builder::new(), StringBuilder::new());
        for row in 0..1000 {
            maps.keys().append_value(row);
            maps.values().append_value(text(row as usize));
            maps.append(row % 7 != 0).unwrap();
        }
        Arc::new(maps.finish())
    }

    fn fixed_lists() -> ArrayRef {
        let mut lists = FixedSizeListBuilder::new(StringViewBuilder::new(), 2);
        for row in 0..1000 {
            lists.values().append_value(text(row));
            lists.values().append_null();
            lists.append(true);
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
        let columns = [strings, views(), lists_of_views(), structs(views()), structs_of_lists()];
        for column in columns.into_iter().chain([maps(), fixed_lists()]) {
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
        for column in [views(), binary, lists_of_views(), structs(views())] {
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
    fn an_owned_slice_holds_nothing_else_and_is_the_same() {
        for column in [views(), lists_of_views(), structs(views()), maps(), fixed_lists()] {
            let whole = batch(column);
            let slice = whole.slice(500, 20);
            let owned = owned(&slice).unwrap();
            assert_eq!(owned, slice);
            let (all, held) = (whole.get_array_memory_size(), owned.get_array_memory_size());
            assert!(held * 5 < all, "{held} of {all}");
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

    #[test]
    fn lengths_are_the_lists_lengths_and_zero_for_null() {
        let lists = vec![Some(vec![Some(1), Some(2)]), None, Some(vec![]), Some(vec![Some(3)])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        assert_eq!(lengths_of(&lists).unwrap(), [2, 0, 0, 1]);
        assert_eq!(lengths_of(&lists.slice(2, 2)).unwrap(), [0, 1]);
    }

    #[test]
    fn parts_of_what_is_much_larger_are_copied() {
        for column in [views(), lists_of_views(), structs_of_lists(), maps()] {
            let whole = batch(column);
            let part = whole.slice(17, 40);
            let own = detached(part.clone()).unwrap();
            assert_eq!(own, part);
            assert!(get_record_batch_memory_size(&own) < get_record_batch_memory_size(&part) / 4);
        }
        let none = RecordBatchOptions::new().with_row_count(Some(7));
        let none =
            RecordBatch::try_new_with_options(Schema::empty().into(), vec![], &none).unwrap();
        assert_eq!(detached(none.clone()).unwrap(), none);
        // As in a block that is not compressed: the batch is nearly all of it, and there are others.
        let mut block = vec![];
        let mut writer = StreamWriter::try_new(&mut block, &batch(views()).schema()).unwrap();
        (0..4).for_each(|_| writer.write(&batch(views())).unwrap());
        drop(writer);
        let (mut buffer, mut decoder) = (Buffer::from_vec(block), StreamDecoder::new());
        let first = decoder.decode(&mut buffer).unwrap().unwrap();
        let own = detached(first.clone()).unwrap();
        assert_eq!(own, first);
        assert!(get_record_batch_memory_size(&own) < bytes(&first) * 3 / 2);
        let numbers = batch(Arc::new(Int64Array::from_iter_values(0..1000)));
        let start = |batch: &RecordBatch| batch.column(0).to_data().buffers()[0].as_ptr();
        assert_eq!(start(&detached(numbers.clone()).unwrap()), start(&numbers), "it is all of it");
    }
}
