//! Where a statement is cut that is written in two steps.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};

/// The rows of its input, as they are. They are staged in files, of which the rest of the statement is made.
///
/// It stands in plans of jobs that can be resumed, and nowhere else: no rule of the optimizer meets it, and no
/// plan with it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd)]
pub(crate) struct Staged {
    input: Arc<LogicalPlan>,
}

impl Staged {
    /// This node above a plan.
    pub(crate) fn plan(input: LogicalPlan) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(Self { input: Arc::new(input) }) })
    }
}

impl UserDefinedLogicalNodeCore for Staged {
    fn name(&self) -> &str {
        "Staged"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Staged")
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        match <[LogicalPlan; 1]>::try_from(inputs) {
            Ok([input]) => Ok(Self { input: Arc::new(input) }),
            Err(inputs) => internal_err!("Staged takes one input, found {}", inputs.len()),
        }
    }
}
