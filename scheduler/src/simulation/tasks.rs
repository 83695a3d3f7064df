//! What a worker does with a task: it reads, seals, and ends, or fails on the way.

use std::collections::BTreeMap;

use forebay_engine::ErrorKind;

use crate::graph::{
    BlockId, BlockReport, Bound, EdgeKind, Event, Failure, FailureKind, Input, TaskId, UnitId,
    UnitInput, WorkerId,
};
use crate::resources::Lease;

use super::scenario::{Rows, partition_of};
use super::world::{Checked, Happening, Running, Stored, World, ensure};

/// What a task could fetch of its input.
enum Fetched {
    /// Of its blocks, and by edge of whole stages.
    All(Rows, BTreeMap<u32, Rows>),
    /// The first block that cannot be had, and who should have it.
    Lost(BlockId, WorkerId),
}

/// Those whose whole outputs are read.
pub(super) fn producers(input: &UnitInput) -> Vec<UnitId> {
    match input {
        UnitInput::Output(unit) => vec![*unit],
        UnitInput::Outputs(units) => units.clone(),
        UnitInput::Partition(_) | UnitInput::Blocks(_) | UnitInput::Range(_) => vec![],
    }
}

impl World {
    /// Sends a report: late, perhaps twice. Announcements may get lost.
    pub(super) fn send(&mut self, task: TaskId, event: Event) {
        let worker = &self.workers[&self.tasks[&task].worker];
        if !worker.is_alive {
            return;
        }
        let paused = worker.paused_until.saturating_sub(self.now);
        let is_announcement = matches!(event, Event::BlockSealed { .. });
        if !is_announcement {
            self.task_mut(task).ended.get_or_insert_with(|| event.clone());
        }
        if self.rng.chance(self.weather.doubled) {
            let late = paused + self.rng.below(60);
            self.at(late, Happening::Report(event.clone()));
        }
        if !(is_announcement && self.rng.chance(self.weather.dropped)) {
            let late = paused + self.rng.below(5);
            self.at(late, Happening::Report(event));
        }
    }

    pub(super) fn start(&mut self, bound: Bound, worker: WorkerId, lease: Lease) -> Checked {
        self.say(|| format!("    {} runs unit {} on {worker}: {bound:?}", bound.task, bound.unit));
        let input = self.graph.unit_input(bound.unit).clone();
        let ranges = self.graph.ranges(bound.unit.stage);
        self.reference.bound(&bound, &producers(&input), &worker, ranges);
        let edges = (0..).zip(&self.scenario.spec.edges);
        let blocking = edges.filter(|(_, e)| e.to == bound.unit.stage && e.kind.is_blocking());
        let whole = blocking.map(|(edge, e)| match (&bound.range, &input, e.kind) {
            (Some(range), ..) => (edge, self.graph.blocks_in(e.from, range).concat()),
            (None, UnitInput::Partition(partition), EdgeKind::Hash) => {
                (edge, self.graph.segments(e.from, *partition))
            }
            // Its own input streams in.
            (None, _, EdgeKind::Hash) => (edge, vec![]),
            (None, ..) => (edge, self.graph.outputs(e.from).collect()),
        });
        let whole: Vec<_> = whole.collect();
        let told = self.told_of(bound.unit);
        self.early += u64::from(told.is_some());
        // A client that fails ends the job; that it cannot read something is seen when it reads.
        let is_client = self.graph.client() == Some(bound.unit.stage);
        let fails = self.pick_failure().filter(|_| !is_client);
        let task = bound.task;
        let running = Running {
            rows: whole.iter().map(|(edge, _)| (*edge, vec![])).collect(),
            whole,
            told,
            had: 0,
            input,
            worker: worker.clone(),
            lease,
            is_begun: false,
            is_forgotten: false,
            is_stopped: false,
            sealed: vec![],
            ended: None,
            fails,
            blocks: vec![],
            streamed: vec![],
            bound,
        };
        // Whatever is told of one, and lies on a worker under its name, must not be taken for another one's.
        let earlier = self.tasks.insert(task, running);
        ensure(earlier.is_none(), || format!("there has been another task {task}: {earlier:?}"))?;
        if self.workers[&worker].is_alive {
            let paused = self.workers[&worker].paused_until.saturating_sub(self.now);
            let late = paused + self.rng.below(10);
            self.at(late, Happening::Read(task));
        }
        Ok(())
    }

    /// Of how many outputs a task is told that begins now, if there will be more.
    fn told_of(&self, unit: UnitId) -> Option<u32> {
        let mut edges = self.scenario.spec.edges.iter();
        let from = edges.find(|edge| edge.to == unit.stage && edge.is_pipelined)?.from;
        self.graph.told_so_far(from)
    }

    /// Whether a task has not been told of all that it reads. It asks again.
    fn waits_for_rest(&mut self, task: TaskId) -> bool {
        let Some(told) = self.tasks[&task].told else { return false };
        let UnitInput::Partition(partition) = self.tasks[&task].input else { return false };
        // The answer waits until it is written down what it is made of.
        self.has_told = true;
        let Some(dealt) = self.graph.dealt_since(task, partition, told) else {
            self.task_mut(task).is_stopped = true;
            self.send(task, Event::TaskEnded { task });
            return true;
        };
        let running = self.task_mut(task);
        running.told = (!dealt.is_all).then_some(dealt.told);
        if let [(_, inputs)] = &mut running.whole[..] {
            inputs.extend(dealt.inputs);
        }
        let time = self.rng.between(1, 10);
        self.at(time, Happening::Read(task));
        true
    }

    pub(super) fn pick_failure(&mut self) -> Option<FailureKind> {
        if self.is_calm {
            return None;
        }
        if self.rng.chance(self.weather.fatal) {
            let kinds = [ErrorKind::InvalidArgument, ErrorKind::FailedPrecondition];
            return Some(FailureKind::Final(kinds[self.rng.index(2)]));
        }
        let kinds = [
            FailureKind::Passing,
            FailureKind::NoProgress,
            FailureKind::OutOfMemory,
            FailureKind::DiskFull,
            FailureKind::DiskBroken,
            FailureKind::DeviceBroken,
            FailureKind::DeviceLost,
            FailureKind::WorkerLost,
        ];
        let fails = self.rng.chance(self.weather.failure);
        fails.then(|| kinds[self.rng.index(kinds.len())].clone())
    }

    /// Whether a task still does anything. A paused worker goes on later.
    pub(super) fn works(&self, task: TaskId) -> bool {
        let running = &self.tasks[&task];
        !running.is_stopped && self.workers[&running.worker].is_alive
    }

    /// A task fetches its input, and makes its output of it.
    pub(super) fn read(&mut self, task: TaskId) -> Checked {
        if !self.works(task) {
            return Ok(());
        }
        self.task_mut(task).is_begun = true;
        match self.fetch(task)? {
            Fetched::All(streamed, whole) => {
                let running = self.task_mut(task);
                running.streamed.extend(streamed);
                running.had = running.all_inputs().count();
                for (edge, rows) in whole {
                    running.rows.entry(edge).or_default().extend(rows);
                }
            }
            Fetched::Lost(block, worker) => {
                self.cannot_fetch(task, block, worker);
                return Ok(());
            }
        }
        if self.waits_for_rest(task) {
            return Ok(());
        }
        if self.graph.client() == Some(task.stage) {
            let time = self.rng.between(1, 15);
            self.at(time, Happening::End(task));
            return Ok(());
        }
        let running = &self.tasks[&task];
        let range = running.bound.range.clone().unwrap_or_default();
        let (streamed, whole) = (running.streamed.clone(), &running.rows);
        let rows = self.scenario.run(task.stage, &running.input, streamed, whole, &range);
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

    /// What a task reads that it has not read yet, from whoever has it.
    fn fetch(&self, task: TaskId) -> Result<Fetched, String> {
        let mut streamed = Rows::new();
        let mut whole = BTreeMap::<u32, Rows>::new();
        let running = &self.tasks[&task];
        let streams = running.bound.inputs.iter().map(|input| (None, input));
        let reads = running
            .whole
            .iter()
            .flat_map(|(edge, inputs)| inputs.iter().map(move |input| (Some(*edge), input)));
        let is_wanted = self.graph.is_running_job() && self.reference.runs(task);
        for (edge, input) in streams.chain(reads).skip(running.had) {
            let holder = &self.workers[&input.worker];
            let stored = holder.store.get(&(input.block, input.writer));
            if let Some(stored) = stored.filter(|_| is_wanted) {
                ensure(!stored.is_freed, || format!("{task} reads {}, deleted", input.block))?;
            }
            let serves = holder.is_alive && holder.paused_until <= self.now;
            let Some(stored) = stored.filter(|stored| serves && !stored.is_corrupt) else {
                return Ok(Fetched::Lost(input.block, input.worker.clone()));
            };
            let rows = match edge {
                None => &mut streamed,
                Some(edge) => whole.entry(edge).or_default(),
            };
            let before = rows.len();
            rows.extend(stored.rows.iter().filter(|row| self.is_in(task, input, **row)));
            ensure((rows.len() - before) as u64 == input.rows, || "row count".to_owned())?;
        }
        Ok(Fetched::All(streamed, whole))
    }

    /// Whether a row is in what a task reads of a block: the whole of it, or the segment of the task's partition.
    fn is_in(&self, task: TaskId, input: &Input, row: u64) -> bool {
        let partitions = self.scenario.spec.stages[task.stage.0 as usize].partitions;
        match self.tasks[&task].input {
            UnitInput::Partition(partition) if input.segment_at.is_some() => {
                partition_of(row, partitions) == partition
            }
            _ => true,
        }
    }

    fn cannot_fetch(&mut self, task: TaskId, block: BlockId, worker: WorkerId) {
        self.task_mut(task).is_stopped = true;
        let kind = if self.rng.chance(70) {
            FailureKind::BlockLost(block)
        } else {
            FailureKind::OutputLost { stage: block.unit.stage, worker }
        };
        let failure = Failure::new(kind, "cannot be fetched");
        self.send(task, Event::TaskFailed { task, failure });
    }

    pub(super) fn seal(&mut self, task: TaskId, at: usize) -> Checked {
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
        self.task_mut(task).sealed.push(report.clone());
        self.send(task, Event::BlockSealed { task, block: report });
        // A failing task often does so in the middle.
        if self.tasks[&task].fails.is_some() && self.rng.chance(30) {
            return self.end(task);
        }
        Ok(())
    }

    pub(super) fn end(&mut self, task: TaskId) -> Checked {
        if !self.works(task) {
            return Ok(());
        }
        self.task_mut(task).is_stopped = true;
        let running = &self.tasks[&task];
        let event = match running.fails.clone() {
            Some(kind) => {
                let is_fatal = matches!(kind, FailureKind::Final(_));
                let message = if is_fatal { "injected fatal" } else { "injected" };
                Event::TaskFailed { task, failure: Failure::new(kind, message) }
            }
            None => {
                let reports = running.blocks.iter().map(|(report, _)| report.clone());
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
}
