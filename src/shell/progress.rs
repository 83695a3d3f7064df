//! What a running query has done so far, read from the metrics of its plan.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use datafusion::common::stats::Precision;
use datafusion::physical_plan::statistics::StatisticsContext;
use datafusion::physical_plan::{ExecutionPlan, StatisticsArgs};
use forebay_engine::{CommitExec, InferenceExec, RunReport};
use forebay_scheduler::client::cluster_exec::ClusterExec;
use forebay_scheduler::protocol::messages::Progress as ClusterProgress;
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;

/// Queries faster than this show nothing.
const SHOWN_AFTER: Duration = Duration::from_millis(500);
/// Queries with inference that take longer than this end with a summary.
const SUMMED_UP_AFTER: Duration = Duration::from_secs(2);
/// An estimate from fewer rows than this share of all would jump about.
const ESTIMATED_FROM: f64 = 0.01;

/// Steps of the bar.
const BAR_LENGTH: u64 = 1000;

/// Whoever sees no progress is told after this time what a query waits for.
const WAIT_SAID_AFTER: Duration = Duration::from_secs(3);

/// Who reads standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    Terminal,
    Log,
    Nobody,
}

/// A query that is looked at while it runs.
enum Watched {
    /// In this process, or on a cluster.
    Plan(Arc<dyn ExecutionPlan>),
    /// On a server, which says how much of it is done.
    Server(watch::Receiver<Option<f64>>),
}

/// Watches a query while it runs.
pub(super) struct Progress {
    watched: Watched,
    started: Instant,
    /// Rows that will have been inferred, or read if nothing is inferred; a guess.
    rows_expected: Option<usize>,
    bar: Option<ProgressBar>,
    reader: Reader,
    has_said_wait: bool,
}

impl Progress {
    pub(super) fn of_plan(plan: Arc<dyn ExecutionPlan>, reader: Reader) -> Self {
        let is_seen = reader == Reader::Terminal;
        let rows_expected = is_seen.then(|| rows_expected(plan.as_ref())).flatten();
        Self::new(Watched::Plan(plan), rows_expected, reader)
    }

    pub(super) fn of_server(done: watch::Receiver<Option<f64>>, reader: Reader) -> Self {
        Self::new(Watched::Server(done), None, reader)
    }

    fn new(watched: Watched, rows_expected: Option<usize>, reader: Reader) -> Self {
        let started = Instant::now();
        Self { watched, started, rows_expected, bar: None, reader, has_said_wait: false }
    }

    /// Tells the reader how far the query is, if it has run for a while.
    pub(super) fn show(&mut self) {
        let elapsed = self.started.elapsed();
        match self.reader {
            Reader::Terminal if elapsed >= SHOWN_AFTER => self.show_bar(elapsed),
            Reader::Log if elapsed >= WAIT_SAID_AFTER && !self.has_said_wait => self.say_wait(),
            _ => {}
        }
    }

    /// Says once what a query on a cluster waits for, if it waits.
    fn say_wait(&mut self) {
        let Watched::Plan(plan) = &self.watched else { return };
        let waits_for = reached(plan.as_ref()).map(|reached| reached.waits_for);
        if let Some(waits_for) = waits_for.filter(|waits_for| !waits_for.is_empty()) {
            eprintln!("waiting: {waits_for}");
            self.has_said_wait = true;
        }
    }

    /// Draws the bar anew.
    fn show_bar(&mut self, elapsed: Duration) {
        let plan = match &self.watched {
            Watched::Plan(plan) => Arc::clone(plan),
            Watched::Server(done) => {
                let share = done.borrow().filter(|share| *share < 1.0);
                return self.draw(share, format!("{} s", elapsed.as_secs()));
            }
        };
        if let Some(reached) = reached(plan.as_ref()) {
            return self.draw(None, remote_line(&reached, elapsed));
        }
        let state = State::of(plan.as_ref(), elapsed);
        let share = share(state.rows_done(), self.rows_expected);
        self.draw(share, state.line(self.rows_expected));
    }

    /// `[###   ] 40% 12 s`, or `⠋ 12 s` while nobody knows how much is left.
    fn draw(&mut self, share: Option<f64>, message: String) {
        if self.bar.as_ref().is_some_and(|bar| bar.length().is_some() != share.is_some()) {
            self.hide();
        }
        let bar = self.bar.get_or_insert_with(|| new_bar(share.is_some()));
        bar.set_position((share.unwrap_or(0.0) * BAR_LENGTH as f64) as u64);
        bar.set_message(message);
        bar.tick();
    }

    /// Takes the bar off the terminal, until it is shown again.
    pub(super) fn hide(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// What a long query has written or inferred, and its bottleneck.
    pub(super) fn summary(&self) -> Option<String> {
        let elapsed = self.started.elapsed();
        let Watched::Plan(plan) = &self.watched else { return None };
        let written = written(plan.as_ref()).filter(|_| elapsed >= SUMMED_UP_AFTER);
        let lines: Vec<_> =
            written.into_iter().chain(inference_summary(plan.as_ref(), elapsed)).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.hide();
    }
}

/// What a long query with inference has done, and its bottleneck.
fn inference_summary(plan: &dyn ExecutionPlan, elapsed: Duration) -> Option<String> {
    if let Some(reached) = reached(plan) {
        let line = || remote_summary(&reached, elapsed);
        return reached.rows_inferred.filter(|_| elapsed >= SUMMED_UP_AFTER).map(|_| line());
    }
    let state = State::of(plan, elapsed);
    let inference = state.inference().filter(|_| elapsed >= SUMMED_UP_AFTER)?;
    let mut summary = format!("{inference} in {:.1} s", elapsed.as_secs_f64());
    for inference in &state.report.inferences {
        for (rows, what) in [(inference.rows_shared, "shared"), (inference.rows_failed, "failed")] {
            if rows > 0 {
                let rows = HumanCount(rows as u64);
                summary += &format!("; {rows} rows {what} (model '{}')", inference.model);
            }
        }
        if let Some(device) = inference.device_text() {
            summary += &format!("; {device} (model '{}')", inference.model);
        }
    }
    if let Some(verdict) = state.report.verdict() {
        summary += &format!("\n{verdict}");
    }
    Some(summary)
}

/// `1,000 rows written, 4 files, 12.3 MiB`, if the plan writes files that are there.
fn written(plan: &dyn ExecutionPlan) -> Option<String> {
    let metrics = plan.downcast_ref::<CommitExec>()?.metrics()?;
    let sum = |name| Some(metrics.sum_by_name(name)?.as_usize() as u64);
    let (rows, files) = (HumanCount(sum("rows_written")?), HumanCount(sum("files")?));
    Some(format!("{rows} rows written, {files} files, {}", ByteSize(sum("bytes_written")?)))
}

/// What a query has done by now.
struct State {
    report: RunReport,
    elapsed: Duration,
}

impl State {
    fn of(plan: &dyn ExecutionPlan, elapsed: Duration) -> Self {
        Self { report: RunReport::of(plan), elapsed }
    }

    fn rows_done(&self) -> usize {
        // Rows of a chain of models are counted where they leave the last one.
        self.report.inferences.first().map_or(self.report.rows_read, |inference| inference.rows)
    }

    /// `8,192 rows read · 4,096 rows inferred, 512/s, model busy 93% · 12 s · 8 s left`
    fn line(&self, rows_expected: Option<usize>) -> String {
        let mut line = format!("{} rows read", HumanCount(self.report.rows_read as u64));
        if let Some(inference) = self.inference() {
            line += &format!(" · {inference}");
        }
        line += &format!(" · {} s", self.elapsed.as_secs());
        if let Some(left) = self.left(rows_expected) {
            line += &format!(" · about {} left", HumanDuration(left));
        }
        line
    }

    /// `4,096 rows inferred, 512/s, model busy 93%`
    fn inference(&self) -> Option<String> {
        let inferences = &self.report.inferences;
        let rows = inferences.first()?.rows;
        let seconds = self.elapsed.as_secs_f64();
        let busy: Duration = inferences.iter().map(|inference| inference.busy).sum();
        let replicas: usize = inferences.iter().map(|inference| inference.replicas).sum();
        let busy = busy.as_secs_f64() / (seconds * replicas.max(1) as f64);
        Some(format!(
            "{} rows inferred, {:.0}/s, model busy {:.0}%",
            HumanCount(rows as u64),
            rows as f64 / seconds,
            100.0 * busy.min(1.0)
        ))
    }

    fn left(&self, rows_expected: Option<usize>) -> Option<Duration> {
        let done = self.rows_done() as f64 / rows_expected? as f64;
        let seconds = self.elapsed.as_secs_f64();
        (ESTIMATED_FROM..1.0)
            .contains(&done)
            .then(|| Duration::from_secs_f64(seconds * (1.0 - done) / done))
    }
}

/// How far a query is that runs on a cluster, as far as the scheduler has said.
fn reached(plan: &dyn ExecutionPlan) -> Option<ClusterProgress> {
    let below = || plan.children().into_iter().find_map(|child| reached(child.as_ref()));
    match plan.downcast_ref::<ClusterExec>() {
        Some(exec) => Some(exec.progress().unwrap_or_default()),
        None => below(),
    }
}

/// `1 of 3 stages done · 14 of 40 tasks done, 3 running · 4,096 rows inferred, 512/s · 12 s`
fn remote_line(reached: &ClusterProgress, elapsed: Duration) -> String {
    if reached.stages == 0 {
        let waits_for = match reached.waits_for.as_str() {
            "" => "for the cluster",
            waits_for => &format!("· {waits_for}"),
        };
        return format!("waiting {waits_for} · {} s", elapsed.as_secs());
    }
    let ClusterProgress { stages, stages_done, units, units_done, tasks_running, .. } = reached;
    let mut line = format!(
        "{stages_done} of {stages} stages done · {units_done} of {units} tasks done, \
         {tasks_running} running"
    );
    if reached.repeated > 0 {
        line += &format!(", {} run again", reached.repeated);
    }
    if let Some(rows) = reached.rows_inferred {
        line += &format!(" · {}", inferred(rows, elapsed));
    }
    if !reached.waits_for.is_empty() {
        line += &format!(" · {}", reached.waits_for);
    }
    line + &format!(" · {} s", elapsed.as_secs())
}

/// `4,096 rows inferred, 512/s in 8.0 s; 40 tasks in 3 stages`
fn remote_summary(reached: &ClusterProgress, elapsed: Duration) -> String {
    let mut line = inferred(reached.rows_inferred.unwrap_or(0), elapsed);
    line += &format!(" in {:.1} s", elapsed.as_secs_f64());
    line += &format!("; {} tasks in {} stages", reached.units_done, reached.stages);
    if reached.repeated > 0 {
        line += &format!(", {} run again", reached.repeated);
    }
    line
}

fn inferred(rows: u64, elapsed: Duration) -> String {
    let rate = rows as f64 / elapsed.as_secs_f64();
    format!("{} rows inferred, {rate:.0}/s", HumanCount(rows))
}

/// Rows that reach the topmost models, or are read if there are none, where sources know.
fn rows_expected(plan: &dyn ExecutionPlan) -> Option<usize> {
    let is_model = plan.is::<InferenceExec>();
    if is_model || plan.children().is_empty() {
        let statistics = StatisticsContext::new().compute(plan, &StatisticsArgs::new());
        let rows = statistics.ok()?.num_rows;
        return match rows {
            Precision::Exact(rows) | Precision::Inexact(rows) if rows > 0 => Some(rows),
            _ if is_model => rows_expected(plan.children().first()?.as_ref()),
            _ => None,
        };
    }
    plan.children().into_iter().map(|child| rows_expected(child.as_ref())).sum()
}

/// The share of a query that is done. When all rows are read, a sort may still have most of its work
/// to do, and nobody knows how much.
fn share(rows_done: usize, rows_expected: Option<usize>) -> Option<f64> {
    rows_expected.filter(|expected| rows_done < *expected).map(|all| rows_done as f64 / all as f64)
}

fn new_bar(has_length: bool) -> ProgressBar {
    let target = ProgressDrawTarget::stderr();
    let (bar, template) = if has_length {
        (ProgressBar::new(BAR_LENGTH), "{bar:20} {percent}% {wide_msg}")
    } else {
        (ProgressBar::no_length(), "{spinner} {wide_msg}")
    };
    bar.set_draw_target(target);
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_has_read_all_rows_is_not_yet_done() {
        assert_eq!(share(50, Some(200)), Some(0.25));
        assert_eq!(share(200, Some(200)), None);
        // It was a guess.
        assert_eq!(share(300, Some(200)), None);
        assert_eq!(share(50, None), None);
    }

    #[test]
    fn a_query_on_a_cluster_says_how_far_it_is() {
        let mut reached = ClusterProgress::default();
        let elapsed = Duration::from_secs(12);
        assert_eq!(remote_line(&reached, elapsed), "waiting for the cluster · 12 s");
        (reached.stages, reached.stages_done, reached.units, reached.units_done) = (3, 1, 40, 14);
        (reached.tasks_running, reached.rows_inferred) = (3, Some(6144));
        let line = "1 of 3 stages done · 14 of 40 tasks done, 3 running";
        let inferred = "6,144 rows inferred, 512/s";
        assert_eq!(remote_line(&reached, elapsed), format!("{line} · {inferred} · 12 s"));
        (reached.repeated, reached.rows_inferred) = (2, None);
        assert_eq!(remote_line(&reached, elapsed), format!("{line}, 2 run again · 12 s"));
    }
}
