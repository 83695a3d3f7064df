//! What ran, where, when, and why it ran again: the rows of the system tables.

use super::block::{BlockState, Place};
use super::history::Recomputed;
use super::ids::{BlockId, EdgeId, Millis, StageId, TaskId, UnitId, WorkerId};
use super::job::JobGraph;
use super::spec::{EdgeKind, Granularity};
use super::stage::StageState;
use super::unit::{TaskState, UnitInput, UnitState};

/// A stage, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageRow<'a> {
    /// The stage, in its job.
    pub id: StageId,
    /// Its operators.
    pub name: &'a str,
    /// Whether it waits, runs or is done; it may run again.
    pub state: StageState,
    /// Units so far: a stage that streams gets more.
    pub units: usize,
    /// Units that are done.
    pub units_done: usize,
    /// Attempts that run now.
    pub running: usize,
    /// Attempts so far, those that were lost or canceled included.
    pub attempts: usize,
    /// Attempts that failed and counted against the stage.
    pub failures: u32,
    /// Bytes that its attempts have written, those that ran again included.
    pub bytes: u64,
    /// Rows that its attempts have written, those that ran again included.
    pub rows: u64,
    /// When its first task was bound.
    pub started: Option<Millis>,
    /// When its last task ended, if it is done.
    pub ended: Option<Millis>,
}

impl StageRow<'_> {
    /// Whether nothing of it is left to do.
    pub fn is_done(&self) -> bool {
        self.state == StageState::Done
    }
}

/// An attempt, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRow<'a> {
    /// The attempt, in its job.
    pub id: TaskId,
    /// The unit that it tries.
    pub unit: UnitId,
    /// What the unit reads.
    pub input: &'a UnitInput,
    /// Which attempt at the unit it is, from 1.
    pub attempt: u32,
    /// Whether it runs, or how it ended.
    pub state: &'a TaskState,
    /// Whether it still holds what it was given, though canceled.
    pub is_draining: bool,
    /// The worker that was given it, which may be gone.
    pub worker: &'a WorkerId,
    /// When it was bound.
    pub started: Millis,
    /// When it ended; nothing while it runs.
    pub ended: Option<Millis>,
    /// Bytes of its output.
    pub bytes: u64,
    /// Rows of its output.
    pub rows: u64,
    /// Why it did not end well.
    pub reason: &'a str,
}

/// A block, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRow<'a> {
    /// The block, in its job.
    pub id: BlockId,
    /// Whether it can be read, was read, or is gone.
    pub state: BlockState,
    /// The attempt that wrote the copy that counts.
    pub writer: TaskId,
    /// Where that lies, or lay.
    pub worker: &'a WorkerId,
    /// Size of its file in bytes.
    pub bytes: u64,
    /// Its rows, as its writer counted them.
    pub rows: u64,
    /// CRC-32 of its file.
    pub checksum: u64,
    /// When it was sealed.
    pub sealed: Millis,
    /// How often readers found it missing or corrupt.
    pub losses: u32,
}

impl JobGraph {
    /// The stages, but for the client.
    pub fn stage_rows(&self) -> impl Iterator<Item = StageRow<'_>> {
        self.stages.iter().filter(|stage| !stage.spec.is_client).map(|stage| StageRow {
            id: stage.id,
            name: &stage.spec.name,
            state: stage.state(),
            units: stage.units.len(),
            units_done: stage.units.len() - stage.undone,
            running: stage.running.len(),
            attempts: stage.tasks.len(),
            failures: stage.failures,
            bytes: stage.written_bytes,
            rows: stage.written_rows,
            started: stage.tasks.first().map(|task| task.started),
            ended: stage.last_ended.filter(|_| stage.is_complete()),
        })
    }

    /// All attempts, by stage and in the order in which they were bound. Not the client's.
    pub fn task_rows(&self) -> impl Iterator<Item = TaskRow<'_>> {
        self.stages.iter().filter(|stage| !stage.spec.is_client).flat_map(|stage| {
            stage.tasks.numbered().map(|(number, task)| TaskRow {
                id: stage.id.task(number),
                unit: stage.id.unit(task.unit),
                input: &stage.units[task.unit as usize].input,
                attempt: task.attempt,
                state: &task.state,
                is_draining: task.holds_lease && task.state == TaskState::Canceled,
                worker: &task.worker,
                started: task.started,
                ended: task.ended,
                bytes: task.bytes,
                rows: task.rows,
                reason: &task.reason,
            })
        })
    }

    /// All blocks that were ever sealed, with their last copy.
    pub fn block_rows(&self) -> impl Iterator<Item = BlockRow<'_>> {
        self.unit_ids().flat_map(move |unit| {
            self.unit(unit).blocks.iter().map(move |(seq, block)| BlockRow {
                id: unit.block(seq),
                state: self.block_state(unit.block(seq)),
                writer: unit.stage.task(block.task),
                worker: &block.worker,
                bytes: block.bytes,
                rows: block.rows,
                checksum: block.checksum,
                sealed: block.sealed,
                losses: block.losses,
            })
        })
    }

    /// Bytes of the blocks that each worker holds.
    pub fn held_bytes(&self) -> impl Iterator<Item = (&WorkerId, u64)> {
        self.holdings.iter().map(|(worker, held)| (worker, held.bytes))
    }

    /// When the first task was bound.
    pub fn started(&self) -> Option<Millis> {
        self.stages.iter().filter_map(|stage| stage.tasks.first()).map(|task| task.started).min()
    }

    /// Every unit, with its state.
    pub fn units(&self) -> impl Iterator<Item = (UnitId, UnitState)> {
        self.unit_ids().map(|unit| (unit, self.unit(unit).state))
    }

    pub(super) fn unit_ids(&self) -> impl Iterator<Item = UnitId> {
        let stages = self.stages.iter();
        stages.flat_map(|stage| (0..stage.units.len() as u32).map(|index| stage.id.unit(index)))
    }

    /// Units that were done and had to run again, in order.
    pub fn recomputed(&self) -> &[Recomputed] {
        &self.history.recomputed
    }

    /// How many reports came from attempts that no longer ran.
    pub fn stale_reports(&self) -> u64 {
        self.history.stale_reports
    }

    fn block_state(&self, id: BlockId) -> BlockState {
        let block = self.block(id);
        match block.place {
            Place::Freed => BlockState::Freed,
            Place::Lost => BlockState::Lost,
            Place::Alive if !self.is_needed(id) => BlockState::Consumed,
            Place::Alive => {
                let outputs = &self.stages[id.unit.stage.at()].outputs;
                let is_assigned = |edge: &EdgeId| {
                    let edge = &self.edges[edge.at()];
                    match edge.spec.kind {
                        EdgeKind::Streaming(Granularity::Block) => {
                            block.readers[edge.slot].is_some()
                        }
                        EdgeKind::Streaming(Granularity::Unit) => true,
                        EdgeKind::Streaming(Granularity::Units) => {
                            self.unit(id.unit).readers[edge.slot].is_some()
                        }
                        EdgeKind::Blocking
                        | EdgeKind::Broadcast
                        | EdgeKind::Hash
                        | EdgeKind::Ranges => false,
                    }
                };
                if outputs.iter().any(is_assigned) {
                    BlockState::Assigned
                } else {
                    BlockState::Sealed
                }
            }
        }
    }
}
