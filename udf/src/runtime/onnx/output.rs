//! A program's results → the declared columns: tensors as they are, numbers as the texts they stand for,
//! and lists of what belongs to each row's tokens.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, FixedSizeListArray, Float32Array, Float64Array, Int32Array,
    Int64Array, ListArray, StringArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::filter;
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use half::{bf16, f16};
use ort::value::{DynValue, PrimitiveTensorElementType, TensorElementType, ValueType};

use super::super::labels::Labels;
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, type_name};

/// The declared outputs, with what it takes to read them from a program's results.
#[derive(Debug)]
pub(super) struct Outputs {
    outputs: Vec<Output>,
    /// Whether a last result says which values the lists hold.
    has_lists: bool,
}

#[derive(Debug)]
struct Output {
    field: FieldRef,
    /// The texts that the program's numbers stand for.
    labels: Option<Labels>,
}

impl Outputs {
    /// Reads the files of labels.
    pub(super) fn load(model: &ModelDeclaration, package: &Package) -> Result<Self, RuntimeError> {
        let outputs = model.signature.outputs.iter().zip(&package.manifest.labels);
        let output = |(field, file): (&FieldRef, &Option<String>)| {
            let labels =
                file.as_ref().map(|file| Labels::load(model, package, file)).transpose()?;
            Ok(Output { field: Arc::clone(field), labels })
        };
        let outputs = outputs.map(output).collect::<Result<Vec<_>, RuntimeError>>()?;
        let has_lists = outputs.iter().any(|output| list_item(&output.field).is_some());
        Ok(Self { outputs, has_lists })
    }

    /// The name of an output.
    pub(super) fn name(&self, at: usize) -> &str {
        self.outputs.get(at).map_or("", |output| output.field.name())
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.outputs.len()
    }

    /// One column per output, or the name of the output that is not as declared, and why.
    pub(super) fn columns(
        &self,
        results: &[DynValue],
        rows: usize,
    ) -> Result<Vec<ArrayRef>, (String, Mismatch)> {
        let kept = results.last().filter(|_| self.has_lists);
        let column = |(output, result): (&Output, &DynValue)| {
            let column = match (list_item(&output.field), kept) {
                (Some(item), Some(kept)) => output.list(item, result, kept, rows),
                _ => output.column(result, rows),
            };
            column.map_err(|mismatch| (output.field.name().clone(), mismatch))
        };
        self.outputs.iter().zip(results).map(column).collect()
    }
}

impl Output {
    /// One value per row.
    fn column(&self, result: &DynValue, rows: usize) -> Result<ArrayRef, Mismatch> {
        let data_type = match &self.labels {
            Some(_) => &DataType::Int64,
            None => self.field.data_type(),
        };
        self.named(column(result, data_type, rows)?)
    }

    /// The texts of indices, if they stand for some.
    fn named(&self, values: ArrayRef) -> Result<ArrayRef, Mismatch> {
        let Some(labels) = &self.labels else { return Ok(values) };
        labels.texts(values.as_primitive::<Int64Type>()).map_err(|index| Mismatch {
            expected: format!("{} of {} labels", type_name(self.field.data_type()), labels.count()),
            found: format!("the index {index}"),
        })
    }

    /// Of `[rows, longest]` values, those that are kept, as one list per row.
    fn list(
        &self,
        item: &FieldRef,
        result: &DynValue,
        kept: &DynValue,
        rows: usize,
    ) -> Result<ArrayRef, Mismatch> {
        let expected = || {
            let declared = type_name(self.field.data_type());
            format!("{declared} for {rows} rows, and a last result that is bool of the same shape")
        };
        let (element, shape) = shape_of(result, &expected)?;
        let (_, kept_shape) = shape_of(kept, &expected)?;
        let mismatch = || Mismatch {
            expected: expected(),
            found: format!("{element} of the shapes {shape:?} and {kept_shape:?}"),
        };
        let longest = match kept_shape.as_slice() {
            [first, longest] if usize::try_from(*first) == Ok(rows) && shape == kept_shape => {
                usize::try_from(*longest).unwrap_or(0)
            }
            _ => return Err(mismatch()),
        };
        let mask = numbers(kept, |is_kept: bool| is_kept).ok_or_else(mismatch)?;
        let lengths = (0..rows).map(|row| {
            let of_row = &mask[row * longest..(row + 1) * longest];
            of_row.iter().filter(|is_kept| **is_kept).count()
        });
        let offsets = OffsetBuffer::from_lengths(lengths);
        let wanted = self.labels.as_ref().map_or(item.data_type(), |_| &DataType::Int64);
        let values = items(result, element, wanted).ok_or_else(mismatch)?;
        let values = filter(&values, &BooleanArray::from(mask)).map_err(|_| mismatch())?;
        let list = ListArray::try_new(Arc::clone(item), offsets, self.named(values)?, None);
        list.map(|list| Arc::new(list) as ArrayRef).map_err(|_| mismatch())
    }
}

/// The field of a list's items.
pub(super) fn list_item(field: &FieldRef) -> Option<&FieldRef> {
    match field.data_type() {
        DataType::List(item) => Some(item),
        _ => None,
    }
}

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

/// A result as a column of this type.
fn column(result: &DynValue, data_type: &DataType, rows: usize) -> Result<ArrayRef, Mismatch> {
    let expected = || format!("{} for {rows} rows", type_name(data_type));
    let (element, shape) = shape_of(result, &expected)?;
    let mismatch = || Mismatch { expected: expected(), found: format!("{element} {shape:?}") };
    let (item, per_row) = match data_type {
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
    match data_type {
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
