//! The workers, and what the tasks of all jobs take of them.
//!
//! Kept from one round to the next, so that a round costs as much as has changed, not as much as there is. Nothing
//! is counted up and down between rounds: a worker whose tasks have changed is counted anew, from the tasks that
//! run or drain there, so that what is taken cannot leak.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{JobGraph, Ready, WorkerId};
use crate::resources::{Lease, Need, WHOLE};

use super::job::Job;
use super::workers::WorkerState;

/// Different needs of which is remembered what there is for them.
const NEEDS_MAX: usize = 256;

/// The workers, with what is taken of them: what [`place`](super::place) goes on with.
#[derive(Debug, Default)]
pub struct Fleet {
    /// In the order of their ids.
    pub(super) workers: Vec<WorkerState>,
    /// Workers, tasks and blocks looked at in this round.
    pub(super) steps: u64,
    places: BTreeMap<WorkerId, usize>,
    total: Usage,
    /// The jobs of the last round, and what each of them took.
    jobs: BTreeMap<String, Usage>,
    /// Workers that take tasks, by what of them is free. Where all is busy, few are looked at.
    open: Open,
    offers: Vec<(Need, Offer)>,
    /// Some of them may not keep everything.
    pub(super) is_bounded: bool,
    /// What has work and found no worker in the last round needs.
    pub(super) wanting: Vec<Need>,
}

impl Fleet {
    /// These workers attend, and no others. What is said to be taken of them is not looked at.
    pub fn attend(&mut self, mut workers: Vec<WorkerState>) {
        workers.sort_by(|a, b| a.id.cmp(&b.id));
        let same = self.workers.len() == workers.len()
            && self.workers.iter().zip(&workers).all(|(own, given)| own.is_like(given));
        if same {
            return;
        }
        let places = workers.iter().enumerate().map(|(at, worker)| (worker.id.clone(), at));
        self.places = places.collect();
        self.total = Usage::default();
        for worker in &workers {
            self.total.cpus_milli += u64::from(worker.cpus_milli);
            self.total.memory_bytes = self.total.memory_bytes.saturating_add(worker.memory_bytes);
            self.total.accelerators_milli += 1000 * worker.devices.len() as u64;
        }
        self.is_bounded = workers.iter().any(|worker| worker.work_bytes < u64::MAX);
        self.workers = workers;
        self.workers.iter_mut().for_each(WorkerState::free);
        self.open = Open::of(&self.workers);
        // All of it is counted anew.
        self.jobs.clear();
        self.offers.clear();
    }

    /// The workers that attend, in the order of their ids, with what the last round knew to be taken.
    pub fn workers(&self) -> &[WorkerState] {
        &self.workers
    }

    /// One of them.
    pub fn worker(&self, id: &WorkerId) -> Option<&WorkerState> {
        self.find(id).map(|at| &self.workers[at])
    }

    /// Whether all that is taken is what a count from nothing finds.
    #[cfg(test)]
    pub(crate) fn is_exact(&self, jobs: &[Job<'_>]) -> bool {
        let (workers, places) = (self.workers.clone(), self.places.clone());
        let mut anew = Self { workers, places, ..Self::default() };
        anew.count_all(jobs);
        anew.workers == self.workers && anew.open == self.open
    }

    /// A round begins: brings what is taken up to date.
    pub(super) fn refresh(&mut self, jobs: &mut [Job<'_>]) {
        self.steps = 0;
        let are_same =
            jobs.len() == self.jobs.len() && jobs.iter().all(|job| self.jobs.contains_key(job.id));
        let mut changed = BTreeSet::new();
        for job in jobs.iter_mut() {
            let own = job.graph.take_changed_slots();
            if !own.is_empty() || !are_same {
                self.jobs.insert(job.id.to_owned(), Usage::of(job.graph));
                self.steps += own.len() as u64;
            }
            changed.extend(own);
            let held = job.graph.take_changed_holdings();
            let counts = |id: &WorkerId| self.worker(id).is_some_and(|w| w.work_bytes < u64::MAX);
            changed.extend(held.into_iter().filter(counts));
        }
        if are_same {
            changed.into_iter().for_each(|worker| self.count(&worker, jobs));
        } else {
            self.jobs.retain(|id, _| jobs.iter().any(|job| job.id == id));
            self.count_all(jobs);
        }
    }

    fn count(&mut self, worker: &WorkerId, jobs: &[Job<'_>]) {
        let Some(at) = self.find(worker) else { return };
        self.workers[at].free();
        for job in jobs {
            self.steps += 1;
            for (stage, lease) in job.graph.slots_on(worker) {
                self.workers[at].take(&job.graph.stage(stage).need, lease);
            }
            self.workers[at].hold(job.graph.bytes_on(worker));
        }
        self.open.note(at, &self.workers[at]);
    }

    fn count_all(&mut self, jobs: &[Job<'_>]) {
        self.workers.iter_mut().for_each(WorkerState::free);
        self.steps += self.workers.len() as u64;
        for job in jobs {
            for (worker, stage, lease) in job.graph.slots() {
                self.steps += 1;
                if let Some(at) = self.places.get(worker) {
                    self.workers[*at].take(&job.graph.stage(stage).need, lease);
                }
            }
            for (worker, bytes) in job.graph.bytes_by_worker() {
                self.steps += 1;
                if let Some(at) = self.places.get(worker) {
                    self.workers[*at].hold(bytes);
                }
            }
        }
        self.open = Open::of(&self.workers);
    }

    /// A round has ended after which a job takes this. What it has bound was taken one by one: only what happens
    /// from now on is counted anew.
    pub(super) fn bound(&mut self, job: &mut Job<'_>, usage: Usage) {
        job.graph.take_changed_slots();
        if let Some(known) = self.jobs.get_mut(job.id) {
            *known = usage;
        }
    }

    /// A task was bound in this round, which is expected to add so many bytes to what lies there.
    pub(super) fn take(&mut self, at: usize, need: &Need, lease: &Lease, bytes: u64) {
        self.workers[at].take(need, lease);
        self.workers[at].hold(bytes);
        self.open.note(at, &self.workers[at]);
    }

    pub(super) fn find(&self, worker: &WorkerId) -> Option<usize> {
        self.places.get(worker).copied()
    }

    /// The places of the workers that may have room for a task.
    pub(super) fn open(&self, need: &Need) -> Vec<usize> {
        self.open.to(need).iter().copied().collect()
    }

    /// The places of workers that may have room for a task and hold something that is ready, from `first` on: if
    /// they are fewer than those that hold something.
    pub(super) fn few_homes(
        &self,
        ready: &Ready,
        need: &Need,
        first: Option<&WorkerId>,
    ) -> Option<Vec<usize>> {
        let open = self.open.to(need);
        if open.len() >= ready.homes() {
            return None;
        }
        let first = first.and_then(|first| self.find(first)).unwrap_or(0);
        let open = open.range(first..).copied();
        Some(open.filter(|at| ready.holds(&self.workers[*at].id)).collect())
    }

    /// What there is for tasks of a need, if nothing were taken.
    pub(super) fn offer(&mut self, need: &Need) -> Offer {
        if let Some((_, offer)) = self.offers.iter().find(|(known, _)| known == need) {
            return *offer;
        }
        self.steps += self.workers.len() as u64;
        let mut offer = Offer::default();
        for worker in self.workers.iter().filter(|worker| !worker.is_draining) {
            let slots = worker.slots(need);
            offer.slots = offer.slots.saturating_add(slots);
            if slots > 0 {
                offer.work_bytes = offer.work_bytes.max(worker.work_bytes);
            }
        }
        if self.offers.len() >= NEEDS_MAX {
            self.offers.clear();
        }
        self.offers.push((need.clone(), offer));
        offer
    }

    /// What a job took at the begin of the round.
    pub(super) fn usage(&self, job: &str) -> Usage {
        self.jobs.get(job).copied().unwrap_or_default()
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

/// The places of workers that take tasks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Open {
    all: BTreeSet<usize>,
    /// With cores that are free.
    with_cores: BTreeSet<usize>,
    /// With an accelerator of which something is free.
    with_devices: BTreeSet<usize>,
}

impl Open {
    fn of(workers: &[WorkerState]) -> Self {
        let mut open = Self::default();
        workers.iter().enumerate().for_each(|(at, worker)| open.note(at, worker));
        open
    }

    fn note(&mut self, at: usize, worker: &WorkerState) {
        let takes_tasks = !worker.is_draining;
        let has_cores = worker.used_cpus_milli < worker.cpus_milli;
        let has_device = worker.devices.iter().any(|device| device.used_milli < WHOLE);
        set(&mut self.all, at, takes_tasks);
        set(&mut self.with_cores, at, takes_tasks && has_cores);
        set(&mut self.with_devices, at, takes_tasks && has_device);
    }

    /// Those that may have room for a task.
    fn to(&self, need: &Need) -> &BTreeSet<usize> {
        match (&need.accelerator, need.cpus_milli) {
            (Some(_), _) => &self.with_devices,
            (None, 0) => &self.all,
            (None, _) => &self.with_cores,
        }
    }
}

fn set(places: &mut BTreeSet<usize>, at: usize, is_in: bool) {
    match is_in {
        true => places.insert(at),
        false => places.remove(&at),
    };
}

/// What there is for tasks of one need, if nothing were taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offer {
    /// How many of them could run at once.
    pub(super) slots: u64,
    /// The most that a worker of them may keep of what they write.
    pub(super) work_bytes: u64,
}

/// What one job takes of the cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    cpus_milli: u64,
    memory_bytes: u64,
    accelerators_milli: u64,
}

impl Usage {
    fn of(graph: &JobGraph) -> Self {
        let mut usage = Self::default();
        graph.slots().for_each(|(_, stage, _)| usage.add(&graph.stage(stage).need));
        usage
    }

    pub(super) fn add(&mut self, need: &Need) {
        self.cpus_milli += u64::from(need.cpus_milli);
        self.memory_bytes = self.memory_bytes.saturating_add(need.memory());
        self.accelerators_milli +=
            need.accelerator.as_ref().map_or(0, |accelerator| u64::from(accelerator.milli()));
    }
}
