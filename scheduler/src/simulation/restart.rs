//! The scheduler ends, and another one goes on with what was written down.
//!
//! Some end in order, and the graph must be the same then. Others crash: of what was written down since somebody
//! was last told anything, the last steps are lost. Tasks are given to workers while only a few steps are not on the
//! disk; if one of these was theirs, the new scheduler stops them, and gives their numbers to no other. What workers and the client were told before that stays: a
//! block may have been deleted that the new scheduler takes to be there, and a task stopped that it takes to run.
//! Others have sealed, or ended, what it does not know of. As workers do, these tell it what they have. To a job it
//! is the same whether the scheduler has crashed or was taken for dead: what it says later is written down nowhere. But
//! it may stop tasks that its successor goes on with.
//!
//! For what was written down by some moment a snapshot may stand then, made of the one before and the steps since. The graph
//! that is made of it must be the one that all steps make.

use crate::graph::{
    Action, Event, Failure, FailureKind, JobGraph, Millis, Snapshot, Step, TaskId, UnitId, WorkerId,
};

use crate::journal::tests::cut_somewhere;
use crate::placement::Fleet;

use super::reference::Reference;
use super::tasks::producers;
use super::world::{AHEAD_MAX, Checked, Happening, World, ensure, tell};

/// After how many of a hundred happenings another scheduler goes on.
const RESTARTS_PERCENT: u64 = 1;

/// How many of a hundred end by crashing.
const CRASHES_PERCENT: u64 = 40;

/// How many of a hundred successors find another snapshot than the one before them did.
const SNAPSHOTS_PERCENT: u64 = 30;

/// How many of a hundred tasks the one before stops when another one goes on with them: it was not dead, and had
/// found out just before it was stopped itself that nobody had followed it.
const STOPPED_LATE_PERCENT: u64 = 3;

/// How many of a hundred tasks that have not begun at a crash were never given to their worker.
const NEVER_GIVEN_PERCENT: u64 = 30;

fn useless(problem: impl ToString) -> String {
    format!("what was written down is of no use: {}", problem.to_string())
}

fn ensure_same(graph: &JobGraph, expected: &JobGraph) -> Checked {
    ensure(graph == expected, || format!("{graph:?}\nin place of\n{expected:?}"))
}

fn through_json(step: &Step) -> Step {
    serde_json::from_slice(&serde_json::to_vec(step).unwrap()).unwrap()
}

impl World {
    /// What has changed the graph is written down. Before anybody is told what follows, it is on the disk; before a
    /// worker is given a task, most of it.
    pub(super) fn write_down(&mut self) {
        self.written.extend(self.graph.take_steps());
        if std::mem::take(&mut self.has_given) {
            let most = self.written.len().saturating_sub(AHEAD_MAX as usize);
            self.synced = self.synced.max(most);
        }
        if std::mem::take(&mut self.has_told) {
            self.synced = self.written.len();
        }
    }

    /// The numbers of tasks that may have been lost are nobody's, and that is on the disk before there are others.
    fn pass_over(&mut self) {
        self.graph.pass_over(self.passes_over, Millis(self.now));
        self.has_told = true;
        self.write_down();
    }

    /// Another scheduler goes on, perhaps.
    pub(super) fn restart(&mut self) -> Checked {
        if !self.restarts.chance(RESTARTS_PERCENT) {
            return Ok(());
        }
        self.restarted += 1;
        if self.restarts.chance(CRASHES_PERCENT) {
            return self.fall();
        }
        self.say(|| "the scheduler is another one".to_owned());
        self.stand_for_steps()?;
        let mut graph = self.restored()?;
        for graph in [&mut graph, &mut self.graph] {
            graph.take_changed_slots();
            graph.take_changed_holdings();
        }
        self.fleet = Fleet::default();
        ensure_same(&graph, &self.graph)?;
        self.graph = graph;
        self.pass_over();
        Ok(())
    }

    /// The scheduler crashes, and what it has not told anybody may be lost.
    fn fall(&mut self) -> Checked {
        let mut unsynced = self.written.split_off(self.synced);
        let kept = if self.checks_all {
            // The last one of them is torn.
            let lines: Vec<_> =
                unsynced.iter().map(|step| serde_json::to_vec(step).unwrap()).collect();
            let read = cut_somewhere(&lines, &mut self.restarts);
            ensure(lines.starts_with(&read), || format!("{read:?} was read of {lines:?}"))?;
            read.len()
        } else {
            self.restarts.below(unsynced.len() as u64 + 1) as usize
        };
        let lost = unsynced.split_off(kept);
        self.say(|| format!("the scheduler crashes, and loses {lost:?}"));
        self.written.extend(unsynced);
        self.lost += lost.len() as u64;
        self.synced = self.written.len();
        self.stand_for_steps()?;
        let mut reference = Reference::new(self.scenario.spec.clone());
        self.graph = self.made_again(&mut reference)?;
        if self.snapshot.is_some() {
            ensure_same(&self.restored()?, &self.graph)?;
        }
        self.pass_over();
        self.fleet = Fleet::default();
        self.reference = reference;
        self.forget_deletions();
        for step in &lost {
            if let Step::Event { event: Event::TaskFinished { task, .. }, .. } = step {
                self.unconfirm(*task);
            }
        }
        self.lose_tasks();
        self.forget_tasks();
        self.come_back();
        self.check(true)?;
        self.wakeup = None;
        self.round()?;
        self.write_down();
        Ok(())
    }

    /// A snapshot stands for what was written down until some moment, perhaps. The file of which it is made has all of that.
    fn stand_for_steps(&mut self) -> Checked {
        if !self.restarts.chance(SNAPSHOTS_PERCENT) {
            return Ok(());
        }
        let from = self.snapshot.as_ref().map_or(0, |(steps, _)| *steps);
        let upto = self.restarts.between(from as u64, self.written.len() as u64) as usize;
        let steps = self.written[from..upto].iter().map(|step| self.as_read(step));
        let steps = steps.collect::<Result<Vec<_>, _>>()?;
        let snapshot = self.found_snapshot()?.after(steps).map_err(useless)?;
        self.snapshots += u64::from(upto > from);
        self.snapshot = Some((upto, snapshot.to_bytes().map_err(useless)?));
        Ok(())
    }

    fn found_snapshot(&self) -> Result<Snapshot, String> {
        match &self.snapshot {
            Some((_, bytes)) => Snapshot::from_bytes(bytes).map_err(useless),
            None => Ok(Snapshot::new(0, self.scenario.spec.clone())),
        }
    }

    /// A step as it is read.
    fn as_read(&self, step: &Step) -> Result<Step, String> {
        let read = if self.checks_all { through_json(step) } else { step.clone() };
        ensure(read == *step, || format!("{step:?} was read as {read:?}"))?;
        Ok(read)
    }

    /// The graph from the snapshot that is there, and the steps since.
    fn restored(&self) -> Result<JobGraph, String> {
        let new = || JobGraph::try_new(self.scenario.spec.clone()).unwrap();
        let mut graph = self.found_snapshot()?.changed().unwrap_or_else(new);
        let from = self.snapshot.as_ref().map_or(0, |(steps, _)| *steps);
        for step in &self.written[from..] {
            graph.replay(self.as_read(step)?).map_err(useless)?;
        }
        graph.record_steps();
        Ok(graph)
    }

    /// The graph from all that was written down; `reference` is told the same.
    fn made_again(&self, reference: &mut Reference) -> Result<JobGraph, String> {
        let mut graph = JobGraph::try_new(self.scenario.spec.clone()).unwrap();
        graph.record_steps();
        for step in &self.written {
            match step.clone() {
                // As it is done again, with what followed from it.
                Step::Event { event, now } => {
                    tell(reference, graph.is_running_job(), &self.tasks, &event);
                    for action in graph.apply(event, now) {
                        match action {
                            Action::CancelTask { task, .. } => reference.stopped(task),
                            Action::FreeBlock { block, task, .. } => reference.gone(block, task),
                            _ => {}
                        }
                    }
                }
                other => {
                    let bound = graph.replay(other).map_err(useless)?;
                    if let (Some(bound), Step::Bind { worker, .. }) = (bound, step) {
                        let producers = producers(graph.unit_input(bound.unit));
                        let ranges = graph.ranges(bound.unit.stage);
                        reference.bound(&bound, &producers, worker, ranges);
                    }
                }
            }
        }
        graph.take_steps();
        Ok(graph)
    }

    /// Blocks that were deleted for a reason that is lost are missed when they are read: the new scheduler takes them to
    /// be there, or will when their worker tells of them again.
    fn forget_deletions(&mut self) {
        let reference = &self.reference;
        let is_known_gone = |unit: UnitId, seq: u32, writer: TaskId| {
            let copy = reference.units.get(&unit).and_then(|unit| unit.blocks.get(&seq));
            copy.is_some_and(|(task, place)| *task == writer && place.is_none())
        };
        for worker in self.workers.values_mut() {
            worker.store.retain(|(block, writer), stored| {
                !stored.is_freed || is_known_gone(block.unit, block.seq, *writer)
            });
        }
    }

    /// Tasks that were written down, and not given to their workers any more.
    fn lose_tasks(&mut self) {
        // The client asks again for what it was not told.
        let client = self.graph.client();
        for (id, task) in self.tasks.iter_mut().filter(|(id, _)| client != Some(id.stage)) {
            let is_new = !task.is_begun && !task.is_stopped && self.graph.is_held(*id);
            if is_new && self.restarts.chance(NEVER_GIVEN_PERCENT) {
                task.is_stopped = true;
            }
        }
    }

    /// Tasks that were given to their workers, and not written down.
    fn forget_tasks(&mut self) {
        for (id, task) in &mut self.tasks {
            let is_unknown = self.graph.worker_of(*id).is_none();
            self.lost_tasks += u64::from(is_unknown && !task.is_forgotten);
            task.is_forgotten |= is_unknown;
        }
    }

    /// Workers and the client come to the new scheduler, with what they have. Those that do not are missed.
    fn come_back(&mut self) {
        let has_started = |step: &Step| matches!(step, Step::Event { event: Event::Started, .. });
        if !self.written.iter().any(has_started) {
            self.at(1, Happening::Report(Event::Started));
        }
        let tasks: Vec<TaskId> = self.tasks.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.tell_again(task));
        let now = self.now;
        for worker in self.workers.values_mut() {
            worker.is_known &= worker.is_alive && worker.paused_until <= now;
        }
        let holds = |id: &WorkerId| self.graph.slots().any(|(worker, ..)| worker == id);
        let used = |id: &WorkerId| self.graph.uses_worker(id) || holds(id);
        let absent = self.workers.iter().filter(|(id, worker)| !worker.is_alive && used(id));
        let absent: Vec<_> = absent.map(|(id, _)| id.clone()).collect();
        for worker in absent {
            let late = self.restarts.between(5, 19);
            self.at(late, Happening::Report(Event::WorkerLost { worker }));
        }
    }

    /// What the new scheduler hears of a task.
    fn tell_again(&mut self, task: TaskId) {
        let (running, worker) = (&self.tasks[&task], &self.workers[&self.tasks[&task].worker]);
        if !worker.is_alive {
            return;
        }
        let is_client = self.graph.client() == Some(task.stage);
        let is_held = self.graph.is_held(task);
        let has_it = !running.is_stopped;
        let sealed = running.sealed.clone();
        let ended = running.ended.clone();
        let late = worker.paused_until.saturating_sub(self.now) + self.restarts.below(10);
        if !is_held {
            if has_it && !is_client {
                self.at(late, Happening::Stop(task));
            }
            return;
        }
        let message = "the scheduler ended before the worker had it";
        match ended {
            _ if has_it => {
                for block in sealed {
                    self.at(late, Happening::Report(Event::BlockSealed { task, block }));
                }
                if !is_client && self.restarts.chance(STOPPED_LATE_PERCENT) {
                    self.at(late + 1, Happening::Stop(task));
                }
            }
            Some(end) => self.at(late, Happening::Report(end)),
            None if self.graph.runs(task) => {
                let failure = Failure::new(FailureKind::WorkerLost, message);
                self.at(late, Happening::Report(Event::TaskFailed { task, failure }));
            }
            None => self.at(late, Happening::Report(Event::TaskEnded { task })),
        }
    }
}
