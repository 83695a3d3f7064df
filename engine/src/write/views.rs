//! Columns of views in files of Parquet.
//!
//! `Utf8View` and `BinaryView` are how rows are held in memory. In a file they would only be a note that its readers
//! should hold them so too: some do not know these types, and a reader's rows then point into the pages that they come from, each
//! of which counts as theirs, whole, where memory is limited.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use datafusion::common::Result;

/// The columns with texts and bytes in place of views of them.
pub(super) fn without_views(schema: &SchemaRef) -> SchemaRef {
    match fields(schema.fields()) {
        Some(fields) => Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())),
        None => Arc::clone(schema),
    }
}

/// The rows with such columns.
///
/// # Errors
/// If the texts of a column have 2 GiB together.
pub(super) fn as_stored(rows: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = rows.columns().iter().zip(schema.fields());
    if columns.clone().all(|(column, field)| column.data_type() == field.data_type()) {
        return Ok(rows);
    }
    let columns = columns.map(|(column, field)| match column.data_type() == field.data_type() {
        true => Ok(Arc::clone(column)),
        false => cast(column, field.data_type()),
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let count = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &count)?)
}

/// None if none of them has views.
fn fields(all: &Fields) -> Option<Fields> {
    let stored: Vec<Option<FieldRef>> = all.iter().map(field).collect();
    let has_views = stored.iter().any(Option::is_some);
    let of_both = stored.into_iter().zip(all);
    has_views.then(|| {
        of_both.map(|(stored, field)| stored.unwrap_or_else(|| Arc::clone(field))).collect()
    })
}

fn field(known: &FieldRef) -> Option<FieldRef> {
    let stored = data_type(known.data_type())?;
    Some(Arc::new(Field::clone(known).with_data_type(stored)))
}

fn data_type(known: &DataType) -> Option<DataType> {
    Some(match known {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(items) => DataType::List(field(items)?),
        DataType::LargeList(items) => DataType::LargeList(field(items)?),
        DataType::FixedSizeList(items, size) => DataType::FixedSizeList(field(items)?, *size),
        DataType::Struct(all) => DataType::Struct(fields(all)?),
        DataType::Map(entries, is_sorted) => DataType::Map(field(entries)?, *is_sorted),
        DataType::Dictionary(keys, values) => {
            DataType::Dictionary(keys.clone(), Box::new(data_type(values)?))
        }
        _ => return None,
    })
}
