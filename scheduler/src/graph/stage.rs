//! A stage and an edge while the job runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::homes::Homes;
use super::ids::{EdgeId, Millis, StageId, UnitId, WorkerId};
use super::learned::Learned;
use super::ready::Ready;
use super::row_key::RowKey;
use super::spec::{EdgeKind, EdgeSpec, Granularity, JobSpec, StageSpec};
use super::tasks::Tasks;
use super::unit::{Unit, UnitInput, UnitState};

/// Where a stage stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageState {
    /// Nothing of it has run yet.
    Waiting,
    /// Some of it has run, or runs again.
    Running,
    /// There will be no more units, and all of them are done.
    Done,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stage {
    pub(super) id: StageId,
    pub(super) spec: StageSpec,
    pub(super) inputs: Vec<EdgeId>,
    pub(super) outputs: Vec<EdgeId>,
    /// Whether blocks count one by one, across attempts. Otherwise an output is all or none.
    pub(super) is_block_wise: bool,
    pub(super) units: Vec<Unit>,
    /// All attempts, in the order in which they were bound.
    pub(super) tasks: Tasks,
    pub(super) running: BTreeSet<u32>,
    pub(super) ready: Ready,
    /// Where the ranges begin that it reads, but for the first, once that is known. Never changed then.
    pub(super) borders: Option<Vec<RowKey>>,
    /// There will be no more units. Never taken back.
    pub(super) closed: bool,
    /// Units that are not done.
    pub(super) undone: usize,
    /// Units that have never ended well, so that nobody knows the number of their blocks.
    pub(super) undeclared: usize,
    /// Units whose output is not known or not all there.
    pub(super) unsealed: usize,
    /// Units that are done, and whose output is not all there because nobody needs it.
    pub(super) gone: BTreeSet<u32>,
    /// What running tasks are expected to seal yet.
    pub(super) expected_left: u64,
    /// Units in the order in which attempts at them ended well; one that ran again comes again.
    pub(super) outputs_in_order: Vec<u32>,
    /// What its attempts have written, those that ran again included.
    pub(super) written_bytes: u64,
    pub(super) written_rows: u64,
    /// When an attempt ended last.
    pub(super) last_ended: Option<Millis>,
    pub(super) failures: u32,
    pub(super) learned: Learned,
    /// Of units that belong together: where the last one that has begun runs.
    pub(super) homes: BTreeMap<u32, WorkerId>,
    /// What the readers of its blocking inputs were last told.
    pub(super) was_complete: bool,
}

impl Stage {
    pub(super) fn new(id: StageId, job: &JobSpec) -> Self {
        let spec = job.stages[id.at()].clone();
        let edges = || (0..).map(EdgeId).zip(&job.edges);
        let outputs: Vec<_> = edges().filter(|(_, edge)| edge.from == id).collect();
        let is_block_wise =
            outputs.iter().any(|(_, edge)| edge.kind == EdgeKind::Streaming(Granularity::Block));
        Self {
            id,
            inputs: edges().filter(|(_, edge)| edge.to == id).map(|(edge, _)| edge).collect(),
            outputs: outputs.into_iter().map(|(edge, _)| edge).collect(),
            is_block_wise,
            units: vec![],
            tasks: Tasks::default(),
            running: BTreeSet::new(),
            ready: Ready::default(),
            borders: None,
            closed: false,
            undone: 0,
            undeclared: 0,
            unsealed: 0,
            gone: BTreeSet::new(),
            expected_left: 0,
            outputs_in_order: vec![],
            written_bytes: 0,
            written_rows: 0,
            last_ended: None,
            failures: 0,
            learned: Learned::new(spec.output_bytes_guess),
            homes: BTreeMap::new(),
            was_complete: false,
            spec,
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.closed && self.undone == 0
    }

    pub(super) fn state(&self) -> StageState {
        match self.is_complete() {
            true => StageState::Done,
            false if self.tasks.is_empty() => StageState::Waiting,
            false => StageState::Running,
        }
    }

    /// Appends a unit that is to run.
    pub(super) fn push_unit(
        &mut self,
        input: UnitInput,
        edge: Option<EdgeId>,
        partition: u32,
    ) -> UnitId {
        let index = self.units.len() as u32;
        self.units.push(Unit {
            input,
            edge,
            partition,
            state: UnitState::Pending,
            attempts: 0,
            failures: 0,
            losses: 0,
            full_at: None,
            failed_on: vec![],
            lost_on: vec![],
            not_before: Default::default(),
            finished: None,
            readers: vec![None; self.outputs.len()].into(),
            blocks: Default::default(),
            absent: 0,
        });
        self.undone += 1;
        self.undeclared += 1;
        self.unsealed += 1;
        self.id.unit(index)
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Edge {
    pub(super) spec: EdgeSpec,
    /// Its place among the outgoing edges of the producer.
    pub(super) slot: usize,
    /// Blocks, or units whose outputs are read in groups, that no unit of the consumer has as input yet.
    pub(super) unassigned: usize,
    /// Bytes that are there and that the consumer is not done with. Of streaming edges only.
    pub(super) unconsumed_bytes: u64,
    /// Whether its bytes can be bounded. See [`Edge::new`].
    pub(super) is_budgeted: bool,
    /// For how many milliseconds a block lies there before it has been read: of late, on average.
    pub(super) lies_ms: Option<u64>,
    /// Since when what lies there waits for its reader: the last one was read then, or the first came.
    pub(super) waits_since: Millis,
    /// If its partitions lie together: where.
    pub(super) homes: Homes,
}

impl Edge {
    /// A streaming edge has no budget if its consumer also waits for a stage that can only be
    /// complete when all of the producer, or of what streams into the producer, has run: what is
    /// held back here would never be asked for.
    pub(super) fn new(id: EdgeId, job: &JobSpec) -> Self {
        let spec = job.edges[id.at()].clone();
        let earlier = job.edges[..id.at()].iter().filter(|edge| edge.from == spec.from).count();
        let streams = |edge: &EdgeSpec| !edge.kind.is_blocking();
        let held_back =
            closure([spec.from], &job.edges, |edge| streams(edge).then_some((edge.to, edge.from)));
        let depending = closure(held_back, &job.edges, |edge| Some((edge.from, edge.to)));
        let waits_for_all = |edge: &EdgeSpec| {
            edge.to == spec.to && edge.kind.is_blocking() && depending.contains(&edge.from)
        };
        let is_budgeted = streams(&spec) && !job.edges.iter().any(waits_for_all);
        Self {
            spec,
            slot: earlier,
            unassigned: 0,
            unconsumed_bytes: 0,
            is_budgeted,
            lies_ms: None,
            waits_since: Millis(0),
            homes: Homes::default(),
        }
    }

    /// A block was read that was sealed so long ago.
    pub(super) fn learn(&mut self, lay_ms: u64, now: Millis) {
        self.waits_since = now;
        let before = self.lies_ms.unwrap_or(lay_ms);
        self.lies_ms = Some((7 * before + lay_ms) / 8);
    }
}

/// All stages that a walk from `starts` comes to, and `starts`. A step goes along an edge from the
/// first to the second of what `step` makes of it.
fn closure(
    starts: impl IntoIterator<Item = StageId>,
    edges: &[EdgeSpec],
    step: impl Fn(&EdgeSpec) -> Option<(StageId, StageId)>,
) -> BTreeSet<StageId> {
    let mut found: BTreeSet<_> = starts.into_iter().collect();
    let mut open: Vec<_> = found.iter().copied().collect();
    while let Some(at) = open.pop() {
        let next = edges.iter().filter_map(&step).filter(|(from, _)| *from == at);
        open.extend(next.map(|(_, to)| to).filter(|to| found.insert(*to)));
    }
    found
}
