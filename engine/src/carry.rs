//! What an operator that only appends and removes columns keeps of its input's properties.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Result, Statistics, internal_datafusion_err};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::{ProjectionMapping, ProjectionTargets};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterDescription, FilterDescription, FilterPushdownPhase,
};
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

/// What DataFusion's rule for dynamic filters may push below: filters over columns that are the
/// child's. It finds a column by name, so only columns that are the first of their name count.
pub(crate) fn dynamic_filters(
    phase: FilterPushdownPhase,
    filters: &[Arc<dyn PhysicalExpr>],
    sources: &Sources,
    child: &Arc<dyn ExecutionPlan>,
) -> Result<FilterDescription> {
    // Static filters have been moved by the logical rules, which have options.
    if phase != FilterPushdownPhase::Post {
        let none = ChildFilterDescription::all_unsupported(filters);
        return Ok(FilterDescription::new().with_child(none));
    }
    let schema = child.schema();
    let is_first = |at: usize| schema.index_of(schema.field(at).name()).is_ok_and(|i| i == at);
    let pushable = sources.iter().enumerate().filter(|(_, source)| source.is_some_and(is_first));
    let allowed = pushable.map(|(at, _)| at).collect();
    let below = ChildFilterDescription::from_child_with_allowed_indices(filters, allowed, child)?;
    Ok(FilterDescription::new().with_child(below))
}

/// Every column where it was.
pub(crate) fn identity(schema: &Schema) -> Sources {
    (0..schema.fields().len()).map(Some).collect()
}

/// The one child that an operator of ours has.
pub(crate) fn only_child(
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<[Arc<dyn ExecutionPlan>; 1]> {
    let count = children.len();
    children.try_into().map_err(|_| internal_datafusion_err!("expected one child, found {count}"))
}
