//! One batch on its way through a model: which of its rows the model sees, and putting the results
//! back beside the rows that it did not.

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::compute::{concat, filter, take};
use arrow::datatypes::Fields;
use arrow::error::ArrowError;
use forebay_udf::model::BatchLimits;

use crate::exchange::lengths_of;

/// The prepared columns of the rows that have no NULL in them, and which rows these are.
#[derive(Debug)]
pub(super) struct ValidRows {
    /// Without NULLs; empty columns if no row is valid.
    pub(super) columns: Vec<ArrayRef>,
    /// How many there are.
    pub(super) rows: usize,
    /// Of the whole batch; `None` if every row is valid.
    valid: Option<NullBuffer>,
}

impl ValidRows {
    pub(super) fn try_new(columns: &[ArrayRef], rows: usize) -> Result<Self, ArrowError> {
        let valid = columns.iter().fold(None, |valid, column| {
            NullBuffer::union(valid.as_ref(), column.logical_nulls().as_ref())
        });
        let Some(valid) = valid.filter(|valid| valid.null_count() > 0) else {
            return Ok(Self { columns: columns.to_vec(), rows, valid: None });
        };
        let mask = BooleanArray::new(valid.inner().clone(), None);
        let columns =
            columns.iter().map(|column| filter(column, &mask)).collect::<Result<_, _>>()?;
        Ok(Self { columns, rows: rows - valid.null_count(), valid: Some(valid) })
    }

    /// The model's outputs for the valid rows → outputs for all rows.
    pub(super) fn scatter(&self, outputs: Vec<ArrayRef>) -> Result<Vec<ArrayRef>, ArrowError> {
        let Some(valid) = &self.valid else { return Ok(outputs) };
        let mut next = 0;
        let place = |is_valid: bool| {
            let place = is_valid.then_some(next);
            next += u32::from(is_valid);
            place
        };
        let places: UInt32Array = valid.iter().map(place).collect();
        outputs.iter().map(|output| take(output, &places, None)).collect()
    }
}

/// Outputs of rows that no model has seen.
pub(super) fn null_outputs(outputs: &Fields, rows: usize) -> Vec<ArrayRef> {
    outputs.iter().map(|output| new_null_array(output.data_type(), rows)).collect()
}

/// The outputs of several runs of rows, joined.
pub(super) fn join(parts: Vec<Vec<ArrayRef>>) -> Result<Vec<ArrayRef>, ArrowError> {
    let columns = parts.first().map_or(0, Vec::len);
    let column = |at: usize| {
        let arrays: Vec<&dyn Array> = parts.iter().map(|part| part[at].as_ref()).collect();
        concat(&arrays)
    };
    (0..columns).map(column).collect()
}

/// The rows `start..start + rows` of each column.
pub(super) fn slice(columns: &[ArrayRef], start: usize, rows: usize) -> Vec<ArrayRef> {
    columns.iter().map(|column| column.slice(start, rows)).collect()
}

/// Cuts a batch, in order, into pieces within the model's limits: without an exchange below,
/// batches come as large as the plan makes them.
pub(super) fn pieces(
    batch: &RecordBatch,
    prepared: &[usize],
    limits: &BatchLimits,
    rows_max: usize,
) -> Vec<RecordBatch> {
    let rows_max = rows_max.min(limits.max_rows as usize).max(1);
    let columns: Vec<&ArrayRef> = prepared.iter().map(|at| batch.column(*at)).collect();
    let lengths = columns.iter().find_map(|column| lengths_of(column));
    let rows = batch.num_rows();
    let bytes: usize =
        columns.iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum();
    let row_bytes = bytes.div_ceil(rows.max(1)) as u64;
    let fits = |count: usize, longest: u64| {
        count <= rows_max
            && limits.max_tokens.is_none_or(|max| count as u64 * longest <= u64::from(max))
            && limits.max_bytes.is_none_or(|max| count as u64 * row_bytes <= max)
    };
    let mut pieces = Vec::new();
    let (mut start, mut longest) = (0, 0);
    for row in 0..rows {
        let length = lengths.as_ref().map_or(0, |lengths| u64::from(lengths[row]));
        let grown = longest.max(length);
        if row > start && !fits(row - start + 1, grown) {
            pieces.push(batch.slice(start, row - start));
            (start, longest) = (row, length);
        } else {
            longest = grown;
        }
    }
    if start < rows {
        pieces.push(batch.slice(start, rows - start));
    }
    pieces
}
