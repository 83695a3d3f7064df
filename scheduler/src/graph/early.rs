//! Tasks that begin before all is there that they read: of a stage that deals rows out by hash, what is there is read
//! while others of its tasks run.
//!
//! ```text
//!  maps      0 done   1 done   2 runs   3 runs
//!               └───┬───┘         │        ·
//!                   ▼ at once     ▼ told   ▼ told, and that this was the last
//!  reduce 7   reads ├──────┤├──┤  ├──┤     ├──┤ ends
//! ```
//! Only what others leave free is given to them, and taken back when it is wanted ([`Event::Displaced`](super::Event)):
//! while they wait they hold a worker. So nothing that they wait for ever waits for them.
//!
//! They begin when all tasks of the stage before have begun, none of them for another time, and some have ended. What
//! is lost stops all that read the stage, whatever they have read of it, as if they had begun later. So an attempt
//! never sees two attempts of a unit.

use std::collections::BTreeSet;

use super::bind::Input;
use super::ids::{Millis, StageId, TaskId, UnitId, WorkerId};
use super::job::JobGraph;
use super::spec::EdgeKind;
use super::stage::Stage;
use crate::resources::Lease;

/// Segments that a task is told of at a time, about.
const TOLD_MAX: usize = 4096;

/// What has been dealt out to a partition since its task was told last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dealt {
    /// Its segments of blocks that have come since.
    pub inputs: Vec<Input>,
    /// How many outputs of the stage before it has been told of: from where it asks on.
    pub told: u32,
    /// There will be no more.
    pub is_all: bool,
}

impl JobGraph {
    /// Whether tasks of a stage can begin now, and would wait for others before they end.
    pub fn begins_early(&self, stage: StageId) -> bool {
        let Some(from) = self.pipelined_from(stage).filter(|_| !self.gate_is_open(stage)) else {
            return false;
        };
        let all_run = from.closed && from.running.len() == from.undone;
        let none_again = from.undeclared == from.undone;
        let has_ended = from.undone < from.units.len();
        all_run && none_again && has_ended && self.gate_is_open(from.id)
    }

    /// The stage that a stage can read while it runs, and reads nothing else.
    fn pipelined_from(&self, stage: StageId) -> Option<&Stage> {
        let [edge] = &self.stages[stage.at()].inputs[..] else { return None };
        let edge = &self.edges[edge.at()].spec;
        let from = &self.stages[edge.from.at()];
        let is_dealt = edge.kind == EdgeKind::Hash && edge.is_pipelined;
        // The blocks of one that counts them one by one may be lost while its task runs.
        (is_dealt && !from.is_block_wise).then_some(from)
    }

    /// Whether what runs of a stage waits for others.
    fn runs_early(&self, stage: &Stage) -> bool {
        !stage.running.is_empty()
            && self.pipelined_from(stage.id).is_some()
            && !self.gate_is_open(stage.id)
    }

    /// Whether a task that runs may do so although a stage is not complete that it reads.
    pub(super) fn may_run_early(&self, stage: StageId) -> bool {
        self.pipelined_from(stage).is_some()
    }

    /// Whether any attempt of any stage runs that does not wait for others.
    pub fn runs_anything(&self) -> bool {
        self.stages.iter().any(|stage| !stage.running.is_empty() && !self.runs_early(stage))
    }

    /// The attempts that run and wait for others, in the order in which their stages were planned and they were bound.
    pub fn early_tasks(&self) -> impl Iterator<Item = (TaskId, &WorkerId, &Lease)> {
        let stages = self.stages.iter().filter(move |stage| self.runs_early(stage));
        let running = |stage: &'_ Stage| {
            let id = stage.id;
            stage.running.iter().map(move |index| id.task(*index)).collect::<Vec<_>>()
        };
        stages.flat_map(running).map(move |id| {
            let task = self.task(id);
            (id, &task.worker, &task.lease)
        })
    }

    /// Whether something holds what it was given and runs no more: it will give it back.
    pub fn drains(&self) -> bool {
        self.draining().next().is_some()
    }

    /// The worker of an attempt that waits is needed: its unit begins again later.
    pub(super) fn displaced(&mut self, task: TaskId, now: Millis) {
        // It has just ended, or waits no more.
        if !self.is_running(task) || !self.runs_early(&self.stages[task.stage.at()]) {
            return;
        }
        let unit = task.stage.unit(self.task(task).unit);
        self.cancel(task, DISPLACED.to_owned(), now);
        self.give_back(unit);
    }

    /// An attempt at a unit has ended well.
    pub(super) fn note_output(&mut self, unit: UnitId) {
        self.stages[unit.stage.at()].outputs_in_order.push(unit.index);
    }

    /// Of how many outputs of a stage a task is told that begins now. None if it is all of them.
    pub fn told_so_far(&self, from: StageId) -> Option<u32> {
        let from = &self.stages[from.at()];
        (!is_all_there(from)).then_some(from.outputs_in_order.len() as u32)
    }

    /// What has been dealt out to a partition by the stage that a task reads, since that was told of so many outputs.
    /// None if the task runs no more, reads no such stage, or was told of outputs of which nothing is known.
    pub fn dealt_since(&self, task: TaskId, partition: u32, told: u32) -> Option<Dealt> {
        if !self.is_running_job() || !self.is_running(task) {
            return None;
        }
        let from = self.pipelined_from(task.stage)?;
        let all = &from.outputs_in_order;
        let (mut inputs, mut seen, mut next) = (vec![], BTreeSet::new(), told as usize);
        if next > all.len() {
            return None;
        }
        while let Some(index) = all.get(next) {
            if inputs.len() >= TOLD_MAX {
                break;
            }
            let is_there = from.units[*index as usize].is_done();
            if is_there && seen.insert(*index) {
                inputs.extend(self.segments_of(from.id.unit(*index), partition));
            }
            next += 1;
        }
        let is_all = next >= all.len() && is_all_there(from);
        Some(Dealt { inputs, told: next as u32, is_all })
    }
}

const DISPLACED: &str = "what it waits for, or another job, needs its worker";

fn is_all_there(stage: &Stage) -> bool {
    stage.closed && stage.unsealed == 0
}
