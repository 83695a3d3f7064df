//! Forebay into a DataFusion session, in one call.

use std::sync::Arc;

use datafusion::catalog::TableFunction;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::ScalarUDF;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use forebay_engine::Devices;
use forebay_udf::feature;
use forebay_udf::model::Catalog;

use crate::arrow_files;
use crate::config::ForebayConfig;
use crate::delta;
use crate::optimizer;
use crate::optimizer::resolve_text_chunk::ResolveTextChunk;
use crate::physical::{
    ForebayQueryPlanner, InsertExchanges, KeepFields, OrderedJoins, bound_projections,
    keep_offsets, meet_requirements, short_memory, stage_writes,
};
use crate::read_files::ReadFiles;
use crate::sql::relation::ForebayRelations;
use crate::sql::scalar::MlPredict;

/// Adds to a session what Forebay consists of:
/// the models of `catalog` and the devices of this process, `ml_predict` in FROM and in
/// expressions, functions of vectors, images, audio and texts, `read_files`, the optimizer rules, the
/// physical planner and the options.
///
/// Sets the session's query planner; a session with a planner of its own needs to delegate to
/// [`ForebayQueryPlanner`](crate::physical::ForebayQueryPlanner).
///
/// ```
/// use std::sync::Arc;
/// use datafusion::execution::session_state::SessionStateBuilder;
/// use datafusion::prelude::SessionContext;
/// use forebay_engine::{Devices, Inventory};
/// use forebay_udf::model::Catalog;
///
/// let builder = SessionStateBuilder::new().with_default_features();
/// let devices = Arc::new(Devices::new(Inventory::detect()));
/// let state = forebay_planner::install(builder, Catalog::in_memory(), devices).build();
/// let context = SessionContext::new_with_state(state);
/// assert!(context.state().scalar_functions().contains_key("ml_predict"));
/// ```
pub fn install(
    mut builder: SessionStateBuilder,
    catalog: Arc<Catalog>,
    devices: Arc<Devices>,
) -> SessionStateBuilder {
    let mut config = builder.config().take().unwrap_or_default();
    config.set_extension(Arc::clone(&catalog));
    config.set_extension(devices);
    let options = config.options_mut();
    if options.extensions.get::<ForebayConfig>().is_none() {
        options.extensions.insert(ForebayConfig::default());
    }
    // Of `coalesce(CASE …, 0)` the logical plan knows that it is never NULL and the physical one does not, which
    // is no reason to refuse the query.
    options.execution.skip_physical_aggregate_schema_check = true;
    // Before DataFusion's own, which would take `ml_predict(…)` for a function it does not know.
    let relations = Arc::new(ForebayRelations::new(Arc::clone(&catalog)));
    builder.relation_planners().get_or_insert_default().insert(0, relations);
    // Where the packages of tokenizers are: the session's, unless it is given another one later.
    let stores = Arc::clone(builder.runtime_env().get_or_insert_default());
    let planned = feature::planned_functions(&stores);
    let functions = builder.scalar_functions().get_or_insert_default();
    functions.push(Arc::new(ScalarUDF::from(MlPredict::new(Arc::clone(&catalog)))));
    functions.extend(feature::functions());
    let name = ReadFiles::NAME.to_owned();
    let read_files = Arc::new(TableFunction::new(name.clone(), Arc::new(ReadFiles)));
    builder.table_functions().get_or_insert_default().insert(name, read_files);
    delta::add_to(builder.table_factories().get_or_insert_default());
    arrow_files::add_to(builder.file_formats().get_or_insert_default());
    // First, so that DataFusion's rules see the exchanges' partitioning and ordering.
    let mut physical: PhysicalOptimizer = builder.physical_optimizers().take().unwrap_or_default();
    physical.rules.insert(0, Arc::new(InsertExchanges));
    physical.rules.insert(0, Arc::new(KeepFields));
    physical.rules.insert(0, Arc::new(OrderedJoins));
    keep_offsets::add_to(&mut physical.rules);
    meet_requirements::add_to(&mut physical.rules);
    bound_projections::add_to(&mut physical.rules);
    stage_writes::add_to(&mut physical.rules);
    short_memory::add_to(&mut physical.rules);
    *builder.physical_optimizers() = Some(physical);
    let analyzer_rules = optimizer::analyzer_rules(&catalog);
    builder = builder.with_analyzer_rule(Arc::new(ResolveTextChunk::new(catalog, &planned)));
    for rule in analyzer_rules {
        builder = builder.with_analyzer_rule(rule);
    }
    for rule in optimizer::optimizer_rules() {
        builder = builder.with_optimizer_rule(rule);
    }
    builder.with_config(config).with_query_planner(Arc::new(ForebayQueryPlanner))
}
