//! A program's results → the declared columns.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Float64Array, Int32Array, Int64Array,
    StringArray,
};
use arrow::datatypes::{DataType, FieldRef};
use half::{bf16, f16};
use ort::value::{DynValue, PrimitiveTensorElementType, TensorElementType, ValueType};

use crate::model::type_name;

/// What was declared, and what came back.
pub(super) struct Mismatch {
    pub(super) expected: String,
    pub(super) found: String,
}

/// A result as numbers of 32 bits, and its shape.
pub(super) fn floats(result: &DynValue) -> Result<(Vec<i64>, Vec<f32>), Mismatch> {
    let expected = || "float for each row".to_owned();
    let (element, shape) = shape_of(result, &expected)?;
    let values = match element {
        TensorElementType::Float32 => numbers(result, |x: f32| x),
        TensorElementType::Float16 => numbers(result, f16::to_f32),
        TensorElementType::Bfloat16 => numbers(result, bf16::to_f32),
        TensorElementType::Float64 => numbers(result, |x: f64| x as f32),
        _ => None,
    };
    let found = || Mismatch { expected: expected(), found: format!("{element} {shape:?}") };
    values.map(|values| (shape.clone(), values)).ok_or_else(found)
}

/// A result as a column of the declared type.
pub(super) fn column(
    result: &DynValue,
    field: &FieldRef,
    rows: usize,
) -> Result<ArrayRef, Mismatch> {
    let expected = || format!("{} for {rows} rows", type_name(field.data_type()));
    let (element, shape) = shape_of(result, &expected)?;
    let mismatch = || Mismatch { expected: expected(), found: format!("{element} {shape:?}") };
    let (item, per_row) = match field.data_type() {
        DataType::FixedSizeList(item, length) => (item.data_type(), *length as usize),
        scalar => (scalar, 1),
    };
    let values =
        shape.iter().try_fold(1_usize, |all, size| all.checked_mul(usize::try_from(*size).ok()?));
    let first = shape.first().and_then(|rows| usize::try_from(*rows).ok());
    if first != Some(rows) || values != Some(rows * per_row) {
        return Err(mismatch());
    }
    let items = items(result, element, item).ok_or_else(mismatch)?;
    match field.data_type() {
        DataType::FixedSizeList(item, length) => {
            let list = FixedSizeListArray::try_new(Arc::clone(item), *length, items, None);
            list.map(|list| Arc::new(list) as ArrayRef).map_err(|_| mismatch())
        }
        _ => Ok(items),
    }
}

fn shape_of(
    result: &DynValue,
    expected: &dyn Fn() -> String,
) -> Result<(TensorElementType, Vec<i64>), Mismatch> {
    match result.dtype() {
        ValueType::Tensor { ty, shape, .. } => Ok((*ty, shape.to_vec())),
        other => Err(Mismatch { expected: expected(), found: other.to_string() }),
    }
}

/// All values, if the conversion loses nothing but digits of floating point numbers.
fn items(result: &DynValue, element: TensorElementType, item: &DataType) -> Option<ArrayRef> {
    use TensorElementType as E;
    let int32 = |values: Option<Vec<i32>>| Some(Arc::new(Int32Array::from(values?)) as ArrayRef);
    let int64 = |values: Option<Vec<i64>>| Some(Arc::new(Int64Array::from(values?)) as ArrayRef);
    match (item, element) {
        (DataType::Float32, _) => {
            let (_, values) = floats(result).ok()?;
            Some(Arc::new(Float32Array::from(values)))
        }
        (DataType::Float64, E::Float64) => {
            Some(Arc::new(Float64Array::from(numbers(result, |x: f64| x)?)))
        }
        (DataType::Float64, _) => {
            let (_, values) = floats(result).ok()?;
            Some(Arc::new(Float64Array::from_iter_values(values.into_iter().map(f64::from))))
        }
        (DataType::Int32, E::Int32) => int32(numbers(result, |x: i32| x)),
        (DataType::Int32, E::Int16) => int32(numbers(result, i32::from as fn(i16) -> i32)),
        (DataType::Int32, E::Uint16) => int32(numbers(result, i32::from as fn(u16) -> i32)),
        (DataType::Int32, E::Int8) => int32(numbers(result, i32::from as fn(i8) -> i32)),
        (DataType::Int32, E::Uint8) => int32(numbers(result, i32::from as fn(u8) -> i32)),
        (DataType::Int64, E::Int64) => int64(numbers(result, |x: i64| x)),
        (DataType::Int64, E::Int32) => int64(numbers(result, i64::from as fn(i32) -> i64)),
        (DataType::Int64, E::Uint32) => int64(numbers(result, i64::from as fn(u32) -> i64)),
        (DataType::Boolean, E::Bool) => {
            Some(Arc::new(BooleanArray::from(numbers(result, |x: bool| x)?)))
        }
        (DataType::Utf8, E::String) => {
            let (_, texts) = result.try_extract_strings().ok()?;
            Some(Arc::new(StringArray::from(texts)))
        }
        _ => None,
    }
}

fn numbers<T: PrimitiveTensorElementType + Copy, N>(
    result: &DynValue,
    number: impl Fn(T) -> N,
) -> Option<Vec<N>> {
    let (_, values) = result.try_extract_tensor::<T>().ok()?;
    Some(values.iter().map(|value| number(*value)).collect())
}
