//! Which workers one round of binding has still to look at, for each stage.

use std::collections::{BTreeSet, VecDeque};

use crate::graph::{JobGraph, Millis, StageId, WorkerId};

use super::fleet::Fleet;
use super::room::{Room, makes_room};
use super::workers::{WorkerState, any_could_ever_fit};
use crate::resources::Need;

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
    is_ranked: bool,
    classes: [VecDeque<usize>; 3],
    full: BTreeSet<usize>,
    now: Millis,
    /// Workers without room for what a task writes are left out.
    needs_room: bool,
    /// What it needs of that. Nothing if all have room for everything.
    room: Option<Room>,
    /// No worker that could run the stage has room.
    nobody_has_room: bool,
}

impl Candidates {
    /// `needs_room`: whether workers without room for what a task writes are left out.
    pub(super) fn new(now: Millis, needs_room: bool) -> Self {
        Self { now, needs_room, ..Self::default() }
    }

    pub(super) fn rank(&mut self, graph: &JobGraph, stage: StageId, fleet: &mut Fleet) {
        if std::mem::replace(&mut self.is_ranked, true) {
            return;
        }
        let need = &graph.stage(stage).need;
        let consumers = graph.streams_to(stage).map(|consumer| &graph.stage(consumer).need);
        let feeds: Vec<_> = consumers.filter(|need| need.accelerator.is_some()).collect();
        self.shun_broken_disks(graph, need, fleet);
        let needs_accelerator = graph.stage(stage).need.accelerator.is_some();
        let class = |worker: &WorkerState| match (needs_accelerator, worker.devices.is_empty()) {
            (true, _) | (false, true) => 0,
            (false, false) if feeds.iter().any(|need| worker.fit(need).is_some()) => 1,
            (false, false) => 2,
        };
        let open = fleet.open(need);
        fleet.steps += open.len() as u64;
        let load = |worker: &WorkerState| if needs_accelerator { worker.device_load() } else { 0 };
        let most_bytes = fleet.is_bounded.then(|| fleet.offer(need).work_bytes);
        let room = most_bytes.map(|most| Room::of(graph, stage, self.now, most));
        self.room = room;
        let rank = |at: usize| {
            let worker = &fleet.workers[at];
            let fullness = room.map_or(0, |room| room.fullness(graph, worker));
            (class(worker), load(worker), worker.cpu_load(), fullness, at)
        };
        let mut ranked: Vec<_> = open.into_iter().map(rank).collect();
        ranked.sort_unstable();
        for (class, _, _, _, at) in ranked {
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

    pub(super) fn fits(
        &mut self,
        graph: &JobGraph,
        stage: StageId,
        worker: usize,
        fleet: &mut Fleet,
    ) -> bool {
        if self.full.contains(&worker) || fleet.workers[worker].is_draining {
            return false;
        }
        fleet.steps += 1;
        let fits = fleet.workers[worker].fit(&graph.stage(stage).need).is_some()
            && self.has_room(graph, stage, worker, fleet);
        if !fits {
            self.full.insert(worker);
        }
        fits
    }

    /// Whether what the next task writes has room on a worker, or as much as elsewhere if it need not wait.
    fn has_room(
        &mut self,
        graph: &JobGraph,
        stage: StageId,
        worker: usize,
        fleet: &mut Fleet,
    ) -> bool {
        let Some(room) = self.room.filter(|_| self.needs_room) else { return true };
        let is_on = |worker: &WorkerState| room.is_on(graph, worker);
        if makes_room(graph, stage) || is_on(&fleet.workers[worker]) {
            return true;
        }
        if graph.is_drained(stage) {
            return false;
        }
        // It is of no use to wait. In a round there is never more room than before.
        if !self.nobody_has_room {
            let broken = graph.broken_disks();
            let others = fleet.workers.iter();
            let others = others.filter(|other| is_on(other) && !broken.contains(&other.id));
            self.nobody_has_room = !any_could_ever_fit(others, &graph.stage(stage).need);
            fleet.steps += fleet.workers.len() as u64;
        }
        self.nobody_has_room
    }

    /// The next worker that has room: within a class one after the other. One of `avoid` only if
    /// there is no other.
    pub(super) fn next(
        &mut self,
        graph: &JobGraph,
        stage: StageId,
        avoid: &[WorkerId],
        fleet: &mut Fleet,
    ) -> Option<usize> {
        let found = self.turn(graph, stage, avoid, fleet);
        let tries_again = found.is_none() && !avoid.is_empty();
        if tries_again { self.turn(graph, stage, &[], fleet) } else { found }
    }

    fn turn(
        &mut self,
        graph: &JobGraph,
        stage: StageId,
        avoid: &[WorkerId],
        fleet: &mut Fleet,
    ) -> Option<usize> {
        for class in 0..self.classes.len() {
            for _ in 0..self.classes[class].len() {
                let worker = self.classes[class].pop_front()?;
                if !self.fits(graph, stage, worker, fleet) {
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
