//! Why a write cannot be resumed, and what to do.

use datafusion::common::{DataFusionError, plan_datafusion_err};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::ExecutionPlan;
use forebay_engine::write::Target;

/// A statement that is to be resumed and cannot be.
pub(super) fn refused(why: &str, remedy: &str) -> DataFusionError {
    plan_datafusion_err!(
        "this job could not be resumed: {why}; {remedy}, or SET forebay.resumable = false"
    )
}

pub(super) fn of_all_rows(what: &str) -> DataFusionError {
    refused(
        &format!("{what} makes of its rows what depends on all of them"),
        "write the rows below it first, and make that of the files",
    )
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
        "AggregateExec" => of_all_rows("GROUP BY, DISTINCT or an aggregate"),
        "SortExec" | "SortPreservingMergeExec" | "PartialSortExec" => of_all_rows("ORDER BY"),
        "GlobalLimitExec" | "LocalLimitExec" => of_all_rows("LIMIT"),
        "WindowAggExec" | "BoundedWindowAggExec" => of_all_rows("a window function"),
        "RecursiveQueryExec" | "WorkTableExec" => of_all_rows("WITH RECURSIVE"),
        "UnionExec" | "InterleaveExec" => refused(
            "UNION reads more than one table",
            "write what it is made of one after the other",
        ),
        "SortMergeJoinExec" | "SymmetricHashJoinExec" | "PiecewiseMergeJoinExec" => refused(
            "its join needs both sides in an order",
            "SET datafusion.optimizer.prefer_hash_join = true",
        ),
        "DataSourceExec" => refused(
            "it reads rows that are in memory, of which nothing is left when the server ends",
            "write them to files first",
        ),
        "ReadFilesExec" => refused(
            "it reads read_files, whose files are not cut into parts",
            "write their names and what was made of them to files first",
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
