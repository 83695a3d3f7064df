//! Why a write cannot be resumed, and what to do.

use datafusion::common::{DataFusionError, plan_datafusion_err};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::ExecutionPlan;
use forebay_engine::InferenceExec;
use forebay_engine::write::Target;

/// A statement that is to be resumed and cannot be.
pub(super) fn refused(why: &str, remedy: &str) -> DataFusionError {
    plan_datafusion_err!(
        "this job could not be resumed: {why}; {remedy}, or SET forebay.resumable = false"
    )
}

/// An operator that makes something of all rows below it.
pub(super) fn of_all_rows(what: &str, plan: &dyn ExecutionPlan) -> DataFusionError {
    let remedy = match has_model(plan) {
        true => {
            "SET forebay.stage_models = true, which stages what models give below it, keeps that and makes the rest \
             of it at the end"
        }
        false => "write the rows below it first, and make that of the files",
    };
    refused(&format!("{what} makes of its rows what depends on all of them"), remedy)
}

pub(super) fn of_limit() -> DataFusionError {
    refused(
        "a LIMIT without ORDER BY takes any of its rows, and all of them would be computed first",
        "write its rows to files, and take some of these",
    )
}

pub(super) fn of_full_join(plan: &dyn ExecutionPlan) -> DataFusionError {
    match has_model(plan) {
        true => of_all_rows("FULL JOIN", plan),
        false => refused(
            "of a FULL JOIN the rows without a partner depend on all rows of both sides",
            "write the two sides of it one after the other",
        ),
    }
}

fn has_model(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<InferenceExec>() || plan.children().into_iter().any(|child| has_model(child.as_ref()))
}

/// A table of which files were declared to be in an order, each after the one before.
pub(super) fn of_ordered_table(target: &Target, order: &LexOrdering) -> DataFusionError {
    refused(
        &format!(
            "the table in '{}' is declared WITH ORDER ({order}), and parts of a job are written in the order of \
             its inputs",
            target.name()
        ),
        "INSERT into one of the same files that is declared without it",
    )
}

/// What an operator is that no row can pass alone.
pub(super) fn of_operator(plan: &dyn ExecutionPlan) -> DataFusionError {
    match plan.name() {
        "AggregateExec" => of_all_rows("GROUP BY, DISTINCT or an aggregate", plan),
        "SortExec" | "SortPreservingMergeExec" | "PartialSortExec" => of_all_rows("ORDER BY", plan),
        "GlobalLimitExec" | "LocalLimitExec" => of_limit(),
        "WindowAggExec" | "BoundedWindowAggExec" => of_all_rows("a window function", plan),
        "RecursiveQueryExec" | "WorkTableExec" => of_all_rows("WITH RECURSIVE", plan),
        "InterleaveExec" => refused(
            "the parts of its UNION are put together by values of columns",
            "SET datafusion.optimizer.prefer_existing_union = true",
        ),
        "SortMergeJoinExec" | "SymmetricHashJoinExec" | "PiecewiseMergeJoinExec" => refused(
            "its join needs both sides in an order",
            "SET datafusion.optimizer.prefer_hash_join = true",
        ),
        "DataSourceExec" => refused(
            "it reads rows that are in memory, of which nothing is left when the server ends",
            "write them to files first",
        ),
        "EmptyExec" | "PlaceholderRowExec" => {
            refused("it reads no files", "submit it without forebay.resumable")
        }
        name => refused(
            &format!("it has an operator through which rows do not pass one by one ({name})"),
            "write its query without it",
        ),
    }
}
