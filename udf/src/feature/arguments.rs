//! Reading what a SQL function is given.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::logical_expr::ReturnFieldArgs;

/// What becomes of a query when a function cannot use the value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OnBadValue {
    /// The query ends with the reason. `image_decode(…)`
    Fail,
    /// The result of that row is NULL. `try_image_decode(…)`
    Null,
}

impl OnBadValue {
    /// The name of a function under this policy.
    pub(super) fn name_of(self, function: &str) -> String {
        match self {
            Self::Fail => function.to_owned(),
            Self::Null => format!("try_{function}"),
        }
    }

    /// `None` for a bad value that becomes NULL.
    pub(super) fn apply<T>(
        self,
        function: &str,
        result: std::result::Result<T, String>,
    ) -> Result<Option<T>> {
        match (result, self) {
            (Ok(value), _) => Ok(Some(value)),
            (Err(_), Self::Null) => Ok(None),
            (Err(problem), Self::Fail) => {
                exec_err!("{function}: {problem}; try_{function} gives NULL for such values")
            }
        }
    }
}

/// A column of byte strings in any of Arrow's layouts.
#[derive(Debug)]
pub(crate) struct BytesColumn<'a>(&'a ArrayRef);

impl<'a> BytesColumn<'a> {
    /// `None` if the column holds something else.
    pub(crate) fn of(column: &'a ArrayRef) -> Option<Self> {
        is_bytes(column.data_type()).then_some(Self(column))
    }

    /// `None` if the row is NULL.
    pub(crate) fn get(&self, row: usize) -> Option<&'a [u8]> {
        self.0.is_valid(row).then(|| match self.0.data_type() {
            DataType::Binary => self.0.as_binary::<i32>().value(row),
            DataType::LargeBinary => self.0.as_binary::<i64>().value(row),
            _ => self.0.as_binary_view().value(row),
        })
    }
}

pub(crate) fn is_bytes(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// A whole number of a row; `None` if it is NULL.
pub(super) fn whole_number(column: &ArrayRef, row: usize) -> Result<Option<i64>> {
    match column.as_primitive_opt::<Int64Type>() {
        Some(numbers) => Ok(numbers.is_valid(row).then(|| numbers.value(row))),
        None => internal_err!("expected BIGINT after coercion, found {}", column.data_type()),
    }
}

/// A text of a row; `None` if it is NULL.
pub(super) fn text(column: &ArrayRef, row: usize) -> Result<Option<&str>> {
    match column.as_string_opt::<i32>() {
        Some(texts) => Ok(texts.is_valid(row).then(|| texts.value(row))),
        None => internal_err!("expected STRING after coercion, found {}", column.data_type()),
    }
}

/// A positive constant, which the type of the result depends on.
pub(super) fn size_literal(
    args: &ReturnFieldArgs<'_>,
    at: usize,
    function: &str,
    name: &str,
) -> Result<usize> {
    bounded_literal(args, at, function, name, i64::from(u16::MAX))
}

/// The same of another size at most.
pub(super) fn bounded_literal(
    args: &ReturnFieldArgs<'_>,
    at: usize,
    function: &str,
    name: &str,
    most: i64,
) -> Result<usize> {
    let number = args.scalar_arguments.get(at).copied().flatten();
    let number = number.map(|value| value.cast_to(&DataType::Int64)).transpose()?;
    match number {
        Some(ScalarValue::Int64(Some(number))) if (1..=most).contains(&number) => {
            Ok(number as usize)
        }
        Some(ScalarValue::Int64(Some(number))) => {
            plan_err!("{function}: {name} is {number}, expected 1 to {most}")
        }
        _ => plan_err!(
            "{function}: {name} must be a constant, because the type of the result depends on it"
        ),
    }
}
