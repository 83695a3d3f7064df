//! What an operator that only appends and removes columns keeps of its input's properties.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Result, Statistics, internal_datafusion_err};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::{ProjectionMapping, ProjectionTargets};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

/// For each of the output's columns the input column that it is, if it is one.
pub(crate) type Sources = Vec<Option<usize>>;

/// The input's orderings and equivalences, in terms of the output's columns.
pub(crate) fn equivalences(
    input: &EquivalenceProperties,
    sources: &Sources,
    schema: &SchemaRef,
) -> EquivalenceProperties {
    input.project(&mapping(input.schema(), sources, schema), Arc::clone(schema))
}

/// The input's partitioning, in terms of the output's columns.
pub(crate) fn partitioning(
    input: &Arc<dyn ExecutionPlan>,
    sources: &Sources,
    schema: &SchemaRef,
) -> Partitioning {
    let mapping = mapping(&input.schema(), sources, schema);
    input.output_partitioning().project(&mapping, input.equivalence_properties())
}

fn mapping(input: &Schema, sources: &Sources, output: &Schema) -> ProjectionMapping {
    let column = |name: &str, at| -> Arc<dyn PhysicalExpr> { Arc::new(Column::new(name, at)) };
    let pair = |(target, source): (usize, &Option<usize>)| {
        let source = (*source)?;
        let from = column(input.fields().get(source)?.name(), source);
        let to = column(output.field(target).name(), target);
        Some((from, ProjectionTargets::from(vec![(to, target)])))
    };
    sources.iter().enumerate().filter_map(pair).collect()
}

/// The input's number of rows; nothing is claimed of the columns.
pub(crate) fn row_statistics(input: &Statistics, schema: &Schema) -> Statistics {
    Statistics { num_rows: input.num_rows, ..Statistics::new_unknown(schema) }
}

/// The one child that an operator of ours has.
pub(crate) fn only_child(
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<[Arc<dyn ExecutionPlan>; 1]> {
    let count = children.len();
    children.try_into().map_err(|_| internal_datafusion_err!("expected one child, found {count}"))
}
