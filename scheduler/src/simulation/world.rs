//! A cluster in virtual time: workers that run tasks, keep blocks, stop, come back, and send
//! reports late, twice and out of order. The graph and the placement are the real ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use forebay_testkit::random::Random;

use crate::graph::{
    Action, BlockId, BlockReport, Bound, Event, FailureKind, Input, JobGraph, Millis, Step, TaskId,
    UnitInput, WorkerId,
};
use crate::placement::{Admission, Fleet, Job, PaperBudget, WorkerState, in_the_way, place};
use crate::resources::Lease;

use super::received::Received;
use super::reference::Reference;
use super::scenario::{Rows, Scenario};

/// So many steps may be lost that tasks were given away after.
pub(super) const AHEAD_MAX: u32 = 3;

/// How bad the weather is, in percent of the cases where it could strike.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    pub(super) failure: u64,
    pub(super) fatal: u64,
    pub(super) corrupt: u64,
    pub(super) doubled: u64,
    pub(super) dropped: u64,
    pub(super) crash: u64,
    /// When it clears up.
    pub(super) calm_at: u64,
}

#[derive(Debug)]
pub(super) enum Happening {
    Report(Event),
    Read(TaskId),
    Seal(TaskId, usize),
    End(TaskId),
    Stop(TaskId),
    Trouble,
    Calm,
    Resume(WorkerId),
    Wake,
}

#[derive(Debug)]
pub(super) struct Stored {
    pub(super) rows: Rows,
    pub(super) is_corrupt: bool,
    pub(super) is_freed: bool,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) state: WorkerState,
    /// The scheduler believes that it is there.
    pub(super) is_known: bool,
    /// Its process runs.
    pub(super) is_alive: bool,
    /// It neither works nor sends, until it is resumed.
    pub(super) paused_until: u64,
    pub(super) store: BTreeMap<(BlockId, TaskId), Stored>,
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) bound: Bound,
    pub(super) input: UnitInput,
    /// By edge.
    pub(super) whole: Vec<(u32, Vec<Input>)>,
    /// Of how many outputs it was told, if more will come: it began early.
    pub(super) told: Option<u32>,
    /// How many of its inputs it has read, and their rows.
    pub(super) had: usize,
    pub(super) rows: BTreeMap<u32, Rows>,
    pub(super) worker: WorkerId,
    pub(super) lease: Lease,
    /// It has been at work.
    pub(super) is_begun: bool,
    /// The scheduler does not know that it was given to its worker.
    pub(super) is_forgotten: bool,
    pub(super) is_stopped: bool,
    /// What its worker tells another scheduler of it.
    pub(super) sealed: Vec<BlockReport>,
    pub(super) ended: Option<Event>,
    pub(super) fails: Option<FailureKind>,
    pub(super) blocks: Vec<(BlockReport, Rows)>,
    /// What it has read of its blocks.
    pub(super) streamed: Rows,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) rng: Random,
    pub(super) weather: Weather,
    pub(super) admission: Admission,
    pub(super) graph: JobGraph,
    pub(super) paper: PaperBudget,
    pub(super) fleet: Fleet,
    pub(super) reference: Reference,
    pub(super) now: u64,
    pub(super) queue: BinaryHeap<Reverse<(u64, u64)>>,
    pub(super) happenings: BTreeMap<u64, Happening>,
    pub(super) workers: BTreeMap<WorkerId, Worker>,
    pub(super) tasks: BTreeMap<TaskId, Running>,
    pub(super) next: u64,
    pub(super) wakeup: Option<Millis>,
    pub(super) is_calm: bool,
    pub(super) checks_all: bool,
    pub(super) troubles: u64,
    pub(super) trace: Option<Vec<String>>,
    /// What the client has read.
    pub(super) received: Received,
    /// When the scheduler ends, and another one goes on, and what is lost with it.
    pub(super) restarts: Random,
    pub(super) restarted: u64,
    /// Tasks that began early, and those that were in the way.
    pub(super) early: u64,
    pub(super) displaced: u64,
    /// Steps that were lost with it, and tasks that had been given to workers by then.
    pub(super) lost: u64,
    pub(super) lost_tasks: u64,
    /// What it has written down.
    pub(super) written: Vec<Step>,
    /// What stands for the first ones of these, and for how many. A successor does not see them.
    pub(super) snapshot: Option<(usize, Vec<u8>)>,
    pub(super) snapshots: u64,
    /// How many numbers of tasks a successor gives to none.
    pub(super) passes_over: u32,
    /// How much of that is on the disk for certain: somebody has been told what followed from it.
    pub(super) synced: usize,
    /// Somebody was told something since that was noted, or was given a task.
    pub(super) has_told: bool,
    pub(super) has_given: bool,
}

pub(super) type Checked = Result<(), String>;

pub(super) fn ensure(condition: bool, message: impl FnOnce() -> String) -> Checked {
    if condition { Ok(()) } else { Err(message()) }
}

impl World {
    /// Anything may happen, or nothing.
    pub(super) fn random(seed: u64, is_traced: bool) -> Self {
        let mut rng = Random::new(seed);
        let scenario = Scenario::random(&mut rng);
        let weather = match rng.below(4) {
            0 => Weather { calm_at: 100, ..Weather::default() },
            wild => Weather {
                failure: [0, 3, 10][rng.index(3)],
                fatal: u64::from(rng.chance(5)) * 2,
                corrupt: [0, 0, 5][rng.index(3)],
                doubled: 20,
                dropped: [0, 30][rng.index(2)],
                crash: wild * 2,
                calm_at: rng.between(50, 400),
            },
        };
        Self::new(seed, rng, scenario, weather, is_traced)
    }

    /// Everything happens all the time, until it is calm, and nothing of it ends the job.
    pub(super) fn stormy(seed: u64, is_traced: bool) -> Self {
        let mut rng = Random::new(seed);
        let mut scenario = Scenario::random(&mut rng);
        let limits = &mut scenario.spec.limits;
        (limits.unit_failures_max, limits.stage_failures_max) = (u32::MAX, u32::MAX);
        limits.no_progress_max = u32::MAX;
        (limits.unit_losses_max, limits.block_losses_max) = (u32::MAX, u32::MAX);
        let weather = Weather {
            failure: 30,
            fatal: 0,
            corrupt: 20,
            doubled: 40,
            dropped: 40,
            crash: 15,
            calm_at: 500,
        };
        Self::new(seed, rng, scenario, weather, is_traced)
    }

    fn new(
        seed: u64,
        mut rng: Random,
        scenario: Scenario,
        weather: Weather,
        is_traced: bool,
    ) -> Self {
        let admission = match rng.below(8) {
            0 => Admission::Paper,
            1 => Admission::Off,
            _ => Admission::Reserve,
        };
        let mut world = Self {
            graph: JobGraph::try_new(scenario.spec.clone()).unwrap(),
            reference: Reference::new(scenario.spec.clone()),
            scenario,
            weather,
            admission,
            paper: PaperBudget::default(),
            fleet: Fleet::default(),
            now: 0,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            workers: BTreeMap::new(),
            tasks: BTreeMap::new(),
            next: 0,
            wakeup: None,
            is_calm: false,
            checks_all: seed.is_multiple_of(8),
            troubles: 0,
            trace: is_traced.then(Vec::new),
            received: Received::default(),
            restarts: Random::new(seed),
            restarted: 0,
            early: 0,
            displaced: 0,
            lost: 0,
            lost_tasks: 0,
            written: vec![],
            snapshot: None,
            snapshots: 0,
            passes_over: AHEAD_MAX,
            synced: 0,
            has_told: false,
            has_given: false,
            rng,
        };
        world.graph.record_steps();
        world.admit_client();
        for _ in 0..world.rng.between(1, 4) {
            world.join();
        }
        world.at(0, Happening::Report(Event::Started));
        world.at(world.weather.calm_at, Happening::Calm);
        if world.weather.crash > 0 {
            world.at(5, Happening::Trouble);
        }
        world
    }

    pub(super) fn at(&mut self, after: u64, happening: Happening) {
        self.next += 1;
        self.queue.push(Reverse((self.now + after, self.next)));
        self.happenings.insert(self.next, happening);
    }

    pub(super) fn say(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>5} {}", self.now, text()));
        }
    }

    /// Runs until nothing is left to happen.
    pub(super) fn run(&mut self) -> Checked {
        while let Some(Reverse((time, number))) = self.queue.pop() {
            ensure(self.next < 20_000, || "it never ends".to_owned())?;
            self.now = time;
            let Some(happening) = self.happenings.remove(&number) else { continue };
            self.happen(happening)?;
            self.write_down();
            self.restart()?;
        }
        self.check_end()
    }

    fn happen(&mut self, happening: Happening) -> Checked {
        match happening {
            Happening::Report(event) => return self.report(event),
            Happening::Read(task) => self.read(task),
            Happening::Seal(task, at) => self.seal(task, at),
            Happening::End(task) => self.end(task),
            Happening::Stop(task) => {
                self.send(task, Event::TaskEnded { task });
                self.task_mut(task).is_stopped = true;
                Ok(())
            }
            Happening::Trouble => self.trouble(),
            Happening::Calm => return self.calm(),
            Happening::Resume(worker) => {
                self.say(|| format!("{worker} is back"));
                let worker = self.with(&worker);
                worker.is_known = worker.is_alive;
                Ok(())
            }
            Happening::Wake => Ok(()),
        }?;
        self.round()
    }

    pub(super) fn with(&mut self, worker: &WorkerId) -> &mut Worker {
        self.workers.get_mut(worker).unwrap()
    }

    pub(super) fn task_mut(&mut self, task: TaskId) -> &mut Running {
        self.tasks.get_mut(&task).unwrap()
    }

    fn report(&mut self, event: Event) -> Checked {
        self.say(|| format!("{event:?}"));
        self.received(&event);
        let was_running = self.graph.is_running_job();
        let is_running = self.graph.is_running_job();
        tell(&mut self.reference, is_running, &self.tasks, &event);
        let hopeless = if was_running { self.reference.hopeless() } else { BTreeSet::new() };
        let is_fault = matches!(event, Event::WorkerLost { .. } | Event::TaskFailed { .. });
        if let Event::WorkerLost { worker } = &event {
            self.with(worker).is_known = false;
        }
        let lost = match &event {
            Event::WorkerLost { worker } => Some(worker.clone()),
            _ => None,
        };
        let actions = self.graph.apply(event, Millis(self.now));
        let left = lost.map_or(0, |worker| self.graph.bytes_on(&worker));
        let is_over = !self.graph.is_running_job();
        ensure(left == 0 || is_over, || {
            format!("{left} bytes still count of a worker that is lost")
        })?;
        self.check_canceled(&actions, hopeless)?;
        for action in actions {
            self.act(action)?;
        }
        self.check(is_fault)?;
        self.round()
    }

    fn act(&mut self, action: Action) -> Checked {
        self.say(|| format!("    -> {action:?}"));
        match action {
            Action::CancelTask { task, .. } => {
                self.reference.stopped(task);
                let late = self.rng.below(20);
                self.at(late, Happening::Stop(task));
            }
            Action::FreeBlock { block, task, worker } => {
                self.reference.gone(block, task);
                if let Some(stored) = self.with(&worker).store.get_mut(&(block, task)) {
                    stored.is_freed = true;
                }
            }
            Action::Recomputing { .. } | Action::JobFinished => {}
            Action::JobFailed { reason } => self.check_failure(&reason)?,
        }
        Ok(())
    }

    /// A task that waits gives up its worker.
    fn displace(&mut self, task: TaskId) -> Checked {
        self.displaced += 1;
        let actions = self.graph.apply(Event::Displaced { task }, Millis(self.now));
        ensure(actions.len() == 1, || format!("{task} was in the way, and follows {actions:?}"))?;
        actions.into_iter().try_for_each(|action| self.act(action))?;
        self.check(true)
    }

    /// One round of placement, as after every event.
    pub(super) fn round(&mut self) -> Checked {
        let known = self.workers.values().filter(|worker| worker.is_known);
        let workers: Vec<_> = known.map(|worker| worker.state.clone()).collect();
        let ran_anything = self.graph.runs_anything();
        let (before, held) = (self.fills(), self.held());
        let (bindings, displaced) = {
            let (graph, paper, admission) = (&mut self.graph, &mut self.paper, self.admission);
            self.fleet.attend(workers);
            let mut jobs = [Job { id: "job", graph, weight: 1, admission, paper }];
            let bindings = place(&mut jobs, &mut self.fleet, Millis(self.now));
            let is_exact = !self.checks_all || self.fleet.is_exact(&jobs);
            ensure(is_exact, || format!("what is taken was miscounted: {:?}", self.fleet))?;
            (bindings, in_the_way(&jobs, &self.fleet))
        };
        self.check_budget(&before, ran_anything, bindings.iter().map(|b| &b.bound))?;
        self.check_rooms(held, ran_anything, &bindings)?;
        let has_bound = !bindings.is_empty();
        for binding in bindings {
            ensure(!self.workers[&binding.worker].state.is_draining, || "draining".to_owned())?;
            let worker = binding.worker.clone();
            self.start(binding.bound, binding.worker, binding.lease)?;
            self.check_seats(&worker)?;
        }
        if let Some((_, task)) = displaced {
            self.displace(task)?;
        }
        let has_read = self.let_client_read()?;
        self.has_given |= has_bound;
        self.has_told |= has_read;
        if has_bound || has_read {
            self.check(false)?;
        }
        let wakeup = self.graph.next_wakeup();
        if let Some(until) = wakeup.filter(|_| wakeup != self.wakeup) {
            self.at(until.since(Millis(self.now)), Happening::Wake);
        }
        self.wakeup = wakeup;
        Ok(())
    }
}

/// What a report means to the reference.
pub(super) fn tell(
    reference: &mut Reference,
    is_running: bool,
    tasks: &BTreeMap<TaskId, Running>,
    event: &Event,
) {
    if !is_running {
        return;
    }
    match event {
        Event::BlockSealed { task, block } => reference.sealed(*task, block),
        Event::TaskFinished { task, blocks } => reference.finished(*task, blocks),
        Event::TaskFailed { task, failure } if reference.runs(*task) => {
            reference.stopped(*task);
            if let FailureKind::OutputLost { stage, worker } = &failure.kind
                && (tasks[task].bound.range.is_some() || reference.deals_to(*stage, task.stage))
            {
                // It reads a part of it, and says that all of it cannot be had.
                reference.output_gone(*stage, worker);
            }
            let reads = tasks[task].all_inputs();
            for input in reads.filter(|input| match &failure.kind {
                FailureKind::BlockLost(block) => input.block == *block,
                FailureKind::OutputLost { stage, worker } => {
                    input.block.unit.stage == *stage && input.worker == *worker
                }
                _ => false,
            }) {
                reference.gone(input.block, input.writer);
            }
        }
        Event::TaskEnded { task } if reference.runs(*task) => reference.stopped(*task),
        Event::WorkerLost { worker } => reference.worker_lost(worker),
        _ => {}
    }
}

impl Running {
    pub(super) fn all_inputs(&self) -> impl Iterator<Item = Input> + use<> {
        let whole = self.whole.iter().flat_map(|(_, inputs)| inputs);
        self.bound.inputs.iter().chain(whole).cloned().collect::<Vec<_>>().into_iter()
    }
}
