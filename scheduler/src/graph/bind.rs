//! From ready work to a task on a worker.

use std::collections::BTreeSet;

use thiserror::Error;

use super::ids::{BlockId, EdgeId, Millis, StageId, TaskId, UnitId, WorkerId};
use super::job::JobGraph;
use super::ready::ReadyItem;
use super::row_key::KeyRange;
use super::spec::{EdgeKind, Granularity};
use super::step::Step;
use super::unit::{Task, TaskState, Unit, UnitInput, UnitState};
use super::work::Work;
use crate::resources::Lease;

/// A task that has been bound, and all that its worker must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The attempt that this is.
    pub task: TaskId,
    /// The unit that it runs; no other attempt at it runs.
    pub unit: UnitId,
    /// Which attempt at the unit it is, from 1.
    pub attempt: u32,
    /// The partition of the stage's plan to execute.
    pub partition: u32,
    /// The streaming edge that `inputs` come over.
    pub edge: Option<EdgeId>,
    /// What it reads on that edge. What it reads of whole stages is told by
    /// [`JobGraph::outputs`], once per stage.
    pub inputs: Vec<Input>,
    /// What it reads of a stage's runs, by [`JobGraph::blocks_in`].
    pub range: Option<KeyRange>,
    /// Blocks that need not be written again.
    pub skip: Vec<u32>,
}

/// One block to read, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The block, which lies there until all of its readers are done.
    pub block: BlockId,
    /// The attempt that wrote this copy.
    pub writer: TaskId,
    /// The worker that holds this copy.
    pub worker: WorkerId,
    /// Size of its file in bytes. A reader that finds another one must fail.
    pub bytes: u64,
    /// Its rows. A reader that finds another number must fail.
    pub rows: u64,
    /// Its checksum. A reader that finds another one must fail.
    pub checksum: u64,
    /// Where its segment of a hash shuffle begins in the file, if it is that of which bytes, rows and checksum
    /// are told. None if it is the whole file.
    pub segment_at: Option<u64>,
}

/// Why work cannot be bound. Each of these would make a task read too little, silently.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BindError {
    /// The job has ended.
    #[error("the job is over")]
    JobIsOver,
    /// The graph has no such unit, edge or block.
    #[error("{0} does not exist")]
    Unknown(String),
    /// The unit runs or is done.
    #[error("unit {unit} is {state:?}, only a pending one can be bound")]
    NotPending {
        /// The unit that was to be run.
        unit: UnitId,
        /// What it does instead of being pending.
        state: UnitState,
    },
    /// The unit waits after a failure.
    #[error("unit {unit} waits until {until:?} after a failure, now is {now:?}")]
    TooEarly {
        /// The unit that was to be run.
        unit: UnitId,
        /// When it may run.
        until: Millis,
        /// When it was bound.
        now: Millis,
    },
    /// A stage that must be read as a whole is not complete.
    #[error("stage {0} waits for a stage that is not complete, or whose output is not all there")]
    InputIncomplete(StageId),
    /// What the unit reads is not sealed, or no longer there.
    #[error("what unit {0} reads is not sealed or not there")]
    InputMissing(UnitId),
    /// What was written down of a stage's ranges is not what follows here.
    #[error("stage {0} would read other ranges than those that were written down")]
    OtherRanges(StageId),
    /// A unit's output is not all there, or the input of another unit.
    #[error("the output of unit {unit} is not free to be read over edge {edge}")]
    OutputTaken {
        /// The unit whose output was to be read.
        unit: UnitId,
        /// The edge over which it was to be read.
        edge: EdgeId,
    },
    /// A block is not there, or the input of another unit.
    #[error("block {block} is not free to be read over edge {edge}")]
    BlockTaken {
        /// The block that was to be read.
        block: BlockId,
        /// The edge over which it was to be read.
        edge: EdgeId,
    },
}

impl JobGraph {
    /// Makes a task of work that is ready. Nothing changes if it is refused.
    pub fn bind(
        &mut self,
        work: Work,
        worker: &WorkerId,
        lease: Lease,
        now: Millis,
    ) -> Result<Bound, BindError> {
        if !self.is_running_job() {
            return Err(BindError::JobIsOver);
        }
        let step = self.is_recorded().then(|| Step::bind(&work, worker, &lease, now));
        let unit = match work {
            Work::Unit(unit) => {
                self.check_unit(unit, now)?;
                unit
            }
            Work::Blocks { edge, blocks } => {
                let to = self.check_blocks(edge, &blocks)?;
                self.group(edge, to, blocks)
            }
            Work::Outputs { edge, units } => {
                let to = self.check_outputs(edge, &units)?;
                self.group_outputs(edge, to, units)
            }
        };
        self.record(step);
        Ok(self.start(unit, worker, lease, now))
    }

    fn check_gate(&self, stage: StageId) -> Result<(), BindError> {
        let is_open = self.gate_is_open(stage) || self.begins_early(stage);
        if is_open { Ok(()) } else { Err(BindError::InputIncomplete(stage)) }
    }

    fn check_unit(&self, id: UnitId, now: Millis) -> Result<(), BindError> {
        let stage = self.stages.get(id.stage.at());
        let Some(unit) = stage.and_then(|stage| stage.units.get(id.index as usize)) else {
            return Err(BindError::Unknown(format!("unit {id}")));
        };
        let (state, until) = (unit.state, unit.not_before);
        if state != UnitState::Pending {
            return Err(BindError::NotPending { unit: id, state });
        }
        if until > now {
            return Err(BindError::TooEarly { unit: id, until, now });
        }
        self.check_gate(id.stage)?;
        if self.inputs_are_alive(id) { Ok(()) } else { Err(BindError::InputMissing(id)) }
    }

    fn check_blocks(&self, edge: EdgeId, blocks: &[BlockId]) -> Result<StageId, BindError> {
        let unknown = || BindError::Unknown(format!("edge {edge} that streams blocks"));
        let found = self.edges.get(edge.at()).ok_or_else(unknown)?;
        if found.spec.kind != EdgeKind::Streaming(Granularity::Block) || blocks.is_empty() {
            return Err(unknown());
        }
        self.check_gate(found.spec.to)?;
        let ready = &self.stages[found.spec.to.at()].ready;
        let mut seen = BTreeSet::new();
        for block in blocks.iter().copied() {
            if !ready.contains(ReadyItem::Block { edge, block }) || !seen.insert(block) {
                return Err(BindError::BlockTaken { block, edge });
            }
        }
        Ok(found.spec.to)
    }

    fn check_outputs(&self, edge: EdgeId, units: &[UnitId]) -> Result<StageId, BindError> {
        let unknown = || BindError::Unknown(format!("edge {edge} that streams outputs in groups"));
        let found = self.edges.get(edge.at()).ok_or_else(unknown)?;
        if found.spec.kind != EdgeKind::Streaming(Granularity::Units) || units.is_empty() {
            return Err(unknown());
        }
        self.check_gate(found.spec.to)?;
        let ready = &self.stages[found.spec.to.at()].ready;
        let mut seen = BTreeSet::new();
        for unit in units.iter().copied() {
            if !ready.contains(ReadyItem::Output { edge, unit }) || !seen.insert(unit) {
                return Err(BindError::OutputTaken { unit, edge });
            }
        }
        Ok(found.spec.to)
    }

    /// Freezes whole outputs as the input of a new unit.
    fn group_outputs(&mut self, edge: EdgeId, to: StageId, units: Vec<UnitId>) -> UnitId {
        let (slot, partition) = {
            let found = &mut self.edges[edge.at()];
            found.unassigned -= units.len();
            (found.slot, found.spec.partition_offset)
        };
        let reader = self.add_unit(to, UnitInput::Outputs(units.clone()), Some(edge), partition);
        for unit in units {
            self.unit_mut(unit).readers[slot] = Some(reader.index);
            self.stages[to.at()].ready.remove(ReadyItem::Output { edge, unit });
        }
        reader
    }

    /// Freezes blocks as the input of a new unit.
    fn group(&mut self, edge: EdgeId, to: StageId, blocks: Vec<BlockId>) -> UnitId {
        let (slot, partition) = {
            let found = &mut self.edges[edge.at()];
            found.unassigned -= blocks.len();
            (found.slot, found.spec.partition_offset)
        };
        let unit = self.add_unit(to, UnitInput::Blocks(blocks.clone()), Some(edge), partition);
        for id in blocks {
            if let Some(block) = self.unit_mut(id.unit).blocks.get_mut(id.seq) {
                block.readers[slot] = Some(unit.index);
            }
            self.stages[to.at()].ready.remove(ReadyItem::Block { edge, block: id });
        }
        unit
    }

    fn start(&mut self, id: UnitId, worker: &WorkerId, lease: Lease, now: Millis) -> Bound {
        let (skip, expected_left, expected_here) = self.left_to_write(id, worker);
        let unread_milli = self.unread_milli_of(id.stage, now);
        let stage = &mut self.stages[id.stage.at()];
        let task = stage.id.task(stage.tasks.next_number());
        let unit = &mut stage.units[id.index as usize];
        unit.attempts += 1;
        let attempt = unit.attempts;
        stage.running.insert(task.index);
        stage.expected_left += expected_left;
        stage.tasks.push(Task {
            unit: id.index,
            attempt,
            worker: worker.clone(),
            lease,
            state: TaskState::Running,
            holds_lease: true,
            started: now,
            ended: None,
            bytes: 0,
            rows: 0,
            expected_left,
            expected_here,
            unread_milli,
            skip,
            reason: String::new(),
        });
        self.slots.entry(worker.clone()).or_default().insert(task);
        self.changed_slots.insert(worker.clone());
        self.changed_holdings.insert(worker.clone());
        self.set_state(id, UnitState::Running(task.index));
        self.call_siblings(id, worker);
        let not_before = std::mem::take(&mut self.unit_mut(id).not_before);
        self.stages[id.stage.at()].ready.undelay(id.index, not_before);
        self.bound(task)
    }

    /// What the worker of an attempt that runs was told.
    pub(super) fn bound(&self, task: TaskId) -> Bound {
        let found = self.task(task);
        let id = task.stage.unit(found.unit);
        let Unit { partition, edge, .. } = self.unit(id);
        let inputs = self.input_blocks(id).into_iter().map(|block| self.input(block)).collect();
        let (attempt, skip) = (found.attempt, found.skip.clone());
        let (partition, edge, range) = (*partition, *edge, self.range_of(id));
        Bound { task, unit: id, attempt, partition, edge, inputs, range, skip }
    }

    /// Which blocks need not be written again, and how many bytes are expected of the others: of any attempt, and
    /// on this worker.
    fn left_to_write(&self, id: UnitId, worker: &WorkerId) -> (Vec<u32>, u64, u64) {
        let stage = &self.stages[id.stage.at()];
        let expected = stage.learned.expected_bytes();
        let here = stage.learned.expected_bytes_on(worker);
        if !stage.is_block_wise {
            return (vec![], expected, here);
        }
        let unit = self.unit(id);
        let can_skip = |seq: u32| {
            unit.blocks.get(seq).is_some_and(|block| block.is_alive())
                || !self.is_needed(id.block(seq))
        };
        let (skip, write): (Vec<_>, Vec<_>) =
            unit.blocks.iter().partition(|(seq, _)| can_skip(*seq));
        let bytes = |blocks: &[(u32, &super::block::Block)]| -> u64 {
            blocks.iter().map(|(_, block)| block.bytes).sum()
        };
        let (expected, here) = match unit.finished {
            Some(_) => (bytes(&write), bytes(&write)),
            None => {
                let written = bytes(&skip);
                (expected.saturating_sub(written), here.saturating_sub(written))
            }
        };
        (skip.into_iter().map(|(seq, _)| seq).collect(), expected, here)
    }

    pub(super) fn input(&self, id: BlockId) -> Input {
        let block = self.block(id);
        Input {
            block: id,
            writer: id.unit.stage.task(block.task),
            worker: block.worker.clone(),
            bytes: block.bytes,
            rows: block.rows,
            checksum: block.checksum,
            segment_at: None,
        }
    }

    /// All blocks that a stage has given and that are there: what readers of the whole stage read,
    /// and the result if nobody reads it.
    pub fn outputs(&self, stage: StageId) -> impl Iterator<Item = Input> {
        let units = self.stages[stage.at()].units.iter().enumerate();
        units.flat_map(move |(index, unit)| {
            let alive = unit.blocks.iter().filter(|(_, block)| block.is_alive());
            alive.map(move |(seq, _)| self.input(stage.unit(index as u32).block(seq)))
        })
    }
}
