//! Functions that are neither DataFusion's nor Forebay's.

use std::sync::Arc;

use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF, WindowUDF};

/// Functions of a program that has Forebay in it. Plans name them: on a cluster the client, the
/// scheduler and all workers must have them.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    /// One value from the values of a row.
    pub scalar: Vec<Arc<ScalarUDF>>,
    /// One value from many rows.
    pub aggregate: Vec<Arc<AggregateUDF>>,
    /// One value per row, from the rows around it.
    pub window: Vec<Arc<WindowUDF>>,
}

impl Functions {
    /// Adds them to those that a session has.
    #[must_use]
    pub fn register(self, mut builder: SessionStateBuilder) -> SessionStateBuilder {
        builder.scalar_functions().get_or_insert_default().extend(self.scalar);
        builder.aggregate_functions().get_or_insert_default().extend(self.aggregate);
        builder.window_functions().get_or_insert_default().extend(self.window);
        builder
    }
}
