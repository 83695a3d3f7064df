//! One batch on its way through a model: which of its rows the model sees, and putting the results
//! back beside the rows that it did not.

use arrow::array::{
    Array, ArrayRef, BooleanArray, BooleanBufferBuilder, RecordBatch, UInt32Array, UInt32Builder,
    new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::{concat, filter, take};
use arrow::datatypes::FieldRef;
use arrow::error::ArrowError;
use forebay_udf::model::BatchLimits;

use crate::weight;

/// The rows of a batch that the model computes: those without a NULL, and of neighbors with equal
/// inputs the first.
#[derive(Debug)]
pub(super) struct ModelRows {
    /// The prepared columns of these rows, without NULLs.
    pub(super) columns: Vec<ArrayRef>,
    /// How many there are.
    pub(super) rows: usize,
    /// For each row of the batch which of these rows stands for it; NULL if none does. `None` if
    /// every row stands for itself.
    places: Option<UInt32Array>,
}

impl ModelRows {
    /// `groups`: rows with the same number are neighbors and have equal inputs.
    pub(super) fn try_new(
        columns: &[ArrayRef],
        groups: Option<&UInt32Array>,
        rows: usize,
    ) -> Result<Self, ArrowError> {
        let valid = columns.iter().fold(None, |valid, column| {
            NullBuffer::union(valid.as_ref(), column.logical_nulls().as_ref())
        });
        let valid = valid.filter(|valid| valid.null_count() > 0);
        let repeats = |row: usize| {
            row > 0 && groups.is_some_and(|groups| groups.value(row) == groups.value(row - 1))
        };
        if valid.is_none() && !(1..rows).any(repeats) {
            return Ok(Self { columns: columns.to_vec(), rows, places: None });
        }
        let is_valid = |row: usize| valid.as_ref().is_none_or(|valid| valid.is_valid(row));
        let mut is_computed = BooleanBufferBuilder::new(rows);
        let mut places = UInt32Builder::with_capacity(rows);
        let mut computed = 0u32;
        for row in 0..rows {
            let computes = is_valid(row) && !repeats(row);
            computed += u32::from(computes);
            is_computed.append(computes);
            places.append_option(is_valid(row).then(|| computed - 1));
        }
        let mask = BooleanArray::new(is_computed.finish(), None);
        let columns =
            columns.iter().map(|column| filter(column, &mask)).collect::<Result<_, _>>()?;
        Ok(Self { columns, rows: computed as usize, places: Some(places.finish()) })
    }

    /// One value per computed row → one per row of the batch.
    pub(super) fn scatter(&self, outputs: Vec<ArrayRef>) -> Result<Vec<ArrayRef>, ArrowError> {
        let Some(places) = &self.places else { return Ok(outputs) };
        outputs.iter().map(|output| take(output, places, None)).collect()
    }
}

/// Outputs of rows that no model has seen.
pub(super) fn null_outputs(outputs: &[FieldRef], rows: usize) -> Vec<ArrayRef> {
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
/// batches come as large as the plan makes them, and limits may have become smaller since one was formed.
/// Neighbors with equal inputs stay together and count once.
pub(super) fn pieces(
    batch: &RecordBatch,
    columns: &[ArrayRef],
    groups: Option<&UInt32Array>,
    limits: &BatchLimits,
) -> Vec<RecordBatch> {
    let lengths = columns.iter().find_map(weight::lengths_of);
    let rows = batch.num_rows();
    let bytes: usize = columns.iter().map(weight::array_bytes).sum();
    let row_bytes = bytes.div_ceil(rows.max(1)) as u64;
    let fits = |count: usize, longest: usize| {
        count <= limits.max_rows as usize
            && limits.max_tokens.is_none_or(|max| count.saturating_mul(longest) <= max as usize)
            && limits.max_bytes.is_none_or(|max| count as u64 * row_bytes <= max)
    };
    let repeats = |row: usize| {
        groups.is_some_and(|groups| row > 0 && groups.value(row) == groups.value(row - 1))
    };
    let mut pieces = Vec::new();
    let (mut start, mut count, mut longest) = (0, 0, 0);
    for row in (0..rows).filter(|row| !repeats(*row)) {
        let length = lengths.as_ref().map_or(0, |lengths| lengths[row] as usize);
        if count > 0 && !fits(count + 1, longest.max(length)) {
            pieces.push(batch.slice(start, row - start));
            (start, count, longest) = (row, 0, 0);
        }
        count += 1;
        longest = longest.max(length);
    }
    if start < rows {
        pieces.push(batch.slice(start, rows - start));
    }
    pieces
}
