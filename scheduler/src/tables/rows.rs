//! The columns of each table. A table without rows has its schema.

use std::time::SystemTime;

use arrow::array::RecordBatch;
use datafusion::common::Result;

use super::columns::Columns;
use crate::graph::{
    BlockRow, BlockState, EdgeKind, EdgeSpec, Granularity, Millis, Recomputed, StageRow,
    StageState, TaskRow, TaskState,
};
use crate::placement::WorkerState;
use crate::protocol::messages::Worker;
use crate::resources::{Need, WHOLE};

/// Milliseconds since 1970 at which a graph's time began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epoch(pub i64);

impl Epoch {
    /// A graph's time begins now.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(0))
    }

    /// A graph's time in milliseconds since 1970.
    pub fn at(self, time: Millis) -> i64 {
        self.0.saturating_add_unsigned(time.0)
    }
}

/// A job, planned or not, until 1,000 others have ended after it.
#[derive(Clone, Debug, Default)]
pub struct JobRow {
    /// Its id, unique on its scheduler.
    pub id: String,
    /// What its client calls it: the statement.
    pub name: String,
    /// The id of the session that planned it.
    pub session: String,
    /// The user of a Flight SQL client whose it is.
    pub owner: String,
    /// `queued`, `running`, `finished`, `failed` or `canceled`.
    pub state: &'static str,
    /// When the scheduler had it, in milliseconds since 1970.
    pub queued: Option<i64>,
    /// When its first task began, in milliseconds since 1970.
    pub started: Option<i64>,
    /// When it ended, in milliseconds since 1970.
    pub ended: Option<i64>,
    /// Its stages, without the client's.
    pub stages: u64,
    /// Those of which nothing is left to do.
    pub stages_done: u64,
    /// Units that are done.
    pub units_done: u64,
    /// Tasks that run now.
    pub tasks_running: u64,
    /// Tasks that have not ended well.
    pub tasks_failed: u64,
    /// Units that were done and had to run again.
    pub recomputed: u64,
    /// Rows of its result so far.
    pub rows: u64,
    /// Bytes of its result so far.
    pub bytes: u64,
    /// What a stage waits for that has work and no worker.
    pub waits_for: String,
    /// Why it failed; empty if it did not.
    pub error: String,
    /// Whether a server runs it detached, and knows of it.
    pub detached: bool,
}

/// Characters of a job's name.
const NAME_CHARS_MAX: usize = 200;

/// What a job is called: this text, or its beginning if it is long.
pub fn job_name(text: &str) -> String {
    match text.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.trim_end().to_owned(),
    }
}

/// `forebay.jobs`
///
/// # Errors
/// None that a user could cause; so for all of these.
pub fn jobs(rows: &[JobRow]) -> Result<RecordBatch> {
    Columns::of(rows)
        .text("job_id", |job| &job.id)
        .text("name", |job| &job.name)
        .text("session_id", |job| &job.session)
        .text("owner", |job| &job.owner)
        .text("state", |job| job.state)
        .time("queued", |job| job.queued)
        .time("started", |job| job.started)
        .time("ended", |job| job.ended)
        .count("stages", |job| job.stages)
        .count("stages_done", |job| job.stages_done)
        .count("units_done", |job| job.units_done)
        .count("tasks_running", |job| job.tasks_running)
        .count("tasks_failed", |job| job.tasks_failed)
        .count("recomputed", |job| job.recomputed)
        .count("rows", |job| job.rows)
        .count("bytes", |job| job.bytes)
        .text("waits_for", |job| &job.waits_for)
        .text("error", |job| &job.error)
        .flag("detached", |job| job.detached)
        .build()
}

/// A stage, and what is not in the graph's row of it.
#[derive(Debug)]
pub struct Stage<'a> {
    /// What its graph knows; the fields beside it are not the graph's.
    pub row: StageRow<'a>,
    /// What one of its tasks takes.
    pub need: &'a Need,
    /// Whether a unit that runs again gives the same blocks.
    pub replayable: bool,
    /// What it reads, in words.
    pub reads: String,
    /// When its graph's time began.
    pub epoch: Epoch,
}

/// `forebay.stages`, those of one job.
pub fn stages(job: &str, rows: &[Stage<'_>]) -> Result<RecordBatch> {
    let accelerator = |stage: &Stage<'_>| stage.need.accelerator.clone();
    Columns::of(rows)
        .text("job_id", |_| job)
        .count("stage_id", |stage| u64::from(stage.row.id.0))
        .text("name", |stage| stage.row.name)
        .text("state", |stage| stage_state(stage.row.state))
        .text("reads", |stage| &stage.reads)
        .count("units", |stage| stage.row.units as u64)
        .count("units_done", |stage| stage.row.units_done as u64)
        .count("running", |stage| stage.row.running as u64)
        .count("attempts", |stage| stage.row.attempts as u64)
        .count("failures", |stage| u64::from(stage.row.failures))
        .flag("replayable", |stage| stage.replayable)
        .milli("cpus", |stage| u64::from(stage.need.cpus_milli))
        .milli("accelerators", |stage| accelerator(stage).map_or(0, |need| u64::from(need.milli())))
        .text("accelerator", |stage| {
            accelerator(stage).and_then(|need| need.kind().map(str::to_owned)).unwrap_or_default()
        })
        .count("memory", |stage| stage.need.memory())
        .time("started", |stage| stage.row.started.map(|time| stage.epoch.at(time)))
        .time("ended", |stage| stage.row.ended.map(|time| stage.epoch.at(time)))
        .count("rows", |stage| stage.row.rows)
        .count("bytes", |stage| stage.row.bytes)
        .build()
}

/// `forebay.tasks`, those of one job.
pub fn tasks(job: &str, rows: &[(TaskRow<'_>, Epoch)]) -> Result<RecordBatch> {
    Columns::of(rows)
        .text("job_id", |_| job)
        .count("stage_id", |(task, _)| u64::from(task.id.stage.0))
        .count("task_id", |(task, _)| u64::from(task.id.index))
        .count("unit", |(task, _)| u64::from(task.unit.index))
        .count("attempt", |(task, _)| u64::from(task.attempt))
        .text("state", |(task, _)| task_state(task))
        .text("worker_id", |(task, _)| task.worker.as_str())
        .time("started", |(task, epoch)| Some(epoch.at(task.started)))
        .time("ended", |(task, epoch)| task.ended.map(|time| epoch.at(time)))
        .count("rows", |(task, _)| task.rows)
        .count("bytes", |(task, _)| task.bytes)
        .text("reason", |(task, _)| task.reason)
        .build()
}

/// `forebay.blocks`, those of one job.
pub fn blocks(job: &str, rows: &[(BlockRow<'_>, Epoch)]) -> Result<RecordBatch> {
    Columns::of(rows)
        .text("job_id", |_| job)
        .count("stage_id", |(block, _)| u64::from(block.id.unit.stage.0))
        .count("unit", |(block, _)| u64::from(block.id.unit.index))
        .count("seq", |(block, _)| u64::from(block.id.seq))
        .text("state", |(block, _)| block_state(block.state))
        .text("worker_id", |(block, _)| block.worker.as_str())
        .count("task_id", |(block, _)| u64::from(block.writer.index))
        .count("rows", |(block, _)| block.rows)
        .count("bytes", |(block, _)| block.bytes)
        .count("checksum", |(block, _)| block.checksum)
        .time("sealed", |(block, epoch)| Some(epoch.at(block.sealed)))
        .count("losses", |(block, _)| u64::from(block.losses))
        .build()
}

/// `forebay.recomputed`, those of one job.
pub fn recomputed(job: &str, rows: &[(&Recomputed, Epoch)]) -> Result<RecordBatch> {
    Columns::of(rows)
        .text("job_id", |_| job)
        .count("stage_id", |(found, _)| u64::from(found.unit.stage.0))
        .count("unit", |(found, _)| u64::from(found.unit.index))
        .time("decided", |(found, epoch)| Some(epoch.at(found.at)))
        .text("reason", |(found, _)| found.why.to_string())
        .build()
}

/// A worker, and what is taken of it.
#[derive(Debug)]
pub struct WorkerRow {
    /// The worker, as it describes itself.
    pub worker: Worker,
    /// What it has, and what tasks hold of it.
    pub state: WorkerState,
    /// Tasks that hold something of it.
    pub tasks: u64,
    /// Bytes of the blocks that it holds for jobs that run.
    pub block_bytes: u64,
    /// Of these, bytes that are yet to be read, with what the tasks that run there are expected to add.
    pub work_bytes: u64,
}

/// `forebay.workers`
pub fn workers(rows: &[WorkerRow]) -> Result<RecordBatch> {
    let used = |row: &WorkerRow| row.state.devices.iter().map(|d| u64::from(d.used_milli)).sum();
    let devices = |row: &WorkerRow| row.state.devices.len() as u64;
    Columns::of(rows)
        .text("worker_id", |row| &row.worker.id)
        .text("address", |row| &row.worker.address)
        .text("state", |row| if row.worker.draining { "draining" } else { "active" })
        .count("tasks", |row| row.tasks)
        .count("cpus", |row| u64::from(row.worker.inventory.cpus))
        .milli("cpus_used", |row| u64::from(row.state.used_cpus_milli))
        .count("accelerators", devices)
        .milli("accelerators_used", used)
        .milli("accelerators_busy", |row| u64::from(row.worker.busy_milli))
        .text("devices", |row| {
            let all = row.worker.inventory.accelerators.iter();
            all.map(|found| found.name.clone()).collect::<Vec<_>>().join(", ")
        })
        .count("memory", |row| row.worker.inventory.memory)
        .count("memory_used", |row| row.state.used_memory_bytes)
        .count("block_bytes", |row| row.block_bytes)
        .count("work_used", |row| row.work_bytes)
        .maybe_count("work_limit", |row| row.worker.inventory.work_limit)
        .text("labels", |row| row.worker.inventory.labels.join(", "))
        .build()
}

pub(crate) fn stage_state(state: StageState) -> &'static str {
    match state {
        StageState::Waiting => "waiting",
        StageState::Running => "running",
        StageState::Done => "done",
    }
}

pub(crate) fn task_state(task: &TaskRow<'_>) -> &'static str {
    match task.state {
        TaskState::Running => "running",
        TaskState::Finished => "finished",
        TaskState::Failed(_) => "failed",
        TaskState::Canceled if task.is_draining => "draining",
        TaskState::Canceled => "canceled",
        TaskState::Lost => "lost",
    }
}

fn block_state(state: BlockState) -> &'static str {
    match state {
        BlockState::Sealed => "sealed",
        BlockState::Assigned => "assigned",
        BlockState::Consumed => "consumed",
        BlockState::Freed => "freed",
        BlockState::Lost => "lost",
    }
}

/// What a task takes of its worker, in words: `1 cpu, 0.5 emulated`.
pub(crate) fn need_text(need: &Need) -> String {
    let number = |milli: u32| (f64::from(milli) / f64::from(WHOLE)).to_string();
    let mut parts = vec![];
    if need.cpus_milli > 0 {
        parts.push(format!("{} cpu", number(need.cpus_milli)));
    }
    if let Some(accelerator) = &need.accelerator {
        let kind = accelerator.kind().unwrap_or("accelerator");
        parts.push(format!("{} {kind}", number(accelerator.milli())));
    }
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

/// `1 task`, `2 tasks`
pub(crate) fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// What a stage reads, in words: `0 block by block, 1 broadcast`.
pub(crate) fn reads<'a>(edges: impl Iterator<Item = &'a EdgeSpec>) -> String {
    let mut parts: Vec<String> = vec![];
    for edge in edges {
        let part = format!("{} {}", edge.from, kind_text(edge));
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts.join(", ")
}

fn kind_text(edge: &EdgeSpec) -> &'static str {
    match edge.kind {
        EdgeKind::Streaming(Granularity::Block) => "block by block",
        EdgeKind::Streaming(Granularity::Unit) => "task by task",
        EdgeKind::Streaming(Granularity::Units) => "in groups of tasks",
        EdgeKind::Blocking => "when it is done",
        EdgeKind::Broadcast => "broadcast when it is done",
        EdgeKind::Hash if edge.lies_together => "by hash, merged, when it is done",
        EdgeKind::Hash => "by hash when it is done",
        EdgeKind::Ranges => "in ranges when it is done",
    }
}
