//! A cluster in virtual time: workers that run tasks, keep blocks, stop, come back, and send
//! reports late, twice and out of order. The graph and the placement are the real ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::graph::{
    Action, BlockId, BlockReport, Bound, Event, Failure, FailureKind, Input, JobFailure, JobGraph,
    JobStatus, Millis, TaskId, UnitId, UnitInput, UnitState, WorkerId, check,
};
use crate::placement::{Admission, Device, Job, Lease, PaperBudget, Policy, WorkerState, place};

use super::reference::Reference;
use super::rng::Rng;
use super::scenario::{Rows, Scenario};

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
enum Happening {
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
struct Stored {
    rows: Rows,
    is_corrupt: bool,
    is_freed: bool,
}

#[derive(Debug)]
struct Worker {
    state: WorkerState,
    /// The scheduler believes that it is there.
    is_known: bool,
    /// Its process runs.
    is_alive: bool,
    /// It neither works nor sends, until it is resumed.
    paused_until: u64,
    store: BTreeMap<(BlockId, TaskId), Stored>,
}

#[derive(Debug)]
struct Running {
    bound: Bound,
    input: UnitInput,
    whole: Vec<(u32, Vec<Input>)>,
    worker: WorkerId,
    lease: Lease,
    is_stopped: bool,
    fails: Option<FailureKind>,
    blocks: Vec<(BlockReport, Rows)>,
}

#[derive(Debug)]
pub(super) struct World {
    scenario: Scenario,
    rng: Rng,
    weather: Weather,
    policy: Policy,
    pub(super) graph: JobGraph,
    paper: PaperBudget,
    reference: Reference,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    workers: BTreeMap<WorkerId, Worker>,
    tasks: BTreeMap<TaskId, Running>,
    next: u64,
    is_calm: bool,
    checks_all: bool,
    pub(super) troubles: u64,
    pub(super) trace: Option<Vec<String>>,
}

type Checked = Result<(), String>;

fn ensure(condition: bool, message: impl FnOnce() -> String) -> Checked {
    if condition { Ok(()) } else { Err(message()) }
}

impl World {
    pub(super) fn new(seed: u64, is_traced: bool) -> Self {
        let mut rng = Rng::new(seed);
        let scenario = Scenario::random(&mut rng);
        let weather = match rng.below(4) {
            0 => Weather { calm_at: 100, ..Weather::default() },
            wild => Weather {
                failure: [0, 3, 10][rng.below(3) as usize],
                fatal: u64::from(rng.chance(5)) * 2,
                corrupt: [0, 0, 5][rng.below(3) as usize],
                doubled: 20,
                dropped: [0, 30][rng.below(2) as usize],
                crash: wild * 2,
                calm_at: rng.between(50, 400),
            },
        };
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
            policy: Policy { admission },
            paper: PaperBudget::default(),
            now: 0,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            workers: BTreeMap::new(),
            tasks: BTreeMap::new(),
            next: 0,
            is_calm: false,
            checks_all: is_traced || seed.is_multiple_of(8),
            troubles: 0,
            trace: is_traced.then(Vec::new),
            rng,
        };
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

    fn at(&mut self, after: u64, happening: Happening) {
        self.next += 1;
        self.queue.push(Reverse((self.now + after, self.next)));
        self.happenings.insert(self.next, happening);
    }

    fn say(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>5} {}", self.now, text()));
        }
    }

    fn join(&mut self) -> WorkerId {
        let id = WorkerId::new(format!("w{}", self.workers.len()));
        let devices = (0..self.rng.below(3)).map(|_| Device::new("cuda", 1)).collect();
        let state = WorkerState::new(id.clone(), self.rng.between(1, 3) as u32 * 1000, 1);
        let worker = Worker {
            state: state.with_devices(devices),
            is_known: true,
            is_alive: true,
            paused_until: 0,
            store: BTreeMap::new(),
        };
        self.say(|| format!("{} joins", worker.state));
        self.workers.insert(id.clone(), worker);
        id
    }

    /// Runs until nothing is left to happen.
    pub(super) fn run(&mut self) -> Checked {
        while let Some(Reverse((time, number))) = self.queue.pop() {
            ensure(self.next < 20_000, || "it never ends".to_owned())?;
            self.now = time;
            let Some(happening) = self.happenings.remove(&number) else { continue };
            self.happen(happening)?;
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

    fn with(&mut self, worker: &WorkerId) -> &mut Worker {
        self.workers.get_mut(worker).unwrap()
    }

    fn task_mut(&mut self, task: TaskId) -> &mut Running {
        self.tasks.get_mut(&task).unwrap()
    }

    /// Sends a report: late, perhaps twice. Announcements may get lost.
    fn send(&mut self, task: TaskId, event: Event) {
        let worker = &self.workers[&self.tasks[&task].worker];
        if !worker.is_alive {
            return;
        }
        let paused = worker.paused_until.saturating_sub(self.now);
        let is_announcement = matches!(event, Event::BlockSealed { .. });
        if self.rng.chance(self.weather.doubled) {
            let late = paused + self.rng.below(60);
            self.at(late, Happening::Report(event.clone()));
        }
        if !(is_announcement && self.rng.chance(self.weather.dropped)) {
            let late = paused + self.rng.below(5);
            self.at(late, Happening::Report(event));
        }
    }

    fn report(&mut self, event: Event) -> Checked {
        self.say(|| format!("{event:?}"));
        let was_running = self.graph.is_running_job();
        self.tell_reference(&event);
        let hopeless = match was_running {
            true => self.reference.hopeless(),
            false => BTreeSet::new(),
        };
        let is_fault = matches!(event, Event::WorkerLost { .. } | Event::TaskFailed { .. });
        if let Event::WorkerLost { worker } = &event {
            self.with(worker).is_known = false;
        }
        let actions = self.graph.apply(event, Millis(self.now));
        self.check_canceled(&actions, hopeless)?;
        for action in actions {
            self.act(action)?;
        }
        self.check(is_fault)?;
        self.round()
    }

    fn tell_reference(&mut self, event: &Event) {
        if !self.graph.is_running_job() {
            return;
        }
        match event {
            Event::BlockSealed { task, block } => self.reference.sealed(*task, block),
            Event::TaskFinished { task, blocks } => self.reference.finished(*task, blocks),
            Event::TaskFailed { task, failure } if self.reference.runs(*task) => {
                self.reference.stopped(*task);
                let reads = self.tasks[task].all_inputs();
                for input in reads.filter(|input| match failure.kind {
                    FailureKind::BlockLost(block) => input.block == block,
                    FailureKind::OutputLost(unit) => input.block.unit == unit,
                    _ => false,
                }) {
                    self.reference.gone(input.block, input.writer);
                }
            }
            Event::TaskEnded { task } if self.reference.runs(*task) => {
                self.reference.stopped(*task);
            }
            Event::WorkerLost { worker } => self.reference.worker_lost(worker),
            _ => {}
        }
    }

    /// Canceled are exactly those that read what is gone. At the end of the job: all that run.
    fn check_canceled(&self, actions: &[Action], hopeless: BTreeSet<TaskId>) -> Checked {
        let canceled: BTreeSet<_> = actions
            .iter()
            .filter_map(|action| match action {
                Action::CancelTask { task, .. } => Some(*task),
                _ => None,
            })
            .collect();
        let is_over = !self.graph.is_running_job();
        ensure(is_over || canceled == hopeless, || {
            format!("canceled {canceled:?}, and what reads lost blocks is {hopeless:?}")
        })
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

    fn check_failure(&self, reason: &JobFailure) -> Checked {
        let JobFailure::Unit(failed) = reason else {
            return Err(format!("the job failed for no reason: {reason}"));
        };
        let is_fatal = failed.limit.is_empty() && failed.message == "injected fatal";
        let is_worn_out = !failed.limit.is_empty() && failed.attempts > 0;
        ensure((is_fatal && self.weather.fatal > 0) || is_worn_out, || reason.to_string())
    }

    /// Everything that always holds. The costly half is asked of some histories at every event,
    /// and of all of them after a fault.
    fn check(&self, is_fault: bool) -> Checked {
        if is_fault || self.checks_all {
            check(&self.graph)?;
            self.check_lineage()?;
        }
        Ok(())
    }

    fn check_lineage(&self) -> Checked {
        if !self.graph.is_running_job() {
            return Ok(());
        }
        let not_done = self.reference.not_done();
        for (id, known) in &self.reference.units {
            let state = self.graph.unit_state(*id);
            let expected = match (known.running, not_done.contains(id)) {
                (Some(task), _) => state == UnitState::Running(task.index),
                (None, true) => state == UnitState::Pending,
                (None, false) => matches!(state, UnitState::Done(_)),
            };
            ensure(expected, || {
                let must = not_done.contains(id);
                format!("unit {id} is {state:?}; it must run: {must}, known: {known:?}")
            })?;
        }
        Ok(())
    }

    /// One round of placement, as after every event.
    fn round(&mut self) -> Checked {
        let known = self.workers.values().filter(|worker| worker.is_known);
        let workers: Vec<_> = known.map(|worker| worker.state.clone()).collect();
        let ran_anything = self.graph.runs_anything();
        let before = self.fills();
        let bindings = {
            let (graph, paper) = (&mut self.graph, &mut self.paper);
            place(&mut [Job { graph, weight: 1, paper }], &workers, Millis(self.now), self.policy)
        };
        self.check_budget(&before, ran_anything, bindings.iter().map(|b| &b.bound))?;
        let has_bound = !bindings.is_empty();
        for binding in bindings {
            ensure(!self.workers[&binding.worker].state.is_draining, || "draining".to_owned())?;
            let worker = binding.worker.clone();
            self.start(binding.bound, binding.worker, binding.lease)?;
            self.check_seats(&worker)?;
        }
        if has_bound {
            self.check(false)?;
        }
        if let Some(until) = self.graph.next_wakeup() {
            self.at(until.since(Millis(self.now)), Happening::Wake);
        }
        Ok(())
    }

    fn fills(&self) -> Vec<Vec<(u64, u64)>> {
        if self.policy.admission != Admission::Reserve {
            return vec![];
        }
        let stages = (0..self.scenario.spec.stages.len() as u32).map(crate::graph::StageId);
        let fill = |edge: crate::graph::EdgeFill| {
            (edge.unconsumed_bytes + edge.expected_bytes, edge.budget_bytes)
        };
        stages.map(|stage| self.graph.budgeted_outputs(stage).map(fill).collect()).collect()
    }

    /// An edge is only filled above its budget by one producer that found it empty, or that was
    /// let in because nothing ran at all.
    fn check_budget<'a>(
        &self,
        before: &[Vec<(u64, u64)>],
        ran_anything: bool,
        bound: impl Iterator<Item = &'a Bound> + Clone,
    ) -> Checked {
        for (stage, (before, after)) in (0..).zip(before.iter().zip(self.fills())) {
            let new = bound.clone().filter(|bound| bound.unit.stage.0 == stage);
            // What a re-run writes is known, and need not be what is expected of a new one.
            let is_rerun = new.clone().any(|bound| bound.attempt > 1);
            let new = new.count();
            for ((was, _), (is, budget)) in before.iter().zip(after) {
                let may_exceed = new == 0 || is_rerun || (new == 1 && (*was == 0 || !ran_anything));
                ensure(is <= budget || may_exceed, || {
                    format!("stage {stage}: {was} bytes became {is} of {budget}, by {new} tasks")
                })?;
            }
        }
        Ok(())
    }

    fn start(&mut self, bound: Bound, worker: WorkerId, lease: Lease) -> Checked {
        self.say(|| format!("    {} runs unit {} on {worker}: {bound:?}", bound.task, bound.unit));
        let rows = self.graph.task_rows().find(|row| row.id == bound.task);
        let input = rows.map(|row| row.input.clone()).unwrap();
        let producer = match &input {
            UnitInput::Output(unit) => Some(*unit),
            _ => None,
        };
        self.reference.bound(&bound, producer, &worker);
        let edges = (0..).zip(&self.scenario.spec.edges);
        let blocking = edges.filter(|(_, e)| e.to == bound.unit.stage && e.kind.is_blocking());
        let whole = blocking.map(|(edge, e)| (edge, self.graph.outputs(e.from).collect()));
        let whole = whole.collect();
        let fails = self.pick_failure();
        let task = bound.task;
        let running = Running {
            whole,
            input,
            worker: worker.clone(),
            lease,
            is_stopped: false,
            fails,
            blocks: vec![],
            bound,
        };
        self.tasks.insert(task, running);
        if self.workers[&worker].is_alive {
            let paused = self.workers[&worker].paused_until.saturating_sub(self.now);
            let late = paused + self.rng.below(10);
            self.at(late, Happening::Read(task));
        }
        Ok(())
    }

    /// What really runs on a worker fits there, with what was canceled and has not stopped. Not
    /// known of a worker that was given up and came back: it still runs what is forgotten here.
    fn check_seats(&self, worker: &WorkerId) -> Checked {
        let found = &self.workers[worker];
        if !found.is_alive || found.paused_until > 0 {
            return Ok(());
        }
        let mut state = found.state.clone();
        for (task, running) in &self.tasks {
            if running.worker == *worker && !running.is_stopped {
                let need = &self.scenario.spec.stages[task.stage.0 as usize].need;
                state.take(need, &running.lease);
            }
        }
        let is_full = |device: &Device| device.used_milli > 1000;
        let is_over = state.used_cpus_milli > state.cpus_milli || state.devices.iter().any(is_full);
        ensure(!is_over, || format!("more runs than fits: {state:?}"))
    }

    fn pick_failure(&mut self) -> Option<FailureKind> {
        if self.is_calm {
            return None;
        }
        if self.rng.chance(self.weather.fatal) {
            return Some(
                [FailureKind::User, FailureKind::Data][self.rng.below(2) as usize].clone(),
            );
        }
        let kinds = [
            FailureKind::Passing,
            FailureKind::OutOfMemory,
            FailureKind::DeviceBroken,
            FailureKind::WorkerLost,
        ];
        let fails = self.rng.chance(self.weather.failure);
        fails.then(|| kinds[self.rng.below(4) as usize].clone())
    }

    /// Whether a task still does anything. A paused worker goes on later.
    fn works(&self, task: TaskId) -> bool {
        let running = &self.tasks[&task];
        !running.is_stopped && self.workers[&running.worker].is_alive
    }

    /// A task fetches its input, and makes its output of it.
    fn read(&mut self, task: TaskId) -> Checked {
        if !self.works(task) {
            return Ok(());
        }
        let mut streamed = Rows::new();
        let mut whole = BTreeMap::<u32, Rows>::new();
        let running = &self.tasks[&task];
        let streams = running.bound.inputs.iter().map(|input| (None, input));
        let reads = running
            .whole
            .iter()
            .flat_map(|(edge, inputs)| inputs.iter().map(move |input| (Some(*edge), input)));
        let is_wanted = self.graph.is_running_job() && self.reference.runs(task);
        for (edge, _) in &running.whole {
            whole.entry(*edge).or_default();
        }
        let mut lost = None;
        for (edge, input) in streams.chain(reads) {
            let holder = &self.workers[&input.worker];
            let stored = holder.store.get(&(input.block, input.writer));
            if let Some(stored) = stored.filter(|_| is_wanted) {
                ensure(!stored.is_freed, || format!("{task} reads {}, deleted", input.block))?;
            }
            let serves = holder.is_alive && holder.paused_until <= self.now;
            match stored.filter(|stored| serves && !stored.is_corrupt) {
                None => {
                    lost = Some(input.block);
                    break;
                }
                Some(stored) => {
                    ensure(stored.rows.len() as u64 == input.rows, || "row count".to_owned())?;
                    let rows = match edge {
                        None => &mut streamed,
                        Some(edge) => whole.entry(edge).or_default(),
                    };
                    rows.extend(&stored.rows);
                }
            }
        }
        if let Some(block) = lost {
            self.task_mut(task).is_stopped = true;
            let kind = match self.rng.chance(70) {
                true => FailureKind::BlockLost(block),
                false => FailureKind::OutputLost(block.unit),
            };
            let failure = Failure::new(kind, "cannot be fetched");
            self.send(task, Event::TaskFailed { task, failure });
            return Ok(());
        }
        let running = &self.tasks[&task];
        let rows = self.scenario.run(task.stage, &running.input, streamed, &whole);
        let blocks = self.scenario.cut(task, rows);
        let mut time = 0;
        for at in 0..blocks.len() {
            time += self.rng.between(1, 15);
            self.at(time, Happening::Seal(task, at));
        }
        self.at(time + 1, Happening::End(task));
        self.task_mut(task).blocks = blocks;
        Ok(())
    }

    fn seal(&mut self, task: TaskId, at: usize) -> Checked {
        if !self.works(task) {
            return Ok(());
        }
        let running = &self.tasks[&task];
        let (report, rows) = running.blocks[at].clone();
        if running.bound.skip.contains(&report.seq) {
            return Ok(());
        }
        let is_corrupt = !self.is_calm && self.rng.chance(self.weather.corrupt);
        let block = self.tasks[&task].bound.unit.block(report.seq);
        let worker = self.tasks[&task].worker.clone();
        let stored = Stored { rows, is_corrupt, is_freed: false };
        self.with(&worker).store.insert((block, task), stored);
        self.send(task, Event::BlockSealed { task, block: report });
        // A failing task often does so in the middle.
        if self.tasks[&task].fails.is_some() && self.rng.chance(30) {
            return self.end(task);
        }
        Ok(())
    }

    fn end(&mut self, task: TaskId) -> Checked {
        if !self.works(task) {
            return Ok(());
        }
        self.task_mut(task).is_stopped = true;
        let running = &self.tasks[&task];
        let event = match running.fails.clone() {
            Some(kind) => {
                let is_fatal = matches!(kind, FailureKind::User | FailureKind::Data);
                let message = if is_fatal { "injected fatal" } else { "injected" };
                Event::TaskFailed { task, failure: Failure::new(kind, message) }
            }
            None => {
                let reports = running.blocks.iter().map(|(report, _)| *report);
                // What was skipped may be told or left out.
                let told = |report: &BlockReport| {
                    task.index.is_multiple_of(2) || !running.bound.skip.contains(&report.seq)
                };
                Event::TaskFinished { task, blocks: reports.filter(told).collect() }
            }
        };
        self.send(task, event);
        Ok(())
    }

    /// Something happens to the cluster, perhaps.
    fn trouble(&mut self) -> Checked {
        if self.is_calm || !self.graph.is_running_job() {
            return Ok(());
        }
        let later = self.rng.between(5, 30);
        self.at(later, Happening::Trouble);
        if !self.rng.chance(self.weather.crash * 5) {
            return Ok(());
        }
        let is_well = |w: &Worker| w.is_known && w.is_alive && w.paused_until <= self.now;
        let well = self.workers.iter().filter(|(_, worker)| is_well(worker));
        let known: Vec<_> = well.map(|(id, _)| id.clone()).collect();
        let picked = known.get(self.rng.below(known.len() as u64) as usize).cloned();
        match (self.rng.below(5), picked) {
            (0, _) | (_, None) => {
                self.join();
            }
            (1, Some(worker)) => {
                self.say(|| format!("{worker} drains"));
                self.with(&worker).state.is_draining = true;
            }
            (2, Some(worker)) => self.pause(worker),
            (_, Some(worker)) => self.crash(worker),
        }
        Ok(())
    }

    fn crash(&mut self, worker: WorkerId) {
        self.say(|| format!("{worker} dies"));
        self.troubles += 1;
        self.with(&worker).is_alive = false;
        let late = self.rng.below(15);
        // Until that is noticed, it may still be given work.
        self.at(late, Happening::Report(Event::WorkerLost { worker }));
    }

    /// Silent for so long that it is given up, and then it comes back with all its reports.
    fn pause(&mut self, worker: WorkerId) {
        self.troubles += 1;
        let length = self.rng.between(20, 80);
        let until = self.now + length;
        self.say(|| format!("{worker} is silent until {until}"));
        self.with(&worker).paused_until = until;
        let noticed = self.rng.between(5, 19);
        self.at(noticed, Happening::Report(Event::WorkerLost { worker: worker.clone() }));
        self.at(length, Happening::Resume(worker));
    }

    /// From now on nothing goes wrong, and there is a worker for everything.
    fn calm(&mut self) -> Checked {
        self.is_calm = true;
        self.weather = Weather { fatal: self.weather.fatal, ..Weather::default() };
        let worker = self.join();
        let state = &mut self.with(&worker).state;
        state.cpus_milli = 2000;
        state.devices = vec![Device::new("cuda", 1)];
        self.round()
    }

    fn check_end(&self) -> Checked {
        match self.graph.status() {
            JobStatus::Failed(_) => return check(&self.graph),
            JobStatus::Running => {
                let open = self.graph.units().filter(|(_, s)| !matches!(s, UnitState::Done(_)));
                let open: Vec<(UnitId, UnitState)> = open.collect();
                return Err(format!("deadlock: nothing happens any more, not done are {open:?}"));
            }
            JobStatus::Finished => check(&self.graph)?,
        }
        ensure(self.graph.seats().next().is_none(), || "a lease is never given back".to_owned())?;
        for (stage, expected) in (0..).map(crate::graph::StageId).zip(&self.scenario.result) {
            if self.scenario.spec.edges.iter().any(|edge| edge.from == stage) {
                continue;
            }
            let mut rows = Rows::new();
            for input in self.graph.outputs(stage) {
                let stored = &self.workers[&input.worker].store.get(&(input.block, input.writer));
                let stored = stored.ok_or_else(|| format!("{} is nowhere", input.block))?;
                ensure(!stored.is_freed, || format!("{}, a result, is deleted", input.block))?;
                rows.extend(&stored.rows);
            }
            rows.sort_unstable();
            ensure(rows == *expected, || {
                format!("stage {stage} gave {} rows, expected {}", rows.len(), expected.len())
            })?;
        }
        Ok(())
    }
}

impl Running {
    fn all_inputs(&self) -> impl Iterator<Item = Input> + use<> {
        let whole = self.whole.iter().flat_map(|(_, inputs)| inputs);
        self.bound.inputs.iter().chain(whole).cloned().collect::<Vec<_>>().into_iter()
    }
}
