//! A program's values → the declared columns.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Float64Array, Int32Array, Int64Array,
    StringArray,
};
use arrow::compute::filter;
use arrow::datatypes::DataType;
use half::{bf16, f16};
use ort::value::{DynValue, PrimitiveTensorElementType, TensorElementType, ValueType};

use super::super::outputs::{Output, Outputs, Part, Unlike};
use crate::model::type_name;

/// One column per output, or the name of the output that is not as declared, and why.
pub(super) fn columns(
    outputs: &Outputs,
    results: &[DynValue],
    rows: usize,
) -> Result<Vec<ArrayRef>, (String, Unlike)> {
    outputs.columns(
        results,
        |part, result| column(result, part.given(), rows).and_then(|values| part.named(values)),
        |output, own, kept| lists(output, own, kept, rows),
    )
}

/// Of `[rows, longest]` values, those that are kept, as one list per row.
fn lists(
    output: &Output,
    results: &[DynValue],
    kept: &DynValue,
    rows: usize,
) -> Result<ArrayRef, Unlike> {
    let expected = || output.expected(rows);
    let (kind, shape) = shape_of(kept, &expected)?;
    let unlike =
        || Unlike { expected: expected(), found: format!("{kind} of the shape {shape:?}") };
    let longest = match shape.as_slice() {
        [first, longest] if usize::try_from(*first) == Ok(rows) => {
            usize::try_from(*longest).unwrap_or(0)
        }
        _ => return Err(unlike()),
    };
    let mask = numbers(kept, |is_kept: bool| is_kept).ok_or_else(unlike)?;
    let lengths = (0..rows).map(|row| {
        let of_row = &mask[row * longest..(row + 1) * longest];
        of_row.iter().filter(|is_kept| **is_kept).count()
    });
    let lengths: Vec<usize> = lengths.collect();
    let mask = BooleanArray::from(mask);
    let values = |(part, result): (&Part, &DynValue)| {
        let (element, found) = shape_of(result, &expected)?;
        let unlike = || Unlike {
            expected: expected(),
            found: format!("{element} of the shapes {found:?} and {shape:?}"),
        };
        let all = items(result, element, part.given()).filter(|_| found == shape);
        let kept = filter(&all.ok_or_else(unlike)?, &mask).map_err(|_| unlike())?;
        part.named(kept)
    };
    let values = output.parts().iter().zip(results).map(values).collect::<Result<_, Unlike>>()?;
    output
        .lists(lengths, values)
        .map_err(|error| Unlike { expected: expected(), found: error.to_string() })
}

/// A result as numbers of 32 bits, and its shape.
pub(super) fn floats(result: &DynValue) -> Result<(Vec<i64>, Vec<f32>), Unlike> {
    let expected = || "float for each row".to_owned();
    let (element, shape) = shape_of(result, &expected)?;
    let values = match element {
        TensorElementType::Float32 => numbers(result, |x: f32| x),
        TensorElementType::Float16 => numbers(result, f16::to_f32),
        TensorElementType::Bfloat16 => numbers(result, bf16::to_f32),
        TensorElementType::Float64 => numbers(result, |x: f64| x as f32),
        _ => None,
    };
    let found = || Unlike { expected: expected(), found: format!("{element} {shape:?}") };
    values.map(|values| (shape.clone(), values)).ok_or_else(found)
}

/// A result as a column of this type.
fn column(result: &DynValue, data_type: &DataType, rows: usize) -> Result<ArrayRef, Unlike> {
    let expected = || format!("{} for {rows} rows", type_name(data_type));
    let (element, shape) = shape_of(result, &expected)?;
    let unlike = || Unlike { expected: expected(), found: format!("{element} {shape:?}") };
    let (item, per_row) = match data_type {
        DataType::FixedSizeList(item, length) => (item.data_type(), *length as usize),
        scalar => (scalar, 1),
    };
    let values =
        shape.iter().try_fold(1_usize, |all, size| all.checked_mul(usize::try_from(*size).ok()?));
    let first = shape.first().and_then(|rows| usize::try_from(*rows).ok());
    if first != Some(rows) || values != Some(rows * per_row) {
        return Err(unlike());
    }
    let items = items(result, element, item).ok_or_else(unlike)?;
    match data_type {
        DataType::FixedSizeList(item, length) => {
            let list = FixedSizeListArray::try_new(Arc::clone(item), *length, items, None);
            list.map(|list| Arc::new(list) as ArrayRef).map_err(|_| unlike())
        }
        _ => Ok(items),
    }
}

fn shape_of(
    result: &DynValue,
    expected: &dyn Fn() -> String,
) -> Result<(TensorElementType, Vec<i64>), Unlike> {
    match result.dtype() {
        ValueType::Tensor { ty, shape, .. } => Ok((*ty, shape.to_vec())),
        other => Err(Unlike { expected: expected(), found: other.to_string() }),
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
