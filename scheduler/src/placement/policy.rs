//! One round of binding: what is ready, on what is free. See the [module](super) for the rules.

use crate::graph::{
    BlockId, Bound, EdgeId, JobGraph, Millis, ReadyItem, StageId, UnitId, Work, WorkerId,
};

use super::Admission;
use super::budget::{buffered_output, reserve_admits};
use super::fleet::{Fleet, Usage};
use super::job::Job;
use super::round::Candidates;
use super::workers::{WorkerState, any_could_ever_fit};
use crate::resources::{Lease, Need};

/// A task that is to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The place of its job among those that were given.
    pub job: usize,
    /// What its worker must know; the graph counts it as running.
    pub bound: Bound,
    /// The worker to be told.
    pub worker: WorkerId,
    /// The devices that are its own there.
    pub lease: Lease,
}

/// What one task may read, however much is waiting.
const WINDOWS_MAX: u64 = 16;

/// Binds all that is ready and fits, job by job in the order of their shares.
pub fn place(jobs: &mut [Job<'_>], fleet: &mut Fleet, now: Millis) -> Vec<Binding> {
    for job in jobs.iter_mut() {
        job.graph.advance(now);
        if job.admission == Admission::Paper {
            job.paper.tick(job.graph, &fleet.workers, now);
        }
    }
    fleet.refresh(jobs);
    fleet.wanting.clear();
    let has_work =
        |job: &Job<'_>| job.graph.consumers_first().any(|s| job.graph.ready(s).is_some());
    if !jobs.iter().any(has_work) {
        return vec![];
    }
    let mut queues: Vec<_> = jobs.iter().map(|job| Queue::new(job, fleet, now)).collect();
    let mut bindings = vec![];
    bind_all(&mut queues, jobs, fleet, now, &mut bindings);
    fleet.wanting = queues.iter().flat_map(|queue| queue.wanting.iter().cloned()).collect();
    if queues.iter().all(|queue| queue.wanting.is_empty() && !queue.is_held_back) {
        // Nobody misses the workers on which these will wait.
        queues.iter_mut().zip(jobs.iter()).for_each(|(queue, job)| queue.goes_early(job));
        bind_all(&mut queues, jobs, fleet, now, &mut bindings);
    }
    for (queue, job) in queues.iter().zip(jobs) {
        fleet.bound(job, queue.usage);
    }
    bindings
}

fn bind_all(
    queues: &mut [Queue],
    jobs: &mut [Job<'_>],
    fleet: &mut Fleet,
    now: Millis,
    bindings: &mut Vec<Binding>,
) {
    while let Some(at) = next_job(queues) {
        match queues[at].place_one(&mut jobs[at], fleet, now) {
            None => queues[at].is_closed = true,
            Some((worker, lease, bound)) => {
                bindings.push(Binding { job: at, bound, worker, lease });
            }
        }
    }
}

/// Weighted fair share: the job that has least of what it has most of.
fn next_job(queues: &[Queue]) -> Option<usize> {
    let open = queues.iter().enumerate().filter(|(_, queue)| !queue.is_closed);
    let least = open.min_by(|(_, a), (_, b)| a.share.total_cmp(&b.share));
    least.map(|(at, _)| at)
}

/// One job in one round. During a round nothing is given back, so that a stage for which there was
/// no worker or no budget need not be asked again.
#[derive(Debug)]
struct Queue {
    usage: Usage,
    share: f64,
    is_closed: bool,
    is_forced: bool,
    /// All else is placed: those are looked at whose tasks would wait for others.
    is_early: bool,
    /// What stages need that have work and found no worker.
    wanting: Vec<Need>,
    /// A stage has work for which there is no budget.
    is_held_back: bool,
    stages: Vec<(StageId, Candidates)>,
}

impl Queue {
    fn new(job: &Job<'_>, fleet: &Fleet, now: Millis) -> Self {
        let usage = fleet.usage(job.id);
        let mut stages: Vec<_> = job.graph.consumers_first().collect();
        match job.admission {
            Admission::Paper => {
                // Sources as their budget allows, then the operator with the least output waiting.
                stages.sort_by_key(|stage| {
                    (job.graph.has_streaming_input(*stage), buffered_output(job.graph, *stage))
                });
            }
            // Stable: within each kind the consumers stay first.
            Admission::Reserve | Admission::Off => {
                stages.sort_by_key(|stage| job.graph.stage(*stage).need.accelerator.is_none());
            }
        }
        let needs_room = job.admission == Admission::Reserve;
        Self {
            share: fleet.share(&usage, job.weight),
            usage,
            is_closed: !job.graph.is_running_job(),
            is_forced: false,
            is_early: false,
            wanting: vec![],
            is_held_back: false,
            stages: stages
                .into_iter()
                .map(|stage| (stage, Candidates::new(now, needs_room)))
                .collect(),
        }
    }

    fn goes_early(&mut self, job: &Job<'_>) {
        self.is_early = true;
        self.is_closed = !job.graph.is_running_job();
    }

    fn place_one(
        &mut self,
        job: &mut Job<'_>,
        fleet: &mut Fleet,
        now: Millis,
    ) -> Option<(WorkerId, Lease, Bound)> {
        for at in 0..self.stages.len() {
            let stage = self.stages[at].0;
            let is_its_turn = job.graph.begins_early(stage) == self.is_early;
            if self.stages[at].1.is_closed || !is_its_turn || job.graph.ready(stage).is_none() {
                continue;
            }
            if !self.is_forced && !self.admits(job, stage, now) {
                self.is_held_back = true;
                continue;
            }
            let candidates = &mut self.stages[at].1;
            let Some((worker, work)) = choose(job.graph, stage, candidates, fleet) else {
                candidates.is_closed = true;
                self.wanting.push(job.graph.stage(stage).need.clone());
                continue;
            };
            if let Some(placed) = self.bind(job, stage, worker, work, fleet, now) {
                return Some(placed);
            }
        }
        // Nothing can be placed. If nothing runs either, nothing will ever make room.
        if self.is_forced || self.is_early || job.graph.runs_anything() {
            return None;
        }
        self.is_forced = true;
        let anew = self.stages.iter().map(|(stage, _)| (*stage, Candidates::new(now, false)));
        let anew = anew.collect();
        let asked = std::mem::replace(&mut self.stages, anew);
        let placed = self.place_one(job, fleet, now);
        self.stages = asked;
        self.is_forced = false;
        placed
    }

    fn admits(&self, job: &Job<'_>, stage: StageId, now: Millis) -> bool {
        match job.admission {
            Admission::Off => true,
            Admission::Reserve => reserve_admits(job.graph, stage, now),
            Admission::Paper => job.paper.admits(job.graph, stage),
        }
    }

    fn bind(
        &mut self,
        job: &mut Job<'_>,
        stage: StageId,
        worker: usize,
        work: Work,
        fleet: &mut Fleet,
        now: Millis,
    ) -> Option<(WorkerId, Lease, Bound)> {
        let need = job.graph.stage(stage).need.clone();
        let lease = fleet.workers[worker].fit(&need)?;
        let id = fleet.workers[worker].id.clone();
        let bound = job.graph.bind(work, &id, lease.clone(), now).ok()?;
        fleet.take(worker, &need, &lease, job.graph.adds_bytes(bound.task));
        self.usage.add(&need);
        self.share = fleet.share(&self.usage, job.weight);
        if job.admission == Admission::Paper {
            job.paper.spend(job.graph, stage);
        }
        Some((id, lease, bound))
    }
}

/// The next task of a stage: its worker, and what it reads.
fn choose(
    graph: &JobGraph,
    stage: StageId,
    candidates: &mut Candidates,
    fleet: &mut Fleet,
) -> Option<(usize, Work)> {
    candidates.rank(graph, stage, fleet);
    let ready = graph.ready(stage)?;
    let need = &graph.stage(stage).need;
    let windows = windows(graph, stage, ready.len(), fleet);
    let spares_accelerators = need.accelerator.is_none();
    // First a worker that holds what it will read. A task without an accelerator leaves the cores
    // of a worker that has some to those that need them, as long as there are others.
    if !candidates.has_asked_homes {
        let first = candidates.home.clone();
        let mut holds = |at: usize, fleet: &mut Fleet| {
            fleet.steps += 1;
            let is_spared = spares_accelerators && !fleet.workers[at].devices.is_empty();
            if is_spared || !candidates.fits(graph, stage, at, fleet) {
                return None;
            }
            Some((at, first_that_may(graph, stage, at, fleet)?))
        };
        let found = match fleet.few_homes(ready, need, first.as_ref()) {
            Some(few) => few.into_iter().find_map(|at| holds(at, fleet)),
            None => ready.homes_from(first).find_map(|home| holds(fleet.find(home)?, fleet)),
        };
        if let Some((worker, item)) = found {
            candidates.home = Some(fleet.workers[worker].id.clone());
            return Some((worker, gather(graph, stage, item, Reach::OneHome, windows, fleet)));
        }
        candidates.has_asked_homes = true;
    }
    // Then any worker, with what it holds, or else with what is oldest: of what nobody holds, if there is any.
    for item in ready.at(None).chain(ready.iter()) {
        let avoid = match item {
            ReadyItem::Unit(unit) => graph.failed_on(stage.unit(unit)),
            ReadyItem::Block { .. } | ReadyItem::Output { .. } => &[],
        };
        let worker = candidates.next(graph, stage, avoid, fleet)?;
        if !must_wait(graph, stage, item, worker, fleet) {
            let own = first_that_may(graph, stage, worker, fleet);
            let reach = if own.is_some() { Reach::OneHome } else { Reach::AllHomes };
            return Some((
                worker,
                gather(graph, stage, own.unwrap_or(item), reach, windows, fleet),
            ));
        }
    }
    None
}

/// How many times a stage's `group_rows_max` one task may read. One, unless so much is waiting that each slot has
/// two tasks of more before it: then fewer tasks do the same.
fn windows(graph: &JobGraph, stage: StageId, waiting: usize, fleet: &mut Fleet) -> u64 {
    let spec = graph.stage(stage);
    if spec.group_rows_max == u64::MAX {
        return 1;
    }
    let slots = fleet.offer(&spec.need).slots;
    (waiting as u64 / slots.saturating_mul(2).max(1)).clamp(1, WINDOWS_MAX)
}

/// Whether something waits for another worker to have room: what it wrote on this one could not be
/// read there, and there are others, whose disks do not fail.
fn must_wait(
    graph: &JobGraph,
    stage: StageId,
    item: ReadyItem,
    worker: usize,
    fleet: &mut Fleet,
) -> bool {
    let ReadyItem::Unit(unit) = item else { return false };
    let lost_on = graph.lost_on(stage.unit(unit));
    if !lost_on.contains(&fleet.workers[worker].id) {
        return false;
    }
    fleet.steps += fleet.workers.len() as u64;
    let broken = graph.broken_disks();
    let is_shunned =
        |other: &WorkerState| lost_on.contains(&other.id) || broken.contains(&other.id);
    let others = fleet.workers.iter().filter(|other| !is_shunned(other));
    any_could_ever_fit(others, &graph.stage(stage).need)
}

/// The first thing that lies on a worker, and that has not failed there.
fn first_that_may(
    graph: &JobGraph,
    stage: StageId,
    worker: usize,
    fleet: &mut Fleet,
) -> Option<ReadyItem> {
    let id = fleet.workers[worker].id.clone();
    let steps = &mut fleet.steps;
    graph.ready(stage)?.at(Some(&id)).find(|item| {
        *steps += 1;
        match item {
            ReadyItem::Unit(unit) => !graph.failed_on(stage.unit(*unit)).contains(&id),
            ReadyItem::Block { .. } | ReadyItem::Output { .. } => true,
        }
    })
}

/// From how many workers the blocks of one unit may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    OneHome,
    AllHomes,
}

/// Puts small blocks of one edge together, or outputs, up to the stage's maximum. At least one.
fn gather(
    graph: &JobGraph,
    stage: StageId,
    first: ReadyItem,
    reach: Reach,
    windows: u64,
    fleet: &mut Fleet,
) -> Work {
    let (edge, home) = match first {
        ReadyItem::Unit(unit) => return Work::Unit(stage.unit(unit)),
        ReadyItem::Output { edge, unit } => (edge, graph.home_of_output(unit)),
        ReadyItem::Block { edge, block } => (edge, Some(graph.home_of(block).clone())),
    };
    let one = || Group::of(edge, first);
    let Some(ready) = graph.ready(stage) else { return one().work() };
    if reach == Reach::OneHome {
        let group = fill(graph, stage, edge, ready.at(home.as_ref()), windows, fleet);
        if group.bytes >= graph.group_bytes_min(stage) {
            return group.work();
        }
    }
    fill(graph, stage, edge, ready.iter(), windows, fleet).work()
}

/// What one task will read.
struct Group {
    edge: EdgeId,
    blocks: Vec<BlockId>,
    units: Vec<UnitId>,
    bytes: u64,
}

impl Group {
    fn none_of(edge: EdgeId) -> Self {
        Self { edge, blocks: vec![], units: vec![], bytes: 0 }
    }

    fn of(edge: EdgeId, item: ReadyItem) -> Self {
        let mut group = Self::none_of(edge);
        group.push(item, 0);
        group
    }

    fn push(&mut self, item: ReadyItem, bytes: u64) {
        match item {
            ReadyItem::Block { block, .. } => self.blocks.push(block),
            ReadyItem::Output { unit, .. } => self.units.push(unit),
            ReadyItem::Unit(_) => return,
        }
        self.bytes += bytes;
    }

    fn len(&self) -> usize {
        self.blocks.len() + self.units.len()
    }

    fn work(self) -> Work {
        match self.units.is_empty() {
            true => Work::Blocks { edge: self.edge, blocks: self.blocks },
            false => Work::Outputs { edge: self.edge, units: self.units },
        }
    }
}

fn fill(
    graph: &JobGraph,
    stage: StageId,
    edge: EdgeId,
    items: impl Iterator<Item = ReadyItem>,
    windows: u64,
    fleet: &mut Fleet,
) -> Group {
    let spec = graph.stage(stage);
    let mut bytes_left = spec.group_bytes_max;
    let mut rows_left = spec.group_rows_max.saturating_mul(windows);
    let mut group = Group::none_of(edge);
    for item in items {
        fleet.steps += 1;
        let (found, (bytes, rows)) = match item {
            ReadyItem::Unit(_) => continue,
            ReadyItem::Block { edge, block } => (edge, graph.block_size(block)),
            ReadyItem::Output { edge, unit } => (edge, graph.output_size(unit)),
        };
        if found != edge {
            continue;
        }
        let is_full = bytes > bytes_left
            || rows > rows_left
            || group.len() >= graph.limits().group_blocks_max;
        if is_full && group.len() > 0 {
            break;
        }
        bytes_left = bytes_left.saturating_sub(bytes);
        rows_left = rows_left.saturating_sub(rows);
        group.push(item, bytes);
    }
    group
}
