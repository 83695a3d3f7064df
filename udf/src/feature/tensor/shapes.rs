//! Functions of shapes: `tensor_shape`, `from_list`, `tensor_slice`.
//!
//! Shapes are part of a column's type, so what a result's shape depends on must be constant.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, ListArray, ListBuilder, MutableArrayData,
    PrimitiveBuilder, make_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type, Int64Type};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::super::arguments::{OnBadValue, bounded_literal};
use super::types::{TensorType, column_type_name, fixed_shape_field};

/// All functions of this file.
pub(super) fn functions() -> Vec<Arc<ScalarUDF>> {
    let udf = |(function, on_bad_value): (Function, OnBadValue)| {
        Arc::new(ScalarUDF::from(ShapeFunction {
            function,
            on_bad_value,
            name: on_bad_value.name_of(function.name()),
            signature: Signature::user_defined(Volatility::Immutable),
        }))
    };
    [
        (Function::Shape, OnBadValue::Fail),
        (Function::FromList, OnBadValue::Fail),
        (Function::FromList, OnBadValue::Null),
        (Function::Slice, OnBadValue::Fail),
    ]
    .map(udf)
    .into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Function {
    /// `(tensor)` → list of its sides
    Shape,
    /// `(list, side, …)` → tensor of the same numbers
    FromList,
    /// `(tensor, dimension, first, last)` → the part between two positions of a dimension
    Slice,
}

impl Function {
    fn name(self) -> &'static str {
        self.usage().split('(').next().unwrap_or_default()
    }

    fn usage(self) -> &'static str {
        match self {
            Self::Shape => "tensor_shape(tensor)",
            Self::FromList => "from_list(list, side [, side …])",
            Self::Slice => "tensor_slice(tensor, dimension, first, last)",
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ShapeFunction {
    function: Function,
    on_bad_value: OnBadValue,
    name: String,
    signature: Signature,
}

impl ScalarUDFImpl for ShapeFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        let is_number = |at: usize| found[at].is_integer();
        let numbers = || (1..found.len()).map(|_| DataType::Int64);
        let all_numbers = (1..found.len()).all(is_number);
        let coerced = match (self.function, found.first(), found.len()) {
            (Function::Shape, Some(tensor), 1) => {
                TensorType::of_storage(tensor).map(|_| tensor.clone())
            }
            (Function::Slice, Some(tensor), 4) if all_numbers => {
                TensorType::of_storage(tensor).map(|_| tensor.clone())
            }
            (Function::FromList, Some(list), 2..) if all_numbers => {
                number_list(list).map(|item| DataType::new_list(item, true))
            }
            _ => None,
        };
        match coerced {
            Some(first) => Ok([first].into_iter().chain(numbers()).collect()),
            None => {
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                plan_err!(
                    "{} got ({}), expected {} with {}",
                    self.name,
                    found.join(", "),
                    self.function.usage(),
                    match self.function {
                        Function::Shape => "a tensor or vector",
                        Function::Slice => "a tensor or vector and whole numbers",
                        Function::FromList => "a list of numbers and whole numbers",
                    }
                )
            }
        }
    }

    fn return_type(&self, _found: &[DataType]) -> Result<DataType> {
        internal_err!("{} has a return field", self.name)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        match self.function {
            Function::Shape => {
                let list = DataType::new_list(DataType::Int64, true);
                Ok(Arc::new(Field::new(&self.name, list, true)))
            }
            Function::FromList => {
                let Some(item) = number_list(args.arg_fields[0].data_type()) else {
                    return internal_err!("{} received no list after coercion", self.name);
                };
                let side = |at| bounded_literal(&args, at, &self.name, "side", SIDE_MAX);
                let shape = (1..args.arg_fields.len()).map(side).collect::<Result<Vec<_>>>()?;
                fixed_shape_field(&self.name, item, &shape)
            }
            Function::Slice => {
                let part = self.part(&args)?;
                fixed_shape_field(&self.name, part.item.clone(), &part.result_shape())
            }
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let part = match self.function {
            Function::Slice => Some(self.part_of_call(&args)?),
            Function::Shape | Function::FromList => None,
        };
        let Some(first) = args.args.into_iter().next() else {
            return internal_err!("{} without arguments", self.name);
        };
        let tensors = first.into_array(rows)?;
        let column = match (self.function, part) {
            (Function::Slice, Some(part)) => part.of(&tensors)?,
            (Function::FromList, _) => self.from_list(&tensors, &args.return_field)?,
            _ => shapes(&tensors, &args.arg_fields[0])?,
        };
        match is_constant {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&column, 0)?)),
            false => Ok(ColumnarValue::Array(column)),
        }
    }
}

/// Of a list's length, which is what a side can be at most.
const SIDE_MAX: i64 = i32::MAX as i64;

fn number_list(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.data_type().is_numeric().then(|| item.data_type().clone())
        }
        _ => None,
    }
}

fn shapes(tensors: &ArrayRef, field: &Field) -> Result<ArrayRef> {
    let mut lists = ListBuilder::new(PrimitiveBuilder::<Int64Type>::new());
    match TensorType::of(field).or_else(|| TensorType::of_storage(tensors.data_type())) {
        Some(TensorType::Fixed { shape, .. }) => {
            for row in 0..tensors.len() {
                if tensors.is_valid(row) {
                    shape.iter().for_each(|side| lists.values().append_value(*side as i64));
                }
                lists.append(tensors.is_valid(row));
            }
        }
        Some(TensorType::Variable { .. }) => {
            let column = tensors.as_struct().column(1).as_fixed_size_list();
            for row in 0..tensors.len() {
                let is_there = tensors.is_valid(row) && column.is_valid(row);
                if is_there {
                    let sides = column.value(row);
                    let sides = sides.as_primitive::<Int32Type>();
                    sides
                        .values()
                        .iter()
                        .for_each(|side| lists.values().append_value((*side).into()));
                }
                lists.append(is_there);
            }
        }
        None => return internal_err!("{} is no type of tensors", tensors.data_type()),
    }
    Ok(Arc::new(lists.finish()))
}

impl ShapeFunction {
    fn from_list(&self, lists: &ArrayRef, result: &Field) -> Result<ArrayRef> {
        let (Some(lists), DataType::FixedSizeList(item, elements)) =
            (lists.as_list_opt::<i32>(), result.data_type())
        else {
            return internal_err!("{} received no list after coercion", self.name);
        };
        let length = usize::try_from(*elements).unwrap_or_default();
        let values = cast(lists.values(), item.data_type())?.to_data();
        let mut copied = MutableArrayData::new(vec![&values], true, lists.len() * length);
        let mut is_valid = Vec::with_capacity(lists.len());
        for row in 0..lists.len() {
            let start = match lists.is_valid(row) {
                true => self
                    .on_bad_value
                    .apply(Function::FromList.name(), usable(lists, row, length))?,
                false => None,
            };
            is_valid.push(start.is_some());
            match start {
                Some(start) => copied.try_extend(0, start, start + length)?,
                None => copied.try_extend_nulls(length)?,
            }
        }
        fixed_size_list(item, *elements, make_array(copied.freeze()), is_valid)
    }

    /// Which part of the tensors, from the constants of a call.
    fn part(&self, args: &ReturnFieldArgs<'_>) -> Result<Part> {
        let number = |at, name| bounded_literal(args, at, &self.name, name, SIDE_MAX);
        let numbers = [number(1, "dimension")?, number(2, "first")?, number(3, "last")?];
        Part::try_new(&self.name, &args.arg_fields[0], numbers)
    }

    fn part_of_call(&self, args: &ScalarFunctionArgs) -> Result<Part> {
        let mut numbers = [0; 3];
        for (number, arg) in numbers.iter_mut().zip(&args.args[1..]) {
            *number = match arg {
                ColumnarValue::Scalar(ScalarValue::Int64(Some(value))) => *value as usize,
                ColumnarValue::Array(values) if !values.is_empty() => {
                    values.as_primitive::<Int64Type>().value(0) as usize
                }
                _ => 1,
            };
        }
        Part::try_new(&self.name, &args.arg_fields[0], numbers)
    }
}

/// Where the numbers of a row begin, if they are as many as the tensor has elements.
fn usable(lists: &ListArray, row: usize, length: usize) -> std::result::Result<usize, String> {
    let (start, found) = (lists.value_offsets()[row] as usize, lists.value_length(row) as usize);
    if found != length {
        return Err(format!("a list has {found} numbers, expected {length} for the shape"));
    }
    match lists.values().slice(start, found).null_count() {
        0 => Ok(start),
        nulls => Err(format!("a list of {found} has {nulls} that are NULL, expected numbers")),
    }
}

/// The elements of a tensor between two positions of one dimension.
struct Part {
    item: DataType,
    shape: Vec<usize>,
    /// All three from 0; `end` is behind the last.
    dimension: usize,
    start: usize,
    end: usize,
}

impl Part {
    fn try_new(
        function: &str,
        field: &Field,
        [dimension, first, last]: [usize; 3],
    ) -> Result<Self> {
        let tensor = TensorType::of(field).or_else(|| TensorType::of_storage(field.data_type()));
        let Some(TensorType::Fixed { item, shape }) = tensor else {
            return plan_err!(
                "{function}: {} is {}, expected a tensor of one shape; image_crop cuts images of \
                 different sizes",
                field.name(),
                column_type_name(field)
            );
        };
        let side = dimension.checked_sub(1).and_then(|at| shape.get(at)).copied();
        match side {
            Some(side) if (1..=last).contains(&first) && last <= side => {
                Ok(Self { item, shape, dimension: dimension - 1, start: first - 1, end: last })
            }
            Some(side) => plan_err!(
                "{function}: {first} to {last} is not within dimension {dimension} of {}, expected \
                 positions of 1 to {side}",
                column_type_name(field)
            ),
            None => plan_err!(
                "{function}: there is no dimension {dimension} in {}, expected 1 to {}",
                column_type_name(field),
                shape.len()
            ),
        }
    }

    fn result_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        shape[self.dimension] = self.end - self.start;
        shape
    }

    fn of(&self, tensors: &ArrayRef) -> Result<ArrayRef> {
        let tensors = tensors.as_fixed_size_list();
        let inner: usize = self.shape[self.dimension + 1..].iter().product();
        let side = self.shape[self.dimension] * inner;
        let outer: usize = self.shape[..self.dimension].iter().product();
        let (length, elements) = (side * outer, (self.end - self.start) * inner * outer);
        let values = tensors.values().to_data();
        let mut copied = MutableArrayData::new(vec![&values], false, tensors.len() * elements);
        for at in 0..tensors.len() * outer {
            let start = at / outer * length + at % outer * side;
            copied.try_extend(0, start + self.start * inner, start + self.end * inner)?;
        }
        let item = Arc::new(Field::new_list_field(self.item.clone(), false));
        let is_valid = (0..tensors.len()).map(|row| tensors.is_valid(row)).collect();
        fixed_size_list(&item, elements as i32, make_array(copied.freeze()), is_valid)
    }
}

/// Elements of NULL rows are nobody's, and must be there all the same.
fn fixed_size_list(
    item: &FieldRef,
    elements: i32,
    values: ArrayRef,
    is_valid: Vec<bool>,
) -> Result<ArrayRef> {
    let nulls = Some(NullBuffer::from(is_valid));
    Ok(Arc::new(FixedSizeListArray::try_new(Arc::clone(item), elements, values, nulls)?))
}
