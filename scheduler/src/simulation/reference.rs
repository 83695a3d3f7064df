//! What must run again, from full knowledge and the plainest rule there is: look at everything,
//! until nothing changes. Shares no code with the graph; it is told what was bound and reported.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{
    BlockId, BlockReport, Bound, EdgeKind, EdgeSpec, Granularity, JobSpec, StageId, TaskId, UnitId,
    WorkerId,
};

#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) stage: u32,
    pub(super) finished: bool,
    pub(super) running: Option<TaskId>,
    /// Its blocks, with the attempt and the worker of the copy that counts, if it is there.
    pub(super) blocks: BTreeMap<u32, (TaskId, Option<WorkerId>)>,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) unit: UnitId,
    pub(super) worker: WorkerId,
    pub(super) reads: Vec<BlockId>,
    skip: Vec<u32>,
}

/// Who has read, or will read, what, over which edge. The number is that of a block, or 0 for the
/// whole output.
type Reader = (u32, UnitId, u32);

#[derive(Debug)]
pub(super) struct Reference {
    spec: JobSpec,
    pub(super) units: BTreeMap<UnitId, Known>,
    pub(super) tasks: BTreeMap<TaskId, Task>,
    readers: BTreeMap<Reader, UnitId>,
    /// How many units a stage has that reads ranges, once one of them was bound.
    ranges: BTreeMap<StageId, usize>,
}

impl Reference {
    pub(super) fn new(spec: JobSpec) -> Self {
        let (units, tasks) = (BTreeMap::new(), BTreeMap::new());
        Self { spec, units, tasks, readers: BTreeMap::new(), ranges: BTreeMap::new() }
    }

    /// A task was bound. `whole` is what it reads of whole stages.
    pub(super) fn bound(
        &mut self,
        bound: &Bound,
        producers: &[UnitId],
        worker: &WorkerId,
        ranges: Option<usize>,
    ) {
        if let Some(ranges) = ranges {
            let earlier = self.ranges.insert(bound.unit.stage, ranges);
            assert!(earlier.is_none_or(|earlier| earlier == ranges), "other ranges");
        }
        let unit = self.units.entry(bound.unit).or_default();
        assert!(unit.running.is_none(), "unit {} runs twice", bound.unit);
        unit.stage = bound.unit.stage.0;
        unit.running = Some(bound.task);
        let reads: Vec<_> = bound.inputs.iter().map(|input| input.block).collect();
        if let Some(edge) = bound.edge {
            let is_block = self.kind(edge.0) == EdgeKind::Streaming(Granularity::Block);
            for block in reads.iter().filter(|_| is_block) {
                let earlier = self.readers.insert((edge.0, block.unit, block.seq), bound.unit);
                assert!(earlier.is_none_or(|earlier| earlier == bound.unit), "{block} twice");
            }
            for producer in producers {
                let earlier = self.readers.insert((edge.0, *producer, 0), bound.unit);
                assert!(earlier.is_none_or(|earlier| earlier == bound.unit), "{producer} twice");
            }
        }
        let skip = bound.skip.clone();
        let task = Task { unit: bound.unit, worker: worker.clone(), reads, skip };
        assert!(self.tasks.insert(bound.task, task).is_none(), "{} was given twice", bound.task);
    }

    fn kind(&self, edge: u32) -> EdgeKind {
        self.spec.edges[edge as usize].kind
    }

    /// Whether one stage reads segments of another one's blocks.
    pub(super) fn deals_to(&self, from: StageId, to: StageId) -> bool {
        let deals =
            |edge: &EdgeSpec| edge.from == from && edge.to == to && edge.kind == EdgeKind::Hash;
        self.spec.edges.iter().any(deals)
    }

    pub(super) fn is_block_wise(&self, stage: u32) -> bool {
        let block = EdgeKind::Streaming(Granularity::Block);
        self.spec.edges.iter().any(|edge| edge.from.0 == stage && edge.kind == block)
    }

    pub(super) fn runs(&self, task: TaskId) -> bool {
        let unit = self.tasks.get(&task).map(|task| &self.units[&task.unit]);
        unit.is_some_and(|unit| unit.running == Some(task))
    }

    /// A task no longer runs.
    pub(super) fn stopped(&mut self, task: TaskId) {
        let unit = self.tasks[&task].unit;
        if let Some(unit) = self.units.get_mut(&unit) {
            unit.running = None;
        }
    }

    pub(super) fn sealed(&mut self, task: TaskId, report: &BlockReport) {
        if !self.runs(task) || !self.is_block_wise(task.stage.0) {
            return;
        }
        let found = &self.tasks[&task];
        let Some(unit) = self.units.get_mut(&found.unit) else { return };
        let copy = (task, Some(found.worker.clone()));
        let skipped = found.skip.contains(&report.seq);
        let old = unit.blocks.get(&report.seq);
        let counts =
            old.is_none_or(|(writer, place)| *writer != task && place.is_none() && !skipped);
        if counts {
            unit.blocks.insert(report.seq, copy);
        }
    }

    pub(super) fn finished(&mut self, task: TaskId, reports: &[BlockReport]) {
        if !self.runs(task) {
            return;
        }
        reports.iter().for_each(|report| self.sealed(task, report));
        let (unit, worker) = (self.tasks[&task].unit, self.tasks[&task].worker.clone());
        let is_whole = !self.is_block_wise(task.stage.0);
        let Some(unit) = self.units.get_mut(&unit) else { return };
        (unit.finished, unit.running) = (true, None);
        if is_whole {
            let copy = |report: &BlockReport| (report.seq, (task, Some(worker.clone())));
            unit.blocks = reports.iter().map(copy).collect();
        }
    }

    /// A copy is no longer there.
    pub(super) fn gone(&mut self, block: BlockId, task: TaskId) {
        let unit = self.units.get_mut(&block.unit);
        if let Some(copy) = unit.and_then(|unit| unit.blocks.get_mut(&block.seq))
            && copy.0 == task
        {
            copy.1 = None;
        }
    }

    /// All that a worker has of a stage is no longer there.
    pub(super) fn output_gone(&mut self, stage: StageId, worker: &WorkerId) {
        let units = self.units.iter_mut().filter(|(id, _)| id.stage == stage);
        for copy in units.flat_map(|(_, unit)| unit.blocks.values_mut()) {
            copy.1 = copy.1.take().filter(|place| place != worker);
        }
    }

    pub(super) fn worker_lost(&mut self, worker: &WorkerId) {
        for unit in self.units.values_mut() {
            for copy in unit.blocks.values_mut() {
                copy.1 = copy.1.take().filter(|place| place != worker);
            }
            unit.running = unit.running.filter(|task| self.tasks[task].worker != *worker);
        }
    }

    /// The tasks that run, and read what is no longer there.
    pub(super) fn hopeless(&self) -> BTreeSet<TaskId> {
        let running = self.units.values().filter_map(|unit| unit.running);
        running.filter(|task| self.is_hopeless(*task)).collect()
    }

    fn is_hopeless(&self, task: TaskId) -> bool {
        let is_gone = |block: &BlockId| self.units[&block.unit].blocks[&block.seq].1.is_none();
        let mut waits_for =
            self.spec.edges.iter().filter(|edge| edge.to == task.stage && edge.kind.is_blocking());
        self.tasks[&task].reads.iter().any(is_gone)
            || waits_for.any(|edge| {
                let producers = self.units.values().filter(|unit| unit.stage == edge.from.0);
                producers.flat_map(|unit| unit.blocks.values()).any(|copy| copy.1.is_none())
            })
    }

    /// All units that were bound once and are not done: those that run, those that never ended
    /// well, and those of whose output somebody needs a part that is gone.
    pub(super) fn not_done(&self) -> BTreeSet<UnitId> {
        let open = |(_, unit): &(&UnitId, &Known)| unit.running.is_some() || !unit.finished;
        let mut not_done: BTreeSet<_> = self.units.iter().filter(open).map(|(id, _)| *id).collect();
        loop {
            let more: Vec<_> = self
                .units
                .iter()
                .filter(|(id, unit)| {
                    !not_done.contains(*id) && self.is_wanted(**id, unit, &not_done)
                })
                .map(|(id, _)| *id)
                .collect();
            if more.is_empty() {
                return not_done;
            }
            not_done.extend(more);
        }
    }

    fn is_wanted(&self, id: UnitId, unit: &Known, not_done: &BTreeSet<UnitId>) -> bool {
        let mut gone = unit.blocks.iter().filter(|(_, copy)| copy.1.is_none());
        gone.any(|(seq, _)| self.is_needed(id, *seq, not_done))
    }

    fn is_needed(&self, id: UnitId, seq: u32, not_done: &BTreeSet<UnitId>) -> bool {
        let mut has_reader = false;
        for (index, edge) in (0..).zip(&self.spec.edges) {
            if edge.from != id.stage {
                continue;
            }
            has_reader = true;
            let seq = if edge.kind == EdgeKind::Streaming(Granularity::Block) { seq } else { 0 };
            let is_done = match edge.kind {
                EdgeKind::Streaming(_) => {
                    let reader = self.readers.get(&(index, id, seq));
                    reader.is_some_and(|reader| !not_done.contains(reader))
                }
                _ => self.is_complete(edge.to, not_done),
            };
            if !is_done {
                return true;
            }
        }
        !has_reader
    }

    /// Whether a stage has all its units, and all are done.
    pub(super) fn is_complete(&self, stage: StageId, not_done: &BTreeSet<UnitId>) -> bool {
        let mine = || self.units.keys().filter(|unit| unit.stage == stage);
        self.expected_units(stage).is_some_and(|expected| mine().count() == expected)
            && !mine().any(|unit| not_done.contains(unit))
    }

    /// How many units a stage has in all; `None` if that is not known yet.
    fn expected_units(&self, stage: StageId) -> Option<usize> {
        let spec = &self.spec.stages[stage.0 as usize];
        let mut inputs = self.spec.edges.iter().filter(|edge| edge.to == stage);
        let ranges = match inputs.any(|edge| edge.kind == EdgeKind::Ranges) {
            true => *self.ranges.get(&stage)?,
            false => 0,
        };
        let expected = spec.partitions as usize + ranges + self.expected_readers(stage)?;
        Some(expected.max(usize::from(spec.runs_on_nothing)))
    }

    /// How many units a stage has for what streams into it; `None` if that is not known yet.
    fn expected_readers(&self, stage: StageId) -> Option<usize> {
        let mut readers = BTreeSet::new();
        for (index, edge) in (0..).zip(&self.spec.edges) {
            if edge.to != stage || edge.kind.is_blocking() {
                continue;
            }
            let expected = self.expected_units(edge.from)?;
            let producers: Vec<_> =
                self.units.iter().filter(|(id, _)| id.stage == edge.from).collect();
            if producers.len() != expected || producers.iter().any(|(_, unit)| !unit.finished) {
                return None;
            }
            for (id, unit) in producers {
                if edge.kind != EdgeKind::Streaming(Granularity::Block) {
                    readers.insert(*self.readers.get(&(index, *id, 0))?);
                    continue;
                }
                for seq in unit.blocks.keys() {
                    readers.insert(*self.readers.get(&(index, *id, *seq))?);
                }
            }
        }
        Some(readers.len())
    }
}
