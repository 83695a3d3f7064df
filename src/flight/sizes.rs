//! Sizes that a statement asks for by a number: of types, and of what functions make.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan};

/// Values of one vector.
const VECTOR_MAX: i64 = 1 << 20;

/// Functions, which of their arguments is a size, and the most it may be: characters or elements of
/// one value, and centroids of a sketch.
const ARGUMENTS: &[(&str, usize, i64)] = &[
    ("lpad", 1, 1 << 20),
    ("rpad", 1, 1 << 20),
    ("repeat", 1, 1 << 20),
    ("array_repeat", 1, 1 << 20),
    ("list_repeat", 1, 1 << 20),
    ("array_resize", 1, 1 << 20),
    ("list_resize", 1, 1 << 20),
    ("approx_percentile_cont", 2, 100_000),
    ("approx_percentile_cont_with_weight", 3, 100_000),
];

/// Whether no size in a plan is one that a single value would fill the memory with.
///
/// # Errors
/// Names the size, and what it belongs to.
pub(super) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| check_expr(expr).map(|()| TreeNodeRecursion::Continue))
        })
    })
    .map(|_| ())
}

fn check_expr(expr: &Expr) -> Result<()> {
    match expr {
        Expr::Cast(cast) => check_type(cast.field.data_type()),
        Expr::TryCast(cast) => check_type(cast.field.data_type()),
        Expr::ScalarFunction(call) => check_call(call.name(), &call.args),
        Expr::AggregateFunction(call) => check_call(call.func.name(), &call.params.args),
        Expr::WindowFunction(call) => check_call(call.fun.name(), &call.params.args),
        _ => Ok(()),
    }
}

fn check_type(data_type: &DataType) -> Result<()> {
    match data_type {
        DataType::FixedSizeList(_, size) if i64::from(*size) > VECTOR_MAX => plan_err!(
            "a vector of {size} values is longer than {VECTOR_MAX}, the most that this server takes"
        ),
        DataType::FixedSizeList(field, _)
        | DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field) => check_type(field.data_type()),
        DataType::FixedSizeBinary(size) if i64::from(*size) > VECTOR_MAX => plan_err!(
            "a value of {size} bytes is longer than {VECTOR_MAX}, the most that this server takes"
        ),
        DataType::Struct(fields) => {
            fields.iter().try_for_each(|field| check_type(field.data_type()))
        }
        _ => Ok(()),
    }
}

fn check_call(name: &str, arguments: &[Expr]) -> Result<()> {
    let Some((_, at, most)) = ARGUMENTS.iter().find(|(known, ..)| *known == name) else {
        return Ok(());
    };
    let Some(Expr::Literal(value, _)) = arguments.get(*at) else { return Ok(()) };
    match value.cast_to(&DataType::Float64) {
        Ok(ScalarValue::Float64(Some(size))) if size > *most as f64 => plan_err!(
            "{name}: {value} is more than {most}, the most that this server takes as its argument {}",
            at + 1
        ),
        _ => Ok(()),
    }
}
