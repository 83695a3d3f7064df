//! What the operators of a stage have measured.

use std::mem::discriminant;
use std::sync::Arc;

use ballista_core::serde::protobuf::OperatorMetricsSet;
use datafusion::physical_plan::metrics::{Metric, MetricValue, MetricsSet};

/// What the operators of a stage have measured, in the order of its plan; all tasks together.
#[derive(Debug, Default)]
pub(crate) struct StageMetrics(Vec<Vec<MetricValue>>);

impl StageMetrics {
    /// Adds what a task has measured.
    pub(crate) fn add(&mut self, task: Vec<OperatorMetricsSet>) {
        if self.0.len() < task.len() {
            self.0.resize_with(task.len(), Vec::new);
        }
        for (found, operator) in self.0.iter_mut().zip(task) {
            let Ok(operator): Result<MetricsSet, _> = operator.try_into() else { continue };
            operator.iter().for_each(|metric| merge(found, metric.value()));
        }
    }

    /// Of the operator at this place in the plan.
    pub(super) fn of(&self, operator: usize) -> MetricsSet {
        let mut set = MetricsSet::new();
        let values = self.0.get(operator).into_iter().flatten();
        values.for_each(|value| set.push(Arc::new(Metric::new(value.clone(), None))));
        set
    }
}

/// Sums, but for peaks.
fn merge(found: &mut Vec<MetricValue>, value: &MetricValue) {
    let same = found.iter_mut().find(|old| {
        old.name() == value.name() && discriminant::<MetricValue>(old) == discriminant(value)
    });
    match same {
        None => found.push(value.clone()),
        Some(MetricValue::Gauge { name, gauge }) if name.ends_with("_peak") => {
            gauge.set_max(value.as_usize());
        }
        Some(old) => old.aggregate(value),
    }
}
