//! Lists that are written out where a model takes a vector: `ml_predict(MODEL mlp, [1.0, 2.0])`.
//!
//! The type of a list does not say how long it is, so a column of lists is refused. Of a list that is
//! written out, the text says it.

use arrow::array::Array;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::{Expr, cast};
use forebay_udf::model::{ModelDeclaration, type_name};

/// `arg` as the vector that `wanted` is, if it is a list that is written out; itself otherwise.
///
/// # Errors
/// If the list has another length than the vector.
pub(super) fn as_vector(
    model: &ModelDeclaration,
    wanted: &FieldRef,
    (arg, given): (Expr, &DataType),
) -> Result<Expr> {
    let DataType::FixedSizeList(_, length) = wanted.data_type() else { return Ok(arg) };
    let Some(found) = written_length(&arg).filter(|_| may_become(given, wanted.data_type())) else {
        return Ok(arg);
    };
    if usize::try_from(*length) != Ok(found) {
        return plan_err!(
            "ml_predict: model '{}' wants {} for input '{}', found a list of {found} values, \
             expected {length}",
            model.name,
            type_name(wanted.data_type()),
            wanted.name()
        );
    }
    Ok(cast(arg, wanted.data_type().clone()))
}

/// Whether a list of this type becomes the vector without losing anything but digits behind the point.
pub(crate) fn may_become(list: &DataType, vector: &DataType) -> bool {
    let (DataType::List(given), DataType::FixedSizeList(wanted, _)) = (list, vector) else {
        return false;
    };
    let (given, wanted) = (given.data_type(), wanted.data_type());
    match wanted {
        wanted if wanted.is_floating() => given.is_numeric() || given.is_null(),
        wanted if wanted.is_integer() => given.is_integer() || given.is_null(),
        _ => false,
    }
}

/// How many values a list has that is written out, or was before it was computed.
fn written_length(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Alias(alias) => written_length(&alias.expr),
        Expr::ScalarFunction(call) if call.func.name() == "make_array" => Some(call.args.len()),
        Expr::Literal(ScalarValue::List(list), _) if list.len() == 1 && list.is_valid(0) => {
            Some(list.value(0).len())
        }
        _ => None,
    }
}
