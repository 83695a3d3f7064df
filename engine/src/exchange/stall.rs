//! Tells a plan that works from one that hangs, by the metrics of its operators.

use std::time::{Duration, Instant};

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricValue;

/// How often the metrics are looked at, in each limit.
const LOOKS: u32 = 10;

/// Returns when no operator of the plan has counted or timed anything for as long as `limit`: the
/// name of the deepest one that has not ended. Never without a limit.
pub(super) async fn stalled(plan: &dyn ExecutionPlan, limit: Option<Duration>) -> String {
    let Some(limit) = limit else { return std::future::pending().await };
    // Not looked at before the first sleep: most waits are shorter, and looking costs more.
    let mut last = None;
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(limit / LOOKS).await;
        let now = activity(plan);
        if last.is_none_or(|last| last != now) {
            (last, since) = (Some(now), Instant::now());
        } else if since.elapsed() >= limit {
            return waited_for(plan).name().to_owned();
        }
    }
}

/// A number that changes whenever an operator counts or times something.
fn activity(plan: &dyn ExecutionPlan) -> u64 {
    let metrics = plan.metrics().unwrap_or_default();
    let own = metrics.iter().map(|metric| metric.value().as_usize() as u64);
    let children = plan.children().into_iter().map(|child| activity(child.as_ref()));
    own.chain(children).fold(0, |sum, value| sum.wrapping_mul(31).wrapping_add(value))
}

/// The deepest operator that has not ended.
fn waited_for(plan: &dyn ExecutionPlan) -> &dyn ExecutionPlan {
    let children = plan.children().into_iter().map(AsRef::as_ref);
    match children.into_iter().find(|child| !has_ended(*child)) {
        Some(child) => waited_for(child),
        None => plan,
    }
}

fn has_ended(plan: &dyn ExecutionPlan) -> bool {
    let metrics = plan.metrics().unwrap_or_default();
    let mut ends = metrics.iter().filter_map(|metric| match metric.value() {
        MetricValue::EndTimestamp(end) => Some(end.value().is_some()),
        _ => None,
    });
    // One per stream, without a value until the stream has ended.
    ends.next() == Some(true) && ends.all(|has_ended| has_ended)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::UnboundedMemoryPool;
    use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
    use futures::StreamExt;

    use super::*;
    use crate::testing::{context, numbers, table};

    #[tokio::test]
    async fn rows_are_activity_and_the_deepest_running_operator_is_named() {
        let batches: Vec<_> = (0..3).map(|at| numbers(at..at + 1, |_| false)).collect();
        let source = table(&[batches.clone(), batches.clone()], batches[0].schema());
        let filter = datafusion::physical_expr::expressions::lit(true);
        let filter = datafusion::physical_plan::filter::FilterExec::try_new(filter, source);
        let plan: Arc<dyn ExecutionPlan> =
            Arc::new(CoalescePartitionsExec::new(Arc::new(filter.unwrap())));
        let mut stream = plan.execute(0, context(1, Arc::new(UnboundedMemoryPool::default())));
        let stream = stream.as_mut().unwrap();
        let before = activity(plan.as_ref());
        assert_eq!(waited_for(plan.as_ref()).name(), "DataSourceExec");
        stream.next().await.unwrap().unwrap();
        assert_ne!(activity(plan.as_ref()), before);
        while stream.next().await.is_some() {}
        assert_eq!(waited_for(plan.as_ref()).name(), "CoalescePartitionsExec");
    }

    #[tokio::test]
    async fn an_operator_has_ended_when_its_stream_has() {
        let batches: Vec<_> = (0..3).map(|at| numbers(at..at + 1, |_| false)).collect();
        let source = table(std::slice::from_ref(&batches), batches[0].schema());
        let filter = datafusion::physical_expr::expressions::lit(true);
        let plan = datafusion::physical_plan::filter::FilterExec::try_new(filter, source).unwrap();
        assert!(!has_ended(&plan));
        let pool = Arc::new(UnboundedMemoryPool::default());
        let mut stream = plan.execute(0, context(1, pool)).unwrap();
        assert!(!has_ended(&plan), "begun");
        while stream.next().await.is_some() {}
        drop(stream);
        assert!(has_ended(&plan));
    }

    #[tokio::test]
    async fn a_plan_that_does_nothing_is_named_after_the_limit() {
        let batch = numbers(0..1, |_| false);
        let plan = table(&[vec![batch.clone()]], batch.schema());
        let limit = Some(Duration::from_millis(20));
        assert_eq!(stalled(plan.as_ref(), limit).await, "DataSourceExec");
    }
}
