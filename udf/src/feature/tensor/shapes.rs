//! Functions of shapes: `tensor_shape`, `from_list`, `tensor_slice`.
//!
//! Shapes are part of a column's type, so what a result's shape depends on must be constant.
//!
//! A column's shape is known where a query is planned, and lost on the way to another process wherever
//! DataFusion sends a function's type without the rest of its field. So planning puts the sides of a
//! tensor behind the arguments, as constants: `tensor_shape(t)` becomes `tensor_shape_of(t, 2, 3)`.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, ListArray, ListBuilder, MutableArrayData, PrimitiveBuilder,
    make_array,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type, Int64Type};
use datafusion::common::{
    Result, ScalarValue, exec_err, internal_err, plan_datafusion_err, plan_err,
};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};

use super::super::arguments::{OnBadValue, bounded_literal};
use super::builder::fixed_size_list;
use super::part::Part;
use super::types::{TensorType, fixed_shape_field};
use crate::feature::docs::documentation;

/// All functions of this file.
pub(super) fn functions() -> Vec<Arc<ScalarUDF>> {
    [
        (Function::Shape, OnBadValue::Fail),
        (Function::FromList, OnBadValue::Fail),
        (Function::FromList, OnBadValue::Null),
        (Function::Slice, OnBadValue::Fail),
        (Function::Slice, OnBadValue::Null),
    ]
    .map(|(function, on_bad_value)| udf(function, on_bad_value, false))
    .into()
}

/// What planning puts in the place of some of them.
pub(super) fn planned_functions() -> Vec<Arc<ScalarUDF>> {
    [
        (Function::Shape, OnBadValue::Fail),
        (Function::Slice, OnBadValue::Fail),
        (Function::Slice, OnBadValue::Null),
    ]
    .map(|(function, on_bad_value)| udf(function, on_bad_value, true))
    .into()
}

fn udf(function: Function, on_bad_value: OnBadValue, has_sides: bool) -> Arc<ScalarUDF> {
    let name = on_bad_value.name_of(function.name());
    Arc::new(ScalarUDF::from(ShapeFunction {
        function,
        on_bad_value,
        has_sides,
        name: if has_sides { format!("{name}_of") } else { name },
        signature: Signature::user_defined(Volatility::Immutable),
    }))
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

    /// How many arguments stand in front of a tensor's sides.
    fn arguments(self) -> usize {
        match self {
            Self::Shape => 1,
            Self::FromList => 0,
            Self::Slice => 4,
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ShapeFunction {
    function: Function,
    on_bad_value: OnBadValue,
    /// Whether the sides of the tensor stand behind the arguments.
    has_sides: bool,
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

    fn documentation(&self) -> Option<&Documentation> {
        documentation(self.name())
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        let is_number = |at: usize| found[at].is_integer();
        let numbers = || (1..found.len()).map(|_| DataType::Int64);
        let all_numbers = (1..found.len()).all(is_number);
        let written =
            if self.has_sides { found.len().min(self.function.arguments()) } else { found.len() };
        let coerced = match (self.function, found.first(), written) {
            (Function::Shape, Some(tensor), 1) if all_numbers => {
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
                self.tensor(&args.arg_fields[0], self.sides(&args)?)?;
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
                fixed_shape_field(&self.name, part.item().clone(), &part.result_shape())
            }
        }
    }

    fn simplify(&self, mut args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let is_done = self.has_sides || self.function == Function::FromList;
        let field = args.first().map(|tensor| tensor.to_field(info.schema().as_ref()));
        // Whoever simplifies without a schema has arguments that are not known in it.
        let (false, Some(Ok((_, field)))) = (is_done, field) else {
            return Ok(ExprSimplifyResult::Original(args));
        };
        let Some(TensorType::Fixed { shape, .. }) = TensorType::of(&field)? else {
            return Ok(ExprSimplifyResult::Original(args));
        };
        args.extend(shape.into_iter().map(|side| lit(side as i64)));
        let call = ScalarFunction::new_udf(udf(self.function, self.on_bad_value, true), args);
        Ok(ExprSimplifyResult::Simplified(Expr::ScalarFunction(call)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let numbers: Vec<usize> = args.args.iter().skip(1).map(constant).collect();
        let Some(first) = args.args.into_iter().next() else {
            return internal_err!("{} without arguments", self.name);
        };
        let (first, field) = (first.into_array(rows)?, &args.arg_fields[0]);
        let written = self.function.arguments().saturating_sub(1);
        let sides = numbers.get(written..).unwrap_or_default().to_vec();
        let column = match (self.function, numbers.as_slice()) {
            (Function::FromList, _) => self.tensors_of(&first, &args.return_field)?,
            (Function::Shape, _) => shapes(&first, &self.tensor(field, sides)?)?,
            (Function::Slice, [dimension, begin, end, ..]) => {
                let numbers = [*dimension, *begin, *end];
                Part::try_new(&self.name, field, self.tensor(field, sides)?, numbers)?
                    .of(&first, self.on_bad_value)?
            }
            (Function::Slice, _) => return internal_err!("{} without a part", self.name),
        };
        if is_constant {
            Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&column, 0)?))
        } else {
            Ok(ColumnarValue::Array(column))
        }
    }
}

/// A constant of a call, which may have become a column. A batch without rows has none.
fn constant(arg: &ColumnarValue) -> usize {
    match arg {
        ColumnarValue::Scalar(ScalarValue::Int64(Some(value))) => *value as usize,
        ColumnarValue::Array(values) if !values.is_empty() => {
            values.as_primitive_opt::<Int64Type>().map_or(1, |values| values.value(0) as usize)
        }
        _ => 1,
    }
}

/// Bytes of the tensors of one batch at most: 2 GiB.
const BATCH_BYTES_MAX: usize = 2 << 30;

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

fn shapes(tensors: &ArrayRef, tensor: &TensorType) -> Result<ArrayRef> {
    let mut lists = ListBuilder::new(PrimitiveBuilder::<Int64Type>::new());
    match tensor {
        TensorType::Fixed { shape, .. } => {
            for row in 0..tensors.len() {
                if tensors.is_valid(row) {
                    shape.iter().for_each(|side| lists.values().append_value(*side as i64));
                }
                lists.append(tensors.is_valid(row));
            }
        }
        TensorType::Variable { .. } => {
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
    }
    Ok(Arc::new(lists.finish()))
}

impl ShapeFunction {
    fn tensors_of(&self, lists: &ArrayRef, result: &Field) -> Result<ArrayRef> {
        let (Some(lists), DataType::FixedSizeList(item, elements)) =
            (lists.as_list_opt::<i32>(), result.data_type())
        else {
            return internal_err!("{} received no list after coercion", self.name);
        };
        let length = usize::try_from(*elements).unwrap_or_default();
        let name = Function::FromList.name();
        let start = |row| {
            if lists.is_valid(row) {
                self.on_bad_value.apply(name, usable(lists, row, length))
            } else {
                Ok(None)
            }
        };
        // All lists before memory is taken for tensors.
        let starts = (0..lists.len()).map(start).collect::<Result<Vec<_>>>()?;
        check_batch(name, lists.len(), length, item.data_type())?;
        let values = cast(lists.values(), item.data_type())?.to_data();
        let mut copied = MutableArrayData::new(vec![&values], true, lists.len() * length);
        for start in &starts {
            match start {
                Some(start) => copied.try_extend(0, *start, start + length)?,
                None => copied.try_extend_nulls(length)?,
            }
        }
        let is_valid = starts.iter().map(Option::is_some).collect();
        fixed_size_list(item, *elements, make_array(copied.freeze()), is_valid)
    }

    /// What the first argument holds: by the sides among the arguments, if they are there.
    fn tensor(&self, field: &Field, sides: Vec<usize>) -> Result<TensorType> {
        let elements =
            sides.iter().try_fold(1i32, |all, side| all.checked_mul(i32::try_from(*side).ok()?));
        let tensor = match (self.has_sides, field.data_type()) {
            (false, _) => TensorType::of(field)?,
            (true, DataType::FixedSizeList(item, length)) if elements == Some(*length) => {
                Some(TensorType::Fixed { item: item.data_type().clone(), shape: sides })
            }
            (true, _) => None,
        };
        tensor.ok_or_else(|| plan_datafusion_err!("{} is not a type of tensors", field.data_type()))
    }

    /// The sides among the arguments.
    fn sides(&self, args: &ReturnFieldArgs<'_>) -> Result<Vec<usize>> {
        let side = |at| bounded_literal(args, at, &self.name, "side", SIDE_MAX);
        if self.has_sides {
            (self.function.arguments()..args.arg_fields.len()).map(side).collect()
        } else {
            Ok(vec![])
        }
    }

    /// Which part of the tensors, from the constants of a call.
    fn part(&self, args: &ReturnFieldArgs<'_>) -> Result<Part> {
        let number = |at, name| bounded_literal(args, at, &self.name, name, SIDE_MAX);
        let numbers = [number(1, "dimension")?, number(2, "first")?, number(3, "last")?];
        let field = &args.arg_fields[0];
        Part::try_new(&self.name, field, self.tensor(field, self.sides(args)?)?, numbers)
    }
}

/// Refuses a batch before memory is taken for it: NULLs take as much as tensors.
fn check_batch(function: &str, rows: usize, length: usize, item: &DataType) -> Result<()> {
    let width = item.primitive_width().unwrap_or(1);
    let bytes = rows.saturating_mul(length).saturating_mul(width);
    if bytes <= BATCH_BYTES_MAX {
        Ok(())
    } else {
        exec_err!(
            "{function}: the tensors of a batch of {rows} rows take {bytes} bytes, more than the \
             {BATCH_BYTES_MAX} that are allowed; SET datafusion.execution.batch_size to fewer rows"
        )
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
