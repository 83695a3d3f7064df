//! What was measured of a job: per stage its tasks, its time and its operators' metrics, and which
//! stage the others waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use forebay_engine::{InferenceExec, InferenceReport, RunReport, StreamingExchangeExec};

use crate::coordinator::job::RunningJob;
use crate::coordinator::stage_metrics::StageMetrics;
use crate::graph::{Millis, StageId, StageRow, TaskState};
use crate::protocol::messages::Analysis;
use crate::tables::rows::counted;

/// What was measured of a job until now.
pub(crate) fn of(job: &RunningJob, now: Millis) -> Analysis {
    let stages: Vec<StageTimes<'_>> =
        job.graph.stage_rows().map(|row| StageTimes::of(job, row, now)).collect();
    let began = stages.iter().filter_map(|stage| stage.row.started).min().unwrap_or(now);
    let ended = job.graph.ended().unwrap_or(now);
    let texts: Vec<String> =
        stages.iter().map(|stage| stage.heading(job, &stages, began) + &stage.plan(job)).collect();
    let verdict = verdict(job, &stages, ended.since(began));
    Analysis { stages: texts.join("\n"), verdict: verdict.unwrap_or_default() }
}

/// A stage, and when its tasks ran.
struct StageTimes<'a> {
    row: StageRow<'a>,
    ended: Millis,
    /// Sum over its tasks.
    busy_ms: u64,
    tasks: BTreeMap<&'static str, usize>,
    workers: BTreeSet<String>,
}

impl<'a> StageTimes<'a> {
    fn of(job: &'a RunningJob, row: StageRow<'a>, now: Millis) -> Self {
        let (mut busy_ms, mut ended) = (0, Millis(0));
        let (mut counts, mut workers) = (BTreeMap::new(), BTreeSet::new());
        for task in job.graph.task_rows().filter(|task| task.id.stage == row.id) {
            let end = task.ended.unwrap_or(now);
            busy_ms += end.since(task.started);
            ended = ended.max(end);
            if *task.state != TaskState::Finished {
                *counts.entry(crate::tables::rows::task_state(&task)).or_default() += 1;
            }
            workers.insert(task.worker.as_str().to_owned());
        }
        Self { row, ended, busy_ms, tasks: counts, workers }
    }

    fn span(&self) -> Option<(Millis, Millis)> {
        Some((self.row.started?, self.ended))
    }

    /// For how long both ran.
    fn together_ms(&self, other: &Self) -> u64 {
        match (self.span(), other.span()) {
            (Some((a, b)), Some((c, d))) => b.min(d).since(a.max(c)),
            _ => 0,
        }
    }

    /// `stage 1: Inference(m) < …; 4 tasks on 2 workers; 0.1 s to 2.3 s, 1.9 s of it while stage 0
    /// ran; 4.1 s in tasks; 100 rows, 12.3 KiB`
    fn heading(&self, job: &RunningJob, all: &[Self], began: Millis) -> String {
        let row = &self.row;
        let mut parts = vec![format!(
            "{} on {}",
            counted(row.attempts, "task"),
            counted(self.workers.len(), "worker")
        )];
        for (state, tasks) in &self.tasks {
            parts.push(format!("{tasks} {state}"));
        }
        let again = job.graph.recomputed().iter().filter(|unit| unit.unit.stage == row.id).count();
        if again > 0 {
            parts.push(format!("{again} run again after a loss"));
        }
        if let Some((from, to)) = self.span() {
            let mut text =
                format!("{} to {}", seconds(from.since(began)), seconds(to.since(began)));
            let producers: BTreeSet<StageId> =
                job.edges().iter().filter(|edge| edge.to == row.id).map(|edge| edge.from).collect();
            for producer in all.iter().filter(|stage| producers.contains(&stage.row.id)) {
                let together = self.together_ms(producer);
                if together > 0 {
                    text += &format!(
                        ", {} of it while stage {} ran",
                        seconds(together),
                        producer.row.id
                    );
                }
            }
            parts.push(text);
        }
        parts.push(format!("{} in tasks", seconds(self.busy_ms)));
        parts.push(format!("{} rows, {} bytes written", row.rows, row.bytes));
        format!("stage {}: {}; {}\n", row.id, row.name, parts.join("; "))
    }

    fn plan(&self, job: &RunningJob) -> String {
        let Some(plan) = job.plan(self.row.id) else { return String::new() };
        let none = StageMetrics::default();
        let measured = job.measured.get(&self.row.id).unwrap_or(&none);
        let mut text = String::new();
        Lines { measured, place: 0, text: &mut text }.add(plan, 1);
        text
    }
}

/// A stage's plan as text, with what each operator measured.
struct Lines<'a> {
    measured: &'a StageMetrics,
    /// The next operator's place in the plan.
    place: usize,
    text: &'a mut String,
}

impl Lines<'_> {
    fn add(&mut self, plan: &Arc<dyn ExecutionPlan>, depth: usize) {
        let set = self.measured.of(self.place).sorted_for_display().timestamps_removed();
        self.place += 1;
        let metrics = match set.iter().next() {
            Some(_) => format!(", metrics=[{set}]"),
            None => String::new(),
        };
        let operator = match RunningJob::dealt_read_by(plan) {
            Some(stage) => format!("BlockReaderExec: stage={stage}, by hash"),
            None => displayable(plan.as_ref()).one_line().to_string(),
        };
        *self.text += &format!("{}{}{metrics}\n", "  ".repeat(depth), operator.trim_end());
        plan.children().into_iter().for_each(|child| self.add(child, depth + 1));
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}

/// The bottleneck, and what to do about it.
fn verdict(job: &RunningJob, stages: &[StageTimes<'_>], job_ms: u64) -> Option<String> {
    let mut found: Vec<(InferenceReport, &StageTimes<'_>)> = vec![];
    for stage in stages {
        if let (Some(plan), Some(measured)) =
            (job.plan(stage.row.id), job.measured.get(&stage.row.id))
        {
            let producer = heaviest_producer(job, stages, stage.row.id);
            let mut reports = vec![];
            inferences(plan, measured, &mut 0, &producer, &mut reports);
            found.extend(reports.into_iter().map(|report| (report, stage)));
        }
    }
    let busiest = found.into_iter().max_by_key(|(report, _)| report.busy);
    if let Some((report, stage)) = busiest {
        let text = RunReport { inferences: vec![report], rows_read: 0 }.verdict()?;
        let span = stage.span().map_or(0, |(from, to)| to.since(from));
        return Some(format!(
            "{text}; stage {} ran for {} of the {} that the job took",
            stage.row.id,
            seconds(span),
            seconds(job_ms)
        ));
    }
    let heaviest = stages.iter().max_by_key(|stage| stage.busy_ms)?;
    let all: u64 = stages.iter().map(|stage| stage.busy_ms).sum();
    Some(format!(
        "stage {} took {} of the {} that all tasks took together",
        heaviest.row.id,
        seconds(heaviest.busy_ms),
        seconds(all)
    ))
}

/// Of the stages that a stage reads, the one that computed longest.
fn heaviest_producer(job: &RunningJob, stages: &[StageTimes<'_>], of: StageId) -> Option<String> {
    let from: BTreeSet<StageId> =
        job.edges().iter().filter(|edge| edge.to == of).map(|edge| edge.from).collect();
    let producers = stages.iter().filter(|stage| from.contains(&stage.row.id));
    let heaviest = producers.max_by_key(|stage| stage.busy_ms)?;
    Some(format!("stage {} ({})", heaviest.row.id, heaviest.row.name))
}

fn inferences(
    plan: &Arc<dyn ExecutionPlan>,
    measured: &StageMetrics,
    place: &mut usize,
    producer: &Option<String>,
    found: &mut Vec<InferenceReport>,
) {
    if let Some(inference) = plan.downcast_ref::<InferenceExec>() {
        let own = measured.of(*place);
        let below = if inference.input().is::<StreamingExchangeExec>() {
            measured.of(*place + 1)
        } else {
            MetricsSet::new()
        };
        found.push(InferenceReport::measured(inference, &own, &below, producer.clone()));
    }
    *place += 1;
    let children = plan.children().into_iter();
    children.for_each(|child| inferences(child, measured, place, producer, found));
}
