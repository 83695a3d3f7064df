//! Hash shuffles of many rows are into more partitions than a cluster has cores.
//!
//! A plan deals rows out into as many partitions as there are cores, and a task that groups or joins one of them has to
//! hold it, or parts of it, over and over, on its disk. With partitions of a size that a task holds, rows are read once.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, Partitioning, StatisticsArgs, StatisticsContext,
};

use crate::stages::scan_bytes::scan_bytes;

/// More are not made: what merges all partitions of a stage in one task has a batch of each.
const PARTITIONS_MAX: u64 = 256;

/// The plan with its hash shuffles into partitions of so many bytes, as far as statistics tell, and options by which
/// Ballista's planner deals out what it adds into as many. As they were if there are enough partitions, if
/// something else in the plan is dealt out by hash into another number of them, or if DataFusion cannot tell the sizes or
/// make such a plan: the one that there is runs.
pub(super) fn finer_shuffles(
    plan: Arc<dyn ExecutionPlan>,
    partition_bytes: u64,
    options: &ConfigOptions,
) -> (Arc<dyn ExecutionPlan>, ConfigOptions) {
    let before = options.execution.target_partitions;
    let mut options = options.clone();
    let wanted = partitions(&plan, before, partition_bytes).unwrap_or(before);
    if wanted <= before {
        return (plan, options);
    }
    let finer = Arc::clone(&plan).transform_up(|plan| dealt_into(plan, before, wanted)).data();
    let Some(finer) = finer.ok().filter(|finer| all_dealt_into(finer, wanted)) else {
        return (plan, options);
    };
    options.execution.target_partitions = wanted;
    // Scans stay as they are: each of their tasks makes the tables that its joins read anew.
    options.optimizer.repartition_file_scans = false;
    options.optimizer.enable_round_robin_repartition = false;
    (finer, options)
}

/// How many partitions the largest shuffle needs. All have as many, so that those of a join fit together.
fn partitions(plan: &Arc<dyn ExecutionPlan>, now: usize, partition_bytes: u64) -> Result<usize> {
    // No shuffle deals out more than all scans read.
    let enough = partition_bytes.saturating_mul(now as u64);
    if partition_bytes == 0 || bytes_read(plan)? <= enough {
        return Ok(now);
    }
    let mut most = 0;
    plan.apply(|plan| {
        if is_shuffle(plan, now) {
            most = most.max(dealt_bytes(plan)?.div_ceil(partition_bytes));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(most.min(PARTITIONS_MAX) as usize)
}

/// Whether rows are dealt out into as many partitions as there are by default.
fn is_shuffle(plan: &Arc<dyn ExecutionPlan>, partitions: usize) -> bool {
    let shuffle = plan.downcast_ref::<RepartitionExec>();
    shuffle.is_some_and(
        |shuffle| matches!(shuffle.partitioning(), Partitioning::Hash(_, count) if *count == partitions),
    )
}

/// What a shuffle deals out, in bytes: as its input says, but no more than what is read below it. Of joins and groups
/// nobody knows how many rows they give.
fn dealt_bytes(shuffle: &Arc<dyn ExecutionPlan>) -> Result<u64> {
    let read = bytes_read(shuffle)?;
    let known = StatisticsContext::new().compute(shuffle.as_ref(), &StatisticsArgs::new()).ok();
    let dealt = known.and_then(|known| known.total_byte_size.get_value().copied());
    Ok(dealt.map_or(read, |bytes| read.min(bytes as u64)))
}

/// By all scans of a plan.
fn bytes_read(plan: &Arc<dyn ExecutionPlan>) -> Result<u64> {
    let mut read = 0_u64;
    plan.apply(|plan| {
        read = read.saturating_add(scan_bytes(plan));
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(read)
}

fn dealt_into(
    plan: Arc<dyn ExecutionPlan>,
    before: usize,
    partitions: usize,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(shuffle) =
        plan.downcast_ref::<RepartitionExec>().filter(|_| is_shuffle(&plan, before))
    else {
        return Ok(Transformed::no(plan));
    };
    let Partitioning::Hash(keys, _) = shuffle.partitioning() else {
        return Ok(Transformed::no(plan));
    };
    let partitioning = Partitioning::Hash(keys.clone(), partitions);
    let finer = RepartitionExec::try_new(Arc::clone(shuffle.input()), partitioning)?;
    let finer = if shuffle.preserve_order() { finer.with_preserve_order() } else { finer };
    Ok(Transformed::yes(Arc::new(finer)))
}

/// Whether all that is dealt out by hash is in so many partitions: Ballista's planner would deal out anew what is in
/// fewer, within a stage.
fn all_dealt_into(plan: &Arc<dyn ExecutionPlan>, partitions: usize) -> bool {
    let differs = plan.exists(|plan| {
        let partitioning = plan.output_partitioning();
        Ok(matches!(partitioning, Partitioning::Hash(_, count) if *count > 1 && *count != partitions))
    });
    differs.is_ok_and(|differs| !differs)
}

#[cfg(test)]
mod tests {
    use datafusion::physical_expr::expressions::Column;
    use datafusion::prelude::{SessionConfig, SessionContext};
    use tempfile::TempDir;

    use super::*;

    const KEYS: u64 = 100_000;

    /// A session on two cores with a table of `KEYS` rows, `(key, word)`, of some 100 bytes each.
    async fn session(folder: &TempDir) -> SessionContext {
        let config =
            SessionConfig::new().with_target_partitions(2).with_repartition_file_min_size(1);
        let session = SessionContext::new_with_config(config);
        let at = folder.path().join("t.parquet").display().to_string();
        let rows = format!(
            "SELECT value AS key, concat(repeat('x', 90), value) AS word FROM range({KEYS})"
        );
        let threshold = "datafusion.optimizer.hash_join_single_partition_threshold";
        for statement in [
            format!("COPY ({rows}) TO '{at}' STORED AS PARQUET"),
            format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{at}'"),
            format!("SET {threshold} = 0"),
            format!("SET {threshold}_rows = 0"),
        ] {
            session.sql(&statement).await.unwrap().collect().await.unwrap();
        }
        session
    }

    /// Into how many partitions each shuffle of a query deals its rows out, and by how many Ballista's planner would.
    async fn counts(
        session: &SessionContext,
        query: &str,
        partition_bytes: u64,
    ) -> (Vec<usize>, usize) {
        let plan = session.sql(query).await.unwrap().create_physical_plan().await.unwrap();
        let options = session.copied_config().options().as_ref().clone();
        let (plan, options) = finer_shuffles(plan, partition_bytes, &options);
        let mut found = vec![];
        plan.apply(|plan| {
            if plan
                .downcast_ref::<RepartitionExec>()
                .is_some_and(|shuffle| matches!(shuffle.partitioning(), Partitioning::Hash(..)))
            {
                found.push(plan.output_partitioning().partition_count());
            }
            Ok(TreeNodeRecursion::Continue)
        })
        .unwrap();
        (found, options.execution.target_partitions)
    }

    #[tokio::test]
    async fn large_shuffles_have_partitions_of_a_size() {
        let folder = TempDir::new().unwrap();
        let session = session(&folder).await;
        let distinct = "SELECT DISTINCT key, word FROM t";
        let join = "SELECT count(a.word) FROM t AS a JOIN t AS b ON a.key = b.key";
        for (query, shuffles) in [(distinct, 1), (join, 2)] {
            assert_eq!(counts(&session, query, 1 << 30).await, (vec![2; shuffles], 2), "{query}");
            assert_eq!(counts(&session, query, 0).await, (vec![2; shuffles], 2), "{query}");
            // Statistics of the file may have the words' bytes or not.
            let (found, of_options) = counts(&session, query, 500_000).await;
            assert!(found.iter().all(|count| *count == of_options), "{query}: {found:?}");
            assert!((10..=50).contains(&of_options), "{query}: {of_options} partitions");
        }
        let (found, _) = counts(&session, distinct, 1).await;
        assert_eq!(found, [PARTITIONS_MAX as usize]);
        assert_eq!(counts(&session, "SELECT max(word) FROM t", 1).await, (vec![], 2));
    }

    #[tokio::test]
    async fn another_number_of_partitions_was_asked_for_and_stays() {
        let folder = TempDir::new().unwrap();
        let session = session(&folder).await;
        let table = session.table("t").await.unwrap();
        let scan = table.create_physical_plan().await.unwrap();
        let by_key = Partitioning::Hash(vec![Arc::new(Column::new("key", 0))], 5);
        let dealt = Arc::new(RepartitionExec::try_new(scan, by_key).unwrap());
        let options = session.copied_config().options().as_ref().clone();
        let (plan, _) = finer_shuffles(dealt, 1000, &options);
        assert_eq!(plan.output_partitioning().partition_count(), 5);
    }
}
