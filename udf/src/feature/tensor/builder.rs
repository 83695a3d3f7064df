//! Builds columns of tensors: of bytes by the column's type alone, and of one shape from their elements.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Int32Array, ListArray, StructArray, UInt8Array};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, exec_err, internal_err};

/// What a builder takes for its rows before they are there, at most: a literal in a query says how large
/// each is.
const RESERVED_MAX: usize = 256 << 20;

/// Appends bytes, and knows what they are from the column's type.
#[derive(Debug)]
pub(crate) struct TensorBuilder {
    field: FieldRef,
    /// Of each, if all are of one shape.
    elements: Option<usize>,
    data: Vec<u8>,
    is_valid: Vec<bool>,
    /// Of tensors of different shapes: where they end, and their sides.
    ends: Vec<i32>,
    sides: Vec<i32>,
}

impl TensorBuilder {
    /// For a column of either type, and so many rows.
    pub(crate) fn try_new(field: &FieldRef, rows: usize) -> Result<Self> {
        let elements = match field.data_type() {
            DataType::FixedSizeList(_, elements) => usize::try_from(*elements).ok(),
            DataType::Struct(_) => None,
            other => return internal_err!("{other} is not a type of tensors"),
        };
        let field = Arc::clone(field);
        let bytes = elements.unwrap_or_default().saturating_mul(rows).min(RESERVED_MAX);
        let data = Vec::with_capacity(bytes);
        Ok(Self { field, elements, data, is_valid: vec![], ends: vec![0], sides: vec![] })
    }

    /// How many elements each tensor has, if all have one shape.
    pub(crate) fn elements(&self) -> Option<usize> {
        self.elements
    }

    pub(crate) fn append_null(&mut self) -> Result<()> {
        self.data.resize(self.data.len() + self.elements.unwrap_or_default(), 0);
        self.end(false, &[])
    }

    /// A tensor and its shape.
    pub(crate) fn append(&mut self, tensor: &[u8], shape: &[usize]) -> Result<()> {
        let is_expected = self.elements.is_none_or(|expected| expected == tensor.len());
        if !is_expected || shape.iter().product::<usize>() != tensor.len() {
            return internal_err!(
                "a tensor of {} bytes and shape {shape:?} does not fit the column {}",
                tensor.len(),
                self.field.name()
            );
        }
        self.data.extend_from_slice(tensor);
        self.end(true, shape)
    }

    fn end(&mut self, is_valid: bool, shape: &[usize]) -> Result<()> {
        self.is_valid.push(is_valid);
        if self.elements.is_some() {
            return Ok(());
        }
        let Ok(end) = i32::try_from(self.data.len()) else {
            return exec_err!(
                "{}: the tensors of one batch have more than 2 GiB; SET \
                 datafusion.execution.batch_size to fewer rows",
                self.field.name()
            );
        };
        self.ends.push(end);
        let dimensions = dimensions(&self.field);
        let sides = (0..dimensions).map(|at| shape.get(at).map_or(0, |side| *side as i32));
        self.sides.extend(sides);
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<ArrayRef> {
        let nulls = Some(NullBuffer::from(self.is_valid));
        let values: ArrayRef = Arc::new(UInt8Array::from(self.data));
        match self.field.data_type() {
            DataType::FixedSizeList(item, length) => {
                Ok(Arc::new(FixedSizeListArray::try_new(Arc::clone(item), *length, values, nulls)?))
            }
            DataType::Struct(fields) => {
                let offsets = OffsetBuffer::new(ScalarBuffer::from(self.ends));
                let item = Arc::new(Field::new_list_field(DataType::UInt8, false));
                let data = ListArray::try_new(item, offsets, values, None)?;
                let side = Arc::new(Field::new_list_field(DataType::Int32, false));
                let sides: ArrayRef = Arc::new(Int32Array::from(self.sides));
                let length = dimensions(&self.field) as i32;
                let shape = FixedSizeListArray::try_new(side, length, sides, None)?;
                let columns: Vec<ArrayRef> = vec![Arc::new(data), Arc::new(shape)];
                Ok(Arc::new(StructArray::try_new(fields.clone(), columns, nulls)?))
            }
            other => internal_err!("a tensor of type {other}"),
        }
    }
}

/// How many a tensor of a shape of its own has.
fn dimensions(field: &Field) -> usize {
    let DataType::Struct(fields) = field.data_type() else { return 0 };
    match fields.get(1).map(|shape| shape.data_type()) {
        Some(DataType::FixedSizeList(_, length)) => *length as usize,
        _ => 0,
    }
}

/// Elements of NULL rows are nobody's, and must be there all the same.
pub(super) fn fixed_size_list(
    item: &FieldRef,
    elements: i32,
    values: ArrayRef,
    is_valid: Vec<bool>,
) -> Result<ArrayRef> {
    let nulls = Some(NullBuffer::from(is_valid));
    Ok(Arc::new(FixedSizeListArray::try_new(Arc::clone(item), elements, values, nulls)?))
}
