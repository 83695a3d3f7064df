//! What one round of binding knows of the workers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::graph::{JobGraph, StageId, WorkerId};

use super::workers::{WorkerState, any_could_ever_fit};
use crate::resources::Need;

/// The workers, with what every job's tasks take of them. Made anew for each round from the tasks
/// that run or drain, so that nothing is ever forgotten to be given back.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) workers: Vec<WorkerState>,
    /// Workers, tasks and blocks looked at.
    pub(super) steps: u64,
    places: BTreeMap<WorkerId, usize>,
    total: Usage,
}

impl Fleet {
    pub(super) fn new<'a>(
        workers: &[WorkerState],
        jobs: impl Iterator<Item = &'a JobGraph>,
    ) -> Self {
        let places = workers.iter().enumerate().map(|(at, worker)| (worker.id.clone(), at));
        let places: BTreeMap<_, _> = places.collect();
        let mut workers = workers.to_vec();
        let mut steps = workers.len() as u64;
        for job in jobs {
            for (worker, stage, lease) in job.slots() {
                steps += 1;
                if let Some(at) = places.get(worker) {
                    workers[*at].take(&job.stage(stage).need, lease);
                }
            }
        }
        let mut total = Usage::default();
        for worker in &workers {
            total.cpus_milli += u64::from(worker.cpus_milli);
            total.memory_bytes = total.memory_bytes.saturating_add(worker.memory_bytes);
            total.accelerators_milli += 1000 * worker.devices.len() as u64;
        }
        Self { workers, steps, places, total }
    }

    pub(super) fn find(&self, worker: &WorkerId) -> Option<usize> {
        self.places.get(worker).copied()
    }

    /// The largest part that a job has of anything, per weight.
    pub(super) fn share(&self, usage: &Usage, weight: u32) -> f64 {
        let part = |used: u64, total: u64| used as f64 / total.max(1) as f64;
        let cpus = part(usage.cpus_milli, self.total.cpus_milli);
        let memory = part(usage.memory_bytes, self.total.memory_bytes);
        let accelerators = part(usage.accelerators_milli, self.total.accelerators_milli);
        cpus.max(memory).max(accelerators) / f64::from(weight.max(1))
    }
}

/// What one task may read, however much is waiting.
const WINDOWS_MAX: u64 = 16;

/// What one job takes of the cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    cpus_milli: u64,
    memory_bytes: u64,
    accelerators_milli: u64,
}

impl Usage {
    pub(super) fn of(graph: &JobGraph) -> Self {
        let mut usage = Self::default();
        graph.slots().for_each(|(_, stage, _)| usage.add(&graph.stage(stage).need));
        usage
    }

    pub(super) fn add(&mut self, need: &Need) {
        self.cpus_milli += u64::from(need.cpus_milli);
        self.memory_bytes = self.memory_bytes.saturating_add(need.memory_bytes);
        self.accelerators_milli +=
            need.accelerator.as_ref().map_or(0, |accelerator| u64::from(accelerator.milli()));
    }
}

/// The workers for the tasks of one stage, by class, the best first. A worker that was found full
/// is not looked at again in the same round.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// There is no worker for this stage.
    pub(super) is_closed: bool,
    /// The worker that was last given what it holds. Those before it cannot be given any more.
    pub(super) home: Option<WorkerId>,
    /// There is no worker left that can be given what it holds.
    pub(super) has_asked_homes: bool,
    /// How many tasks of the stage could run at once.
    slots: u64,
    is_ranked: bool,
    classes: [VecDeque<usize>; 3],
    full: BTreeSet<usize>,
}

impl Candidates {
    pub(super) fn rank(&mut self, graph: &JobGraph, stage: StageId, fleet: &mut Fleet) {
        if std::mem::replace(&mut self.is_ranked, true) {
            return;
        }
        let need = &graph.stage(stage).need;
        let slots = fleet.workers.iter().filter(|worker| !worker.is_draining);
        self.slots = slots.map(|worker| worker.slots(need)).fold(0, u64::saturating_add);
        let consumers = graph.streams_to(stage).map(|consumer| &graph.stage(consumer).need);
        let feeds: Vec<_> = consumers.filter(|need| need.accelerator.is_some()).collect();
        self.shun_broken_disks(graph, need, fleet);
        let needs_accelerator = graph.stage(stage).need.accelerator.is_some();
        let class = |worker: &WorkerState| match (needs_accelerator, worker.devices.is_empty()) {
            (true, _) | (false, true) => 0,
            (false, false) if feeds.iter().any(|need| worker.fit(need).is_some()) => 1,
            (false, false) => 2,
        };
        fleet.steps += fleet.workers.len() as u64;
        let serving = fleet.workers.iter().enumerate().filter(|(_, worker)| !worker.is_draining);
        let load = |worker: &WorkerState| if needs_accelerator { worker.device_load() } else { 0 };
        let mut ranked: Vec<_> = serving
            .map(|(at, worker)| (class(worker), load(worker), worker.cpu_load(), at))
            .collect();
        ranked.sort_unstable();
        for (class, _, _, at) in ranked {
            self.classes[class].push_back(at);
        }
    }

    /// A worker whose disk fails is as good as full, as long as another can run the stage.
    fn shun_broken_disks(&mut self, graph: &JobGraph, need: &Need, fleet: &mut Fleet) {
        let broken = graph.broken_disks();
        if broken.is_empty() {
            return;
        }
        fleet.steps += fleet.workers.len() as u64;
        let is_broken = |worker: &WorkerState| broken.contains(&worker.id);
        let others = fleet.workers.iter().filter(|worker| !is_broken(worker));
        if any_could_ever_fit(others, need) {
            let all = fleet.workers.iter().enumerate();
            self.full.extend(all.filter(|(_, worker)| is_broken(worker)).map(|(at, _)| at));
        }
    }

    /// How many times a stage's `group_rows_max` one task may read. One, unless so much is waiting
    /// that each slot has two tasks of more before it: then fewer tasks do the same.
    pub(super) fn windows(&self, waiting: usize) -> u64 {
        (waiting as u64 / self.slots.saturating_mul(2).max(1)).clamp(1, WINDOWS_MAX)
    }

    pub(super) fn fits(&mut self, worker: usize, need: &Need, fleet: &mut Fleet) -> bool {
        if self.full.contains(&worker) || fleet.workers[worker].is_draining {
            return false;
        }
        fleet.steps += 1;
        let fits = fleet.workers[worker].fit(need).is_some();
        if !fits {
            self.full.insert(worker);
        }
        fits
    }

    /// The next worker that has room: within a class one after the other. One of `avoid` only if
    /// there is no other.
    pub(super) fn next(
        &mut self,
        need: &Need,
        avoid: &[WorkerId],
        fleet: &mut Fleet,
    ) -> Option<usize> {
        let found = self.turn(need, avoid, fleet);
        if found.is_none() && !avoid.is_empty() { self.turn(need, &[], fleet) } else { found }
    }

    fn turn(&mut self, need: &Need, avoid: &[WorkerId], fleet: &mut Fleet) -> Option<usize> {
        for class in 0..self.classes.len() {
            for _ in 0..self.classes[class].len() {
                let worker = self.classes[class].pop_front()?;
                if !self.fits(worker, need, fleet) {
                    continue;
                }
                self.classes[class].push_back(worker);
                if !avoid.contains(&fleet.workers[worker].id) {
                    return Some(worker);
                }
            }
        }
        None
    }
}
