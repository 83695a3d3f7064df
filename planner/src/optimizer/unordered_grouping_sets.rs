//! The keys of `ROLLUP`, `CUBE` and `GROUPING SETS` are values of which the plan knows nothing.
//!
//! An aggregate of DataFusion's goes on to claim what holds of its input: that rows come in an order, that
//! a key is constant or never NULL. Of several sets of keys none of it holds: each leaves some out, which
//! are NULL then. What relies on it would give rows in a wrong order, or wrong rows (`DISTINCT ON`).
//!
//! Keys that are computed are columns of a projection below, as the sets tell keys apart by what they are:
//! no rule could give a part of them another name.
//!
//! ```text
//! Aggregate: ROLLUP (a, b + 1)  →  Aggregate: ROLLUP (a, "b + 1")
//!   Scan: t                          Projection: unknown(a) AS a, b, unknown(b + 1) AS "b + 1"
//!                                      Scan: t
//! ```

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::AnalyzerRule;

use crate::logical::Unknown;

/// See the [module](self).
#[derive(Debug)]
pub struct UnorderedGroupingSets;

impl AnalyzerRule for UnorderedGroupingSets {
    fn name(&self) -> &str {
        "unordered_grouping_sets"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Aggregate(aggregate) if has_sets(&aggregate) => {
                Ok(Transformed::yes(of_unknown_keys(aggregate)?))
            }
            node => Ok(Transformed::no(node)),
        })
        .data()
    }
}

fn has_sets(aggregate: &Aggregate) -> bool {
    aggregate.group_expr.iter().any(|expr| matches!(expr, Expr::GroupingSet(_)))
}

fn of_unknown_keys(aggregate: Aggregate) -> Result<LogicalPlan> {
    let keys = keys(&aggregate.group_expr);
    let columns = aggregate.input.schema().columns().into_iter().map(|column| {
        let value = Expr::Column(column.clone());
        if keys.contains(&value) {
            Unknown::of(value).alias_qualified(column.relation, column.name)
        } else {
            value
        }
    });
    let computed = keys.iter().filter(|key| !matches!(key, Expr::Column(_)));
    let named = computed.map(|key| Unknown::of(key.clone()).alias(key.schema_name().to_string()));
    let columns: Vec<Expr> = columns.chain(named).collect();
    let input = LogicalPlanBuilder::from(Arc::clone(&aggregate.input)).project(columns)?.build()?;
    // Also in `grouping(…)`.
    let by_column = |expr: Expr| {
        expr.transform_down(|expr| {
            Ok(if keys.contains(&expr) && !matches!(expr, Expr::Column(_)) {
                let name = expr.schema_name().to_string();
                Transformed::yes(Expr::Column(Column::from_name(name)))
            } else {
                Transformed::no(expr)
            })
        })
        .data()
    };
    let groups = aggregate.group_expr.into_iter().map(by_column).collect::<Result<_>>()?;
    let aggregates = aggregate.aggr_expr.into_iter().map(by_column).collect::<Result<_>>()?;
    Ok(LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input), groups, aggregates)?))
}

/// Each once.
fn keys(groups: &[Expr]) -> Vec<Expr> {
    let mut keys: Vec<Expr> = vec![];
    for group in groups {
        let found = match group {
            Expr::GroupingSet(set) => set.distinct_expr(),
            expr => vec![expr],
        };
        for key in found {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
    }
    keys
}
