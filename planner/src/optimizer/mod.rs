//! Rules on logical plans, in the order in which they run.
//!
//! 1. [`flatten_lateral_inference`]: a correlated call becomes a projection over the left side
//! 2. [`extract_scalar_inference`]: a call in an expression becomes an
//!    [`Inference`](crate::logical::Inference) node below the operator
//!
//! Both run as analyzer rules, that is before every optimizer rule: `ml_predict` in an expression
//! is a marker that nothing may evaluate, duplicate or fold. What DataFusion's own rules need to
//! know to move filters, limits and projections past inference, the node tells them.

pub mod extract_scalar_inference;
pub mod flatten_lateral_inference;

use std::sync::Arc;

use datafusion::optimizer::AnalyzerRule;

/// All rules, in order.
pub fn rules() -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    vec![
        Arc::new(flatten_lateral_inference::FlattenLateralInference),
        Arc::new(extract_scalar_inference::ExtractScalarInference),
    ]
}
