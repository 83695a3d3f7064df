//! Functions of vectors of numbers: `to_list`, `softmax`, `argmax`, `top_k`.
//!
//! Vectors of a fixed length and lists are taken alike, by `to_list` also tensors of their own shapes.
//! Positions count from 1, as everywhere in SQL, so `labels[argmax(scores)]` is the best label.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, ListArray, StructArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Float64Type};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

use super::super::arguments::whole_number;
use super::types::{TensorType, check_order};
use crate::feature::docs::documentation;

/// All functions of this file.
pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    let udf = |function| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(VectorFunction { function, signature }))
    };
    [Function::ToList, Function::Softmax, Function::Argmax, Function::TopK].map(udf).into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Function {
    /// `(vector)` → list of the same numbers
    ToList,
    /// `(vector)` → list of shares of 1
    Softmax,
    /// `(vector)` → position of the largest number
    Argmax,
    /// `(vector, k [, labels])` → list of the largest numbers, with their positions or labels
    TopK,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct VectorFunction {
    function: Function,
    signature: Signature,
}

impl VectorFunction {
    fn usage(&self) -> &'static str {
        match self.function {
            Function::ToList => "to_list(vector)",
            Function::Softmax => "softmax(vector)",
            Function::Argmax => "argmax(vector)",
            Function::TopK => "top_k(vector, k [, labels])",
        }
    }
}

/// What a vector or list holds.
fn item_of(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            Some(item.data_type())
        }
        _ => None,
    }
}

fn top_fields(with_labels: bool) -> Fields {
    let (name, data_type) =
        if with_labels { ("label", DataType::Utf8) } else { ("position", DataType::Int64) };
    Fields::from(vec![
        Field::new(name, data_type, true),
        Field::new("score", DataType::Float64, true),
    ])
}

impl ScalarUDFImpl for VectorFunction {
    fn name(&self) -> &str {
        self.usage().split('(').next().unwrap_or_default()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn documentation(&self) -> Option<&Documentation> {
        documentation(self.name())
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        let vector = found.first().and_then(item_of).filter(|item| item.is_numeric());
        let is_number = |at: usize| found[at].is_integer();
        let is_labels = |at: usize| item_of(&found[at]).is_some_and(DataType::is_string);
        let numbers = || DataType::new_list(DataType::Float64, true);
        match (self.function, vector, found.len()) {
            (Function::ToList, Some(item), 1) => Ok(vec![DataType::new_list(item.clone(), true)]),
            (Function::ToList, None, 1) if variable_data(&found[0]).is_some() => Ok(found.to_vec()),
            (Function::Softmax | Function::Argmax, Some(_), 1) => Ok(vec![numbers()]),
            (Function::TopK, Some(_), 2) if is_number(1) => Ok(vec![numbers(), DataType::Int64]),
            (Function::TopK, Some(_), 3) if is_number(1) && is_labels(2) => {
                let labels = DataType::new_list(DataType::Utf8, true);
                Ok(vec![numbers(), DataType::Int64, labels])
            }
            _ => {
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                plan_err!(
                    "{} got ({}), expected {} with a vector or list of numbers",
                    self.name(),
                    found.join(", "),
                    self.usage()
                )
            }
        }
    }

    fn return_type(&self, found: &[DataType]) -> Result<DataType> {
        Ok(match self.function {
            Function::ToList => variable_data(&found[0]).unwrap_or(&found[0]).clone(),
            Function::Softmax => DataType::new_list(DataType::Float64, true),
            Function::Argmax => DataType::Int64,
            Function::TopK => {
                DataType::new_list(DataType::Struct(top_fields(found.len() > 2)), true)
            }
        })
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        if self.function == Function::ToList {
            args.arg_fields.iter().try_for_each(|field| check_order(field))?;
        }
        let found: Vec<DataType> =
            args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(Arc::new(Field::new(self.name(), self.return_type(&found)?, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let columns: Vec<ArrayRef> =
            args.args.into_iter().map(|arg| arg.into_array(rows)).collect::<Result<_>>()?;
        let column = self.compute(&columns)?;
        if is_constant {
            Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&column, 0)?))
        } else {
            Ok(ColumnarValue::Array(column))
        }
    }
}

impl VectorFunction {
    fn compute(&self, columns: &[ArrayRef]) -> Result<ArrayRef> {
        if let Some(tensors) = columns.first().and_then(|column| column.as_struct_opt()) {
            return data_of(tensors);
        }
        let Some(vectors) = columns.first().and_then(|column| column.as_list_opt::<i32>()) else {
            return internal_err!("{} received no list after coercion", self.name());
        };
        Ok(match self.function {
            Function::ToList => Arc::clone(&columns[0]),
            Function::Softmax => softmax(vectors)?,
            Function::Argmax => {
                let best = |row| numbers(vectors, row).and_then(|n| ranked(&n).first().copied());
                Arc::new(
                    (0..vectors.len()).map(|row| best(row).map(position)).collect::<Int64Array>(),
                )
            }
            Function::TopK => top_k(vectors, &columns[1], columns.get(2))?,
        })
    }
}

/// The list that a tensor of its own shape holds, as it is stored: its items may be nullable.
fn variable_data(data_type: &DataType) -> Option<&DataType> {
    match (TensorType::of_storage(data_type), data_type) {
        (Some(TensorType::Variable { .. }), DataType::Struct(fields)) => {
            fields.first().map(|data| data.data_type())
        }
        _ => None,
    }
}

/// The elements of tensors of their own shapes.
fn data_of(tensors: &StructArray) -> Result<ArrayRef> {
    let Some(data) = tensors.column(0).as_list_opt::<i32>() else {
        return internal_err!("a tensor's data are {}", tensors.column(0).data_type());
    };
    let nulls = NullBuffer::union(tensors.nulls(), data.nulls());
    let (item, offsets, values, _) = data.clone().into_parts();
    Ok(Arc::new(ListArray::try_new(item, offsets, values, nulls)?))
}

fn position(at: usize) -> i64 {
    at as i64 + 1
}

/// The numbers of a row; `None` if it is NULL or holds one.
fn numbers(vectors: &ListArray, row: usize) -> Option<Vec<f64>> {
    let is_there = vectors.is_valid(row);
    let items = is_there.then(|| vectors.value(row))?;
    let items = items.as_primitive_opt::<Float64Type>()?;
    (items.null_count() == 0).then(|| items.values().to_vec())
}

/// Where the numbers are, the largest first; of equal ones, the first.
fn ranked(numbers: &[f64]) -> Vec<usize> {
    let mut ranked: Vec<usize> = (0..numbers.len()).collect();
    ranked.sort_by(|a, b| numbers[*b].total_cmp(&numbers[*a]));
    ranked
}

fn softmax(vectors: &ListArray) -> Result<ArrayRef> {
    let rows = (0..vectors.len()).map(|row| {
        let numbers = numbers(vectors, row)?;
        let largest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = numbers.iter().map(|number| (number - largest).exp()).collect();
        let sum: f64 = powers.iter().sum();
        Some(powers.into_iter().map(|power| Some(power / sum)).collect::<Vec<_>>())
    });
    Ok(Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(rows.collect::<Vec<_>>())))
}

fn top_k(vectors: &ListArray, k: &ArrayRef, labels: Option<&ArrayRef>) -> Result<ArrayRef> {
    let (mut positions, mut scores) = (vec![], vec![]);
    // Of the label of each element, where it is among all labels.
    let mut label_at: Vec<Option<u64>> = vec![];
    let labels = labels.and_then(|labels| labels.as_list_opt::<i32>());
    let (mut lengths, mut is_valid) = (vec![], vec![]);
    for row in 0..vectors.len() {
        let found = numbers(vectors, row).zip(whole_number(k, row)?);
        is_valid.push(found.is_some());
        let (numbers, k) = found.unwrap_or_default();
        let mut best = ranked(&numbers);
        best.truncate(usize::try_from(k).unwrap_or_default());
        lengths.push(best.len());
        for at in best {
            positions.push(position(at));
            scores.push(numbers[at]);
            label_at.push(labels.and_then(|labels| {
                let is_there = labels.is_valid(row) && at < labels.value_length(row) as usize;
                is_there.then(|| labels.value_offsets()[row] as u64 + at as u64)
            }));
        }
    }
    let first: ArrayRef = match labels {
        Some(labels) => take(labels.values(), &arrow::array::UInt64Array::from(label_at), None)?,
        None => Arc::new(Int64Array::from(positions)),
    };
    let fields = top_fields(labels.is_some());
    let scores: ArrayRef = Arc::new(Float64Array::from(scores));
    let items = StructArray::try_new(fields.clone(), vec![first, scores], None)?;
    let item = Arc::new(Field::new_list_field(DataType::Struct(fields), true));
    let offsets = OffsetBuffer::from_lengths(lengths);
    let nulls = Some(NullBuffer::from(is_valid));
    Ok(Arc::new(ListArray::try_new(item, offsets, Arc::new(items), nulls)?))
}
