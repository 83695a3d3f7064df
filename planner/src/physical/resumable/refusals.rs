//! Why a plan cannot be cut into parts, and what to do.

use datafusion::common::{DataFusionError, plan_datafusion_err};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::ExecutionPlan;
use forebay_engine::InferenceExec;
use forebay_engine::write::Target;

/// What a plan is cut into parts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A write, whose parts are kept if it fails.
    Resume,
    /// A query, whose rows are shuffled window by window.
    Windows,
}

/// A statement that is to be resumed and cannot be.
pub(super) fn refused(why: &str, remedy: &str) -> DataFusionError {
    Purpose::Resume.refused(why, remedy)
}

impl Purpose {
    /// What is to be cut and cannot be.
    pub(super) fn refused(self, why: &str, remedy: &str) -> DataFusionError {
        match self {
            Self::Resume => plan_datafusion_err!(
                "this job could not be resumed: {why}; {remedy}, or SET forebay.resumable = false"
            ),
            Self::Windows => plan_datafusion_err!(
                "the query's rows cannot be shuffled in windows: {why}; leave out 'shuffle_window', so that all \
                 rows are shuffled together, or {remedy}"
            ),
        }
    }

    /// An operator that makes something of all rows below it.
    pub(super) fn of_all_rows(self, what: &str, plan: &dyn ExecutionPlan) -> DataFusionError {
        let remedy = match (self, has_model(plan)) {
            (Self::Resume, true) => {
                "SET forebay.stage_models = true, which stages what models give below it, keeps that and makes the \
                 rest of it at the end"
            }
            (Self::Resume, false) => "write the rows below it first, and make that of the files",
            (Self::Windows, _) => "write its rows to files first, and stream these",
        };
        self.refused(&format!("{what} makes of its rows what depends on all of them"), remedy)
    }

    pub(super) fn of_limit(self) -> DataFusionError {
        match self {
            Self::Resume => self.refused(
                "a LIMIT without ORDER BY takes any of its rows, and all of them would be computed first",
                "write its rows to files, and take some of these",
            ),
            Self::Windows => self.refused(
                "a LIMIT counts the rows of all windows",
                "take some rows by their values, as WHERE row_hash(7, id) % 10 = 0 does",
            ),
        }
    }

    pub(super) fn of_full_join(self, plan: &dyn ExecutionPlan) -> DataFusionError {
        match (self, has_model(plan)) {
            (Self::Resume, false) => self.refused(
                "of a FULL JOIN the rows without a partner depend on all rows of both sides",
                "write the two sides of it one after the other",
            ),
            _ => self.of_all_rows("FULL JOIN", plan),
        }
    }

    /// What an operator is that no row can pass alone.
    pub(super) fn of_operator(self, plan: &dyn ExecutionPlan) -> DataFusionError {
        match plan.name() {
            "AggregateExec" => self.of_all_rows("GROUP BY, DISTINCT or an aggregate", plan),
            "SortExec" | "SortPreservingMergeExec" | "PartialSortExec" => self.of_sort(plan),
            "GlobalLimitExec" | "LocalLimitExec" => self.of_limit(),
            "WindowAggExec" | "BoundedWindowAggExec" => self.of_all_rows("a window function", plan),
            "RecursiveQueryExec" | "WorkTableExec" => self.of_all_rows("WITH RECURSIVE", plan),
            "InterleaveExec" => self.refused(
                "the parts of its UNION are put together by values of columns",
                "SET datafusion.optimizer.prefer_existing_union = true",
            ),
            "SortMergeJoinExec" | "SymmetricHashJoinExec" | "PiecewiseMergeJoinExec" => self
                .refused(
                    "its join needs both sides in an order",
                    "SET datafusion.optimizer.prefer_hash_join = true",
                ),
            "DataSourceExec" => self.refused(
                match self {
                    Self::Resume => {
                        "it reads rows that are in memory, of which nothing is left when the server ends"
                    }
                    Self::Windows => "it reads rows that are in memory, and windows are parts of files",
                },
                "write them to files first",
            ),
            "LazyMemoryExec" => self.refused(
                "a function makes rows that are in no file, as range() does",
                "write them to files first",
            ),
            "EmptyExec" | "PlaceholderRowExec" => {
                let remedy = match self {
                    Self::Resume => "submit it without forebay.resumable",
                    Self::Windows => "name a table of files",
                };
                self.refused("it reads no files", remedy)
            }
            name => self.refused(
                &format!("it has an operator through which rows do not pass one by one ({name})"),
                "write its query without it",
            ),
        }
    }

    fn of_sort(self, plan: &dyn ExecutionPlan) -> DataFusionError {
        match self {
            Self::Resume => self.of_all_rows("ORDER BY", plan),
            Self::Windows => self.refused(
                "its ORDER BY gives rows an order, and so does the shuffle",
                "leave out ORDER BY",
            ),
        }
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
