//! Rows that a program is warmed up with and counted on.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Int32Array, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, FieldRef};

use crate::model::ModelDeclaration;
use crate::transform::output_fields;

/// Tokens of a made-up row.
pub(super) const WARM_TOKENS: i32 = 8;

/// One row of zeros in each prepared column, lists of so many; `None` for columns that zeros cannot be made
/// of.
pub(super) fn made_up_row(model: &ModelDeclaration, tokens: i32) -> Option<Vec<ArrayRef>> {
    let zeros = |count: i32, data_type: &DataType| {
        cast(&Int32Array::from_iter_values((0..count).map(|_| 0)), data_type).ok()
    };
    let column = |field: FieldRef| -> Option<ArrayRef> {
        Some(match field.data_type() {
            DataType::List(item) => {
                let items = zeros(tokens, item.data_type())?;
                let offsets = OffsetBuffer::from_lengths([items.len()]);
                Arc::new(ListArray::new(Arc::clone(item), offsets, items, None))
            }
            DataType::FixedSizeList(item, length) => {
                let items = zeros(*length, item.data_type())?;
                Arc::new(FixedSizeListArray::new(Arc::clone(item), *length, items, None))
            }
            scalar if scalar.is_numeric() => zeros(1, scalar)?,
            _ => return None,
        })
    };
    output_fields(model).into_iter().map(column).collect()
}

/// Two rows of tokens, of which one is padded.
pub(super) fn padded_rows(model: &ModelDeclaration) -> Option<Vec<ArrayRef>> {
    let rows = [made_up_row(model, WARM_TOKENS)?, made_up_row(model, WARM_TOKENS / 2)?];
    rows[0].iter().zip(&rows[1]).map(|(one, other)| concat(&[one, other]).ok()).collect()
}
