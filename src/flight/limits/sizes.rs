//! Sizes that a statement asks for: how much there is to plan, by a number those of types and of
//! sketches. What functions make of a value is theirs to check, where they run: `planner/src/bounded/`.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan};

/// Operators and calls of one plan, views and common tables at each place where they are used.
/// Planning looks at each of them dozens of times.
const NODES_MAX: usize = 20_000;
/// Values of one vector.
const VECTOR_MAX: i64 = 1 << 20;

/// Functions, which of their arguments is a size, and the most it may be: centroids of a sketch.
const ARGUMENTS: &[(&str, usize, i64)] =
    &[("approx_percentile_cont", 2, 100_000), ("approx_percentile_cont_with_weight", 3, 100_000)];

/// Whether a plan is no larger than can be optimized, and no size in it is one that a single value
/// would fill the memory with.
///
/// # Errors
/// Names the size, and what it belongs to.
pub(in crate::flight) fn check(plan: &LogicalPlan) -> Result<()> {
    let mut nodes = 0;
    // By an error, so that it ends: a few tables that each use the one before twice are millions.
    let mut count = || {
        nodes += 1;
        if nodes <= NODES_MAX {
            return Ok(());
        }
        plan_err!(
            "the plan of the statement has more than {NODES_MAX} operators, functions and tables, the \
             most that this server takes; write it in parts, with tables between them"
        )
    };
    plan.apply_with_subqueries(|node| {
        count()?;
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if !matches!(expr, Expr::Column(_) | Expr::Literal(..) | Expr::Alias(_)) {
                    count()?;
                    check_expr(expr)?;
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })
    .map(|_| ())
}

fn check_expr(expr: &Expr) -> Result<()> {
    match expr {
        Expr::Cast(cast) => check_type(cast.field.data_type()),
        Expr::TryCast(cast) => check_type(cast.field.data_type()),
        Expr::ScalarFunction(call) if call.name().starts_with("arrow_") => {
            check_named_type(call.args.last())
        }
        Expr::AggregateFunction(call) => check_call(call.func.name(), &call.params.args),
        Expr::WindowFunction(call) => check_call(call.fun.name(), &call.params.args),
        _ => Ok(()),
    }
}

/// `arrow_cast(value, 'FixedSizeList(…)')`, which becomes a cast when it is simplified.
fn check_named_type(name: Option<&Expr>) -> Result<()> {
    let Some(Expr::Literal(name, _)) = name else { return Ok(()) };
    let named = name.try_as_str().flatten().and_then(|name| name.parse().ok());
    named.map_or(Ok(()), |named| check_type(&named))
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
        | DataType::LargeListView(field)
        | DataType::Map(field, _) => check_type(field.data_type()),
        DataType::FixedSizeBinary(size) if i64::from(*size) > VECTOR_MAX => plan_err!(
            "a value of {size} bytes is longer than {VECTOR_MAX}, the most that this server takes"
        ),
        DataType::Struct(fields) => {
            fields.iter().try_for_each(|field| check_type(field.data_type()))
        }
        DataType::Dictionary(_, value) => check_type(value),
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
