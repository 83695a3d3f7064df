//! Which part of a plan leaves the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ballista_core::config::BallistaConfig;
use datafusion::common::{Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};
use datafusion::prelude::SessionConfig;
use forebay_engine::{CommitExec, WriteExec};
use forebay_planner::ForebayConfig;

use crate::client::cluster::Cluster;
use crate::client::cluster_exec::ClusterExec;
use crate::client::direct_writes::direct;
use crate::stages::can_be_sent;

/// Sets the options that plans on a cluster need: what one operator tells another while both run
/// (the value of a subquery, the keys of a join) does not travel between stages, and string views
/// travel with all of the buffers that they point into. An exchange that keeps an order is not cut.
///
/// The smaller side of a join is read by all tasks up to a larger size than in one process, unless the
/// program has chosen one: to shuffle both sides takes more, as it goes through files.
#[must_use]
pub fn plans_for_cluster(mut config: SessionConfig) -> SessionConfig {
    let extensions = &mut config.options_mut().extensions;
    if extensions.get::<ForebayConfig>().is_none() {
        extensions.insert(ForebayConfig::default());
    }
    let usual = ConfigOptions::default().optimizer;
    let (ballista, optimizer) = (BallistaConfig::default(), &mut config.options_mut().optimizer);
    if optimizer.hash_join_single_partition_threshold == usual.hash_join_single_partition_threshold
    {
        optimizer.hash_join_single_partition_threshold = ballista.broadcast_join_threshold_bytes();
    }
    if optimizer.hash_join_single_partition_threshold_rows
        == usual.hash_join_single_partition_threshold_rows
    {
        optimizer.hash_join_single_partition_threshold_rows =
            ballista.broadcast_join_threshold_rows();
    }
    config
        .set_bool("datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery", false)
        .set_bool("datafusion.optimizer.enable_dynamic_filter_pushdown", false)
        .set_bool("datafusion.execution.parquet.schema_force_view_types", false)
        .set_bool("datafusion.sql_parser.map_string_types_to_utf8view", false)
        .set_bool("forebay.ordered_exchanges", false)
}

/// Puts a [`ClusterExec`] above what workers can run.
///
/// All of a plan goes, but for what writes into tables of the client's own, for the commit of what
/// workers write to files, for plans that read something that only the client has, such as
/// `information_schema`, and for those with window functions that cannot be sent as they are.
#[derive(Debug)]
pub struct Distribute {
    cluster: Cluster,
    /// How many it has when a statement is planned.
    cores: Arc<AtomicUsize>,
}

impl Distribute {
    /// Sends plans to `cluster`, which has so many cores.
    pub fn new(cluster: Cluster, cores: Arc<AtomicUsize>) -> Self {
        Self { cluster, cores }
    }
}

impl PhysicalOptimizerRule for Distribute {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(commit) = plan.downcast_ref::<CommitExec>() {
            let options = config.extensions.get::<ForebayConfig>().cloned().unwrap_or_default();
            return self.committed(commit, &options);
        }
        if plan.is::<DataSinkExec>() {
            let inputs = plan.children().into_iter().cloned();
            let inputs = inputs.map(|input| self.distributed(input)).collect();
            return replace_children_if_necessary(plan, inputs);
        }
        Ok(self.distributed(plan))
    }

    fn name(&self) -> &'static str {
        "distribute"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

impl Distribute {
    /// Files of a folder are written by workers, each by as many as there are; a single file by the client.
    fn committed(
        &self,
        commit: &CommitExec,
        options: &ForebayConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(write) = commit.input().downcast_ref::<WriteExec>() else {
            return internal_err!("CommitExec commits what {} writes", commit.input().name());
        };
        let (rows, target) = (write.input(), Arc::clone(write.target()));
        let goes = can_travel(rows) && has_work(rows);
        let on_cluster = |plan| -> Arc<dyn ExecutionPlan> {
            Arc::new(ClusterExec::new(plan, self.cluster.clone()))
        };
        let write = |rows| Arc::new(WriteExec::new(rows, Arc::clone(&target)));
        let on_workers = options.write_on_workers && !target.is_file();
        let written: Arc<dyn ExecutionPlan> = match (goes, on_workers) {
            (true, true) => {
                let rows = apart(rows);
                let cores = self.cores.load(Ordering::Relaxed);
                // What is resumed is cut into parts, of which a task has much less than of the whole.
                let direct = match options.resumable {
                    true => None,
                    false => direct(&rows, &target, cores)?,
                };
                on_cluster(match direct {
                    Some(rows) => {
                        Arc::new(WriteExec::new(rows, Arc::clone(&target)).with_direct(true))
                    }
                    None => write(rows),
                })
            }
            (true, false) => write(on_cluster(apart(rows))),
            (false, _) => write(Arc::clone(rows)),
        };
        Ok(Arc::new(CommitExec::new(written, target)))
    }

    fn distributed(&self, plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        if !can_travel(&plan) || !has_work(&plan) {
            return plan;
        }
        Arc::new(ClusterExec::new(plan, self.cluster.clone()))
    }
}

/// The partitions that one process brings together in front of its only sink. An order is kept by another
/// operator.
fn apart(rows: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match rows.downcast_ref::<CoalescePartitionsExec>() {
        Some(all) if all.fetch().is_none() => Arc::clone(all.input()),
        _ => Arc::clone(rows),
    }
}

/// Whether all that a plan reads can be read elsewhere, and its operators are the same ones there.
fn can_travel(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let children = plan.children();
    if !children.is_empty() {
        return can_be_sent(plan) && children.into_iter().all(can_travel);
    }
    plan.is::<EmptyExec>() || plan.is::<PlaceholderRowExec>() || is_source(plan)
}

fn is_source(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<DataSourceExec>().is_some_and(|scan| {
        let source = scan.data_source();
        source.downcast_ref::<FileScanConfig>().is_some()
            || source.downcast_ref::<MemorySourceConfig>().is_some()
    })
}

/// Whether a plan reads anything; constants are not worth a journey.
fn has_work(plan: &Arc<dyn ExecutionPlan>) -> bool {
    is_source(plan) || plan.children().into_iter().any(has_work)
}
