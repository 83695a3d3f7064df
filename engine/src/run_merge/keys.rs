//! The keys of a batch's rows, and the beginning of each as a number.
//!
//! Most keys differ in their first bytes, and a number compares without looking where the key lies: G. Graefe,
//! Implementing Sorting in Database Systems (2006), calls it a poor man's normalized key.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, GenericByteArray, GenericByteViewArray, RecordBatch, new_empty_array,
};
use arrow::compute::SortOptions;
use arrow::datatypes::{ByteArrayType, ByteViewType, DataType, Schema};
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};

use crate::weight::array_bytes;

/// How rows of one schema compare.
#[derive(Debug)]
pub(super) enum KeyOrder {
    /// By one column of texts: by their bytes, where they are.
    Texts { by: LexOrdering, options: SortOptions },
    /// By arrow's row format, which is made of each batch.
    Rows { by: LexOrdering, converter: RowConverter },
}

/// Bytes that compare as the rows do; none of a NULL.
trait KeyBytes: Send + Sync {
    fn get(&self, row: usize) -> Option<&[u8]>;

    /// Adds the [prefixes](prefix) of these rows.
    fn prefixes(&self, rows: Range<usize>, options: SortOptions, to: &mut Vec<u128>) {
        to.extend(rows.map(|row| prefix(self.get(row), options)));
    }
}

/// The keys of the rows of a batch.
pub(super) struct Keys {
    bytes: Arc<dyn KeyBytes>,
    options: SortOptions,
    pub(super) rows: usize,
    /// Bytes that they take beside the batch.
    pub(super) size: usize,
}

impl KeyOrder {
    /// # Errors
    /// If the order is not one of such rows.
    pub(super) fn try_new(by: &LexOrdering, schema: &Schema) -> Result<Self> {
        let by = by.clone();
        let kinds = by.iter().map(|key| key.expr.data_type(schema)).collect::<Result<Vec<_>>>()?;
        if let [kind] = kinds.as_slice()
            && texts(&new_empty_array(kind)).is_some()
        {
            let options = by.first().options;
            return Ok(Self::Texts { by, options });
        }
        let field =
            |(kind, key): (_, &PhysicalSortExpr)| SortField::new_with_options(kind, key.options);
        let converter = RowConverter::new(kinds.into_iter().zip(&by).map(field).collect())?;
        Ok(Self::Rows { by, converter })
    }

    /// # Errors
    /// If a key cannot be computed.
    pub(super) fn keys_of(&self, batch: &RecordBatch) -> Result<Keys> {
        let columns = |by: &LexOrdering| -> Result<Vec<ArrayRef>> {
            by.iter().map(|key| key.expr.evaluate(batch)?.into_array(batch.num_rows())).collect()
        };
        match self {
            Self::Texts { by, options } => {
                let column = columns(by)?.swap_remove(0);
                let kind = column.data_type();
                let bytes = texts(&column).ok_or_else(|| {
                    internal_datafusion_err!("rows are to be merged by {by}, which is {kind}")
                })?;
                // A column is the batch's own; what is computed is not.
                let is_own = by.first().expr.is::<Column>();
                let size = if is_own { 0 } else { array_bytes(&column) };
                Ok(Keys { bytes, options: *options, rows: batch.num_rows(), size })
            }
            Self::Rows { by, converter } => {
                let rows = converter.convert_columns(&columns(by)?)?;
                let (size, options) = (rows.size(), SortOptions::default());
                Ok(Keys { bytes: Arc::new(rows), options, rows: batch.num_rows(), size })
            }
        }
    }
}

impl Keys {
    /// The prefixes of these rows, in place of what was there.
    pub(super) fn prefixes(&self, rows: Range<usize>, to: &mut Vec<u128>) {
        to.clear();
        self.bytes.prefixes(rows, self.options, to);
    }

    /// A row beside one of a batch with the same order.
    pub(super) fn compare(&self, row: usize, other: &Self, other_row: usize) -> Ordering {
        let (own, other) = (self.bytes.get(row), other.bytes.get(other_row));
        let SortOptions { descending, nulls_first } = self.options;
        let of_values = match descending {
            true => other.cmp(&own),
            false => own.cmp(&other),
        };
        match (own.is_none(), other.is_none()) {
            (false, false) => of_values,
            (own, other) if nulls_first => other.cmp(&own),
            (own, other) => own.cmp(&other),
        }
    }
}

/// The first sixteen bytes of a key. If it is less than another's, so is the key; if it is equal, whole keys have to be
/// compared.
fn prefix(key: Option<&[u8]>, options: SortOptions) -> u128 {
    match key {
        None if options.nulls_first => 0,
        None => u128::MAX,
        Some(bytes) if options.descending => !first_bytes(bytes),
        Some(bytes) => first_bytes(bytes),
    }
}

/// The first sixteen bytes as a number, the first of them the highest; those that are missing are zeros.
fn first_bytes(bytes: &[u8]) -> u128 {
    if let Some(first) = bytes.first_chunk() {
        return u128::from_be_bytes(*first);
    }
    // Two numbers, the second of which has some bytes of the first once more.
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let (first, last) = (u64::from_be_bytes(*first), u64::from_be_bytes(*last));
        let missing = 8 * (16 - bytes.len());
        let last = u128::from(last) << missing;
        return (u128::from(first) << 64) | (last & u128::from(u64::MAX));
    }
    let at = |first: u128, byte: &u8| (first << 8) | u128::from(*byte);
    let number = bytes.iter().fold(0, at);
    number.checked_shl(8 * (16 - bytes.len()) as u32).unwrap_or(0)
}

/// A column of texts or bytes; none of another.
fn texts(column: &dyn Array) -> Option<Arc<dyn KeyBytes>> {
    Some(match column.data_type() {
        DataType::Utf8 => Arc::new(column.as_string::<i32>().clone()),
        DataType::LargeUtf8 => Arc::new(column.as_string::<i64>().clone()),
        DataType::Utf8View => Arc::new(column.as_string_view().clone()),
        DataType::Binary => Arc::new(column.as_binary::<i32>().clone()),
        DataType::LargeBinary => Arc::new(column.as_binary::<i64>().clone()),
        DataType::BinaryView => Arc::new(column.as_binary_view().clone()),
        _ => return None,
    })
}

impl<T: ByteArrayType> KeyBytes for GenericByteArray<T> {
    fn get(&self, row: usize) -> Option<&[u8]> {
        self.is_valid(row).then(|| self.value(row).as_ref())
    }
}

impl<T: ByteViewType> KeyBytes for GenericByteViewArray<T> {
    fn get(&self, row: usize) -> Option<&[u8]> {
        self.is_valid(row).then(|| self.value(row).as_ref())
    }
}

impl KeyBytes for Rows {
    fn get(&self, row: usize) -> Option<&[u8]> {
        Some(self.row(row).data())
    }
}
