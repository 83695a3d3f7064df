//! Parameters of statements: their numbers, their types, and values in their place.

use std::collections::HashMap;
use std::ops::ControlFlow;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{Expr as LogicalExpr, LogicalPlan};
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{Expr, Value, visit_expressions_mut};
use forebay_planner::sql::statement::Statement;

/// Gives all parameters the form `$1`, `$2`, … and says what they were called: `?` is the next one
/// each time.
pub(super) fn number_parameters(statement: &mut Statement) -> Vec<String> {
    let mut names = vec![];
    for_each_parameter(statement, |name| {
        let number = match name.strip_prefix('$') {
            Some(known) => names.iter().position(|name| name == known),
            None => None,
        };
        let number = number.unwrap_or_else(|| {
            let bare = name.strip_prefix('$').map(str::to_owned);
            names.push(bare.unwrap_or_else(|| (names.len() + 1).to_string()));
            names.len() - 1
        });
        Value::Placeholder(format!("${}", number + 1))
    });
    in_numeric_order(statement, names)
}

/// `$2` is the second value, wherever it stands.
fn in_numeric_order(statement: &mut Statement, names: Vec<String>) -> Vec<String> {
    let numbers: Option<Vec<usize>> = names.iter().map(|name| name.parse().ok()).collect();
    let Some(numbers) = numbers.filter(|numbers| numbers.iter().all(|number| *number > 0)) else {
        return names;
    };
    for_each_parameter(statement, |name| {
        let at = name.strip_prefix('$').and_then(|at| at.parse::<usize>().ok()).unwrap_or(1);
        Value::Placeholder(format!("${}", numbers.get(at - 1).copied().unwrap_or(at)))
    });
    let most = numbers.into_iter().max().unwrap_or(0);
    (1..=most).map(|number| number.to_string()).collect()
}

fn for_each_parameter(statement: &mut Statement, mut change: impl FnMut(&str) -> Value) {
    let Statement::Sql(sql) = statement else { return };
    let parameters_of = |expr: &mut Expr| {
        if let Expr::Value(value) = expr
            && let Value::Placeholder(name) = &value.value
        {
            value.value = change(name);
        }
        ControlFlow::<()>::Continue(())
    };
    visit(sql, parameters_of);
}

fn visit(sql: &mut SqlStatement, change: impl FnMut(&mut Expr) -> ControlFlow<()>) {
    match sql {
        SqlStatement::Statement(statement) => {
            let _ = visit_expressions_mut(statement.as_mut(), change);
        }
        SqlStatement::Explain(explain) => visit(&mut explain.statement, change),
        _ => {}
    }
}

/// Writes simple values in place of their parameters, as literals of the parsed statement, so that
/// models know their types. All others stay parameters.
pub(super) fn write_values(sql: &mut SqlStatement, values: &[ScalarValue]) {
    let written = |expr: &mut Expr| {
        if let Expr::Value(value) = expr
            && let Value::Placeholder(name) = &value.value
            && let Some(at) = name.strip_prefix('$').and_then(|at| at.parse::<usize>().ok())
            && let Some(literal) = values.get(at.wrapping_sub(1)).and_then(literal)
        {
            value.value = literal;
        }
        ControlFlow::<()>::Continue(())
    };
    if !values.is_empty() {
        visit(sql, written);
    }
}

fn literal(value: &ScalarValue) -> Option<Value> {
    if value.is_null() {
        return None;
    }
    let number = |text: String| Some(Value::Number(text, false));
    match value {
        ScalarValue::Utf8(Some(text))
        | ScalarValue::LargeUtf8(Some(text))
        | ScalarValue::Utf8View(Some(text)) => Some(Value::SingleQuotedString(text.clone())),
        ScalarValue::Boolean(Some(value)) => Some(Value::Boolean(*value)),
        // A number with a sign is an expression of its own, and the smallest has no positive twin.
        ScalarValue::Int8(Some(value)) if *value >= 0 => number(value.to_string()),
        ScalarValue::Int16(Some(value)) if *value >= 0 => number(value.to_string()),
        ScalarValue::Int32(Some(value)) if *value >= 0 => number(value.to_string()),
        ScalarValue::Int64(Some(value)) if *value >= 0 => number(value.to_string()),
        _ => None,
    }
}

/// As which type clients are asked for a value. JDBC has milliseconds, and its driver writes their
/// number whatever the unit of the parameter is; all others send units of their own.
pub(super) fn asked_for(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Millisecond, zone.clone()),
        DataType::Time32(_) | DataType::Time64(_) => DataType::Time32(TimeUnit::Millisecond),
        other => other.clone(),
    }
}

/// A value in the unit of its parameter, because DataFusion compares no times of two units.
pub(super) fn in_unit_of(value: ScalarValue, wanted: &DataType) -> Result<ScalarValue> {
    let found = value.data_type();
    if found != *wanted && asked_for(&found) == asked_for(wanted) && wanted.is_temporal() {
        return value.cast_to(wanted);
    }
    Ok(value)
}

/// `CAST(? AS type)` tells a type, which DataFusion does not take for the parameter's.
pub(super) fn cast_types(plan: &LogicalPlan) -> HashMap<String, DataType> {
    let mut found = HashMap::new();
    let mut note = |expr: &LogicalExpr| {
        if let LogicalExpr::Cast(cast) = expr
            && let LogicalExpr::Placeholder(placeholder) = cast.expr.as_ref()
        {
            found.insert(placeholder.id.clone(), cast.field.data_type().clone());
        }
        Ok(TreeNodeRecursion::Continue)
    };
    // Nothing in it fails.
    let _ = plan.apply_with_subqueries(|node| node.apply_expressions(|expr| expr.apply(&mut note)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Catalog, ForebayContext};

    fn numbered(sql: &str) -> (String, Vec<String>) {
        let context = ForebayContext::builder().with_catalog(Catalog::in_memory()).build().unwrap();
        let mut statement = context.parse(sql).unwrap().remove(0);
        let names = number_parameters(&mut statement);
        let Statement::Sql(sql) = statement else { unreachable!("a statement of DataFusion") };
        (sql.to_string(), names)
    }

    #[test]
    fn parameters_are_numbered_however_they_are_written() {
        let cases = [
            ("SELECT ? + ?", "SELECT $1 + $2", vec!["1", "2"]),
            ("SELECT $2, $1, $2", "SELECT $2, $1, $2", vec!["1", "2"]),
            ("SELECT $3", "SELECT $3", vec!["1", "2", "3"]),
            ("SELECT $b, $a, $b", "SELECT $1, $2, $1", vec!["b", "a"]),
            ("SELECT '?', 1", "SELECT '?', 1", vec![]),
        ];
        for (sql, text, names) in cases {
            let names = names.into_iter().map(str::to_owned).collect();
            assert_eq!(numbered(sql), (text.to_owned(), names), "{sql}");
        }
    }
}
