//! One test per rule, named after it. The simulation tries the rules in all combinations.

mod client;
mod dealt;
mod early;
mod keeping;
mod lineage;
mod ranges;
mod replay;
mod retry;
mod streaming;
mod together;

use forebay_engine::{ErrorKind, RemoteError};

use super::*;
use crate::resources::{Lease, Need};

pub(super) const BLOCK: EdgeKind = EdgeKind::Streaming(Granularity::Block);
pub(super) const UNIT: EdgeKind = EdgeKind::Streaming(Granularity::Unit);
pub(super) const UNITS: EdgeKind = EdgeKind::Streaming(Granularity::Units);
pub(super) const NOW: Millis = Millis(1);

/// A job under test; every step checks all invariants.
pub(super) struct Fixture {
    pub(super) graph: JobGraph,
}

/// A replayable stage with this many partitions.
pub(super) fn stage(partitions: u32) -> StageSpec {
    StageSpec::new("s", Need::cpus(1000), partitions).with_replayable()
}

/// Stages in order, and the edges between them.
pub(super) fn spec(stages: Vec<StageSpec>, edges: &[(u32, u32, EdgeKind)]) -> JobSpec {
    let edge = |(from, to, kind): &(u32, u32, EdgeKind)| {
        EdgeSpec::new(StageId(*from), StageId(*to), *kind)
    };
    JobSpec { stages, edges: edges.iter().map(edge).collect(), limits: Limits::default() }
}

pub(super) fn worker(name: &str) -> WorkerId {
    WorkerId::new(name)
}

pub(super) fn unit(stage: u32, index: u32) -> UnitId {
    StageId(stage).unit(index)
}

/// What every attempt says of block `seq`: a replayable one says the same each time.
pub(super) fn report(seq: u32) -> BlockReport {
    BlockReport {
        seq,
        bytes: 10,
        rows: 2,
        checksum: 100 + u64::from(seq),
        run: None,
        segments: None,
    }
}

impl Fixture {
    pub(super) fn new(spec: JobSpec) -> Self {
        let mut fixture = Self { graph: JobGraph::try_new(spec).unwrap() };
        fixture.apply(Event::Started);
        fixture
    }

    /// Two partitions that stream blocks to a consumer.
    pub(super) fn pair() -> Self {
        Self::new(spec(vec![stage(2), stage(0)], &[(0, 1, BLOCK)]))
    }

    pub(super) fn apply(&mut self, event: Event) -> Vec<Action> {
        let actions = self.graph.apply(event, NOW);
        check(&self.graph).unwrap();
        actions
    }

    pub(super) fn try_bind(&mut self, work: Work, on: &str) -> Result<Bound, BindError> {
        let bound = self.graph.bind(work, &worker(on), Lease::default(), NOW);
        check(&self.graph).unwrap();
        bound
    }

    pub(super) fn bind(&mut self, unit: UnitId, on: &str) -> Bound {
        self.try_bind(Work::Unit(unit), on).unwrap()
    }

    /// Binds blocks of edge 0.
    pub(super) fn bind_blocks(&mut self, blocks: &[BlockId], on: &str) -> Bound {
        let work = Work::Blocks { edge: EdgeId(0), blocks: blocks.to_vec() };
        self.try_bind(work, on).unwrap()
    }

    pub(super) fn seal(&mut self, task: TaskId, seq: u32) -> Vec<Action> {
        self.apply(Event::BlockSealed { task, block: report(seq) })
    }

    /// Ends a task with blocks `0..count`.
    pub(super) fn finish(&mut self, task: TaskId, count: u32) -> Vec<Action> {
        self.apply(Event::TaskFinished { task, blocks: (0..count).map(report).collect() })
    }

    /// Runs a unit to its end on a worker.
    pub(super) fn run(&mut self, unit: UnitId, on: &str, count: u32) -> TaskId {
        let task = self.bind(unit, on).task;
        self.finish(task, count);
        task
    }

    pub(super) fn fail(&mut self, task: TaskId, kind: FailureKind) -> Vec<Action> {
        self.apply(Event::TaskFailed { task, failure: Failure::new(kind, "said the worker") })
    }

    pub(super) fn lose(&mut self, name: &str) -> Vec<Action> {
        self.apply(Event::WorkerLost { worker: worker(name) })
    }

    pub(super) fn state(&self, unit: UnitId) -> &'static str {
        match self.graph.unit_state(unit) {
            UnitState::Pending => "pending",
            UnitState::Running(_) => "running",
            UnitState::Done(_) => "done",
        }
    }

    /// Units that were decided to run again, and why.
    pub(super) fn recomputed(&self) -> Vec<(UnitId, Cause)> {
        self.graph.recomputed().iter().map(|entry| (entry.unit, entry.why.clone())).collect()
    }

    pub(super) fn block_state(&self, block: BlockId) -> BlockState {
        self.graph.block_rows().find(|row| row.id == block).unwrap().state
    }

    pub(super) fn failure(&self) -> String {
        let JobStatus::Failed(reason) = self.graph.status() else { panic!("it has not failed") };
        reason.to_string()
    }
}

#[test]
fn a_job_is_refused_that_could_not_be_recovered_or_run() {
    let once = StageSpec::new("once", Need::cpus(1), 1);
    let cases = [
        (spec(vec![], &[]), "at least one stage"),
        (spec(vec![stage(1)], &[(0, 7, BLOCK)]), "stages 0 and 7, and the job has 1"),
        (spec(vec![stage(1), stage(0)], &[(0, 1, BLOCK), (1, 0, UNIT)]), "circle"),
        (spec(vec![once, stage(0)], &[(0, 1, BLOCK)]), "'once', which is not replayable"),
    ];
    for (spec, part) in cases {
        let error = JobGraph::try_new(spec).unwrap_err().to_string();
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn a_job_without_work_ends_when_it_starts() {
    for edges in [vec![], vec![(0, 1, BLOCK)], vec![(0, 1, UNIT)], vec![(0, 1, EdgeKind::Blocking)]]
    {
        let mut graph = JobGraph::try_new(spec(vec![stage(0), stage(0)], &edges)).unwrap();
        assert_eq!(graph.apply(Event::Started, NOW), [Action::JobFinished], "{edges:?}");
    }
}

#[test]
fn a_record_of_a_block_is_small() {
    assert!(size_of::<(u32, super::block::Block)>() <= 128);
    assert!(size_of::<ReadyItem>() + size_of::<BlockId>() <= 64);
}

#[test]
fn reports_of_what_never_was_are_counted_and_ignored() {
    let mut fixture = Fixture::pair();
    for task in [StageId(0).task(5), StageId(9).task(0)] {
        assert!(fixture.finish(task, 1).is_empty());
        assert!(fixture.seal(task, 0).is_empty());
        assert!(fixture.fail(task, FailureKind::Final(ErrorKind::InvalidArgument)).is_empty());
    }
    assert_eq!(fixture.graph.stale_reports(), 6);
    assert!(fixture.lose("nobody").is_empty());
}

#[test]
fn what_ran_where_and_why_can_be_read() {
    let mut fixture = Fixture::pair();
    fixture.run(unit(0, 0), "a", 2);
    let reader = fixture.bind_blocks(&[unit(0, 0).block(1)], "b").task;
    fixture.fail(reader, FailureKind::Passing);
    let stages: Vec<_> = fixture.graph.stage_rows().collect();
    let first = &stages[0];
    assert_eq!((first.state, first.units, first.units_done), (StageState::Running, 2, 1));
    assert_eq!((first.bytes, first.rows, first.started), (20, 4, Some(NOW)));
    assert_eq!((stages[1].failures, stages[1].attempts), (1, 1));
    let task = fixture.graph.task_rows().find(|row| row.id == reader).unwrap();
    assert_eq!(*task.state, TaskState::Failed(FailureKind::Passing));
    assert_eq!((task.worker, task.reason), (&worker("b"), "said the worker"));
    assert_eq!(*task.input, UnitInput::Blocks(vec![unit(0, 0).block(1)]));
    let states: Vec<_> = fixture.graph.block_rows().map(|row| row.state).collect();
    assert_eq!(states, [BlockState::Sealed, BlockState::Assigned]);
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let mut fixture = Fixture::pair();
    let task = fixture.bind(unit(0, 0), "a").task;
    let absurd = |seq| BlockReport {
        seq,
        bytes: u64::MAX,
        rows: u64::MAX,
        checksum: 0,
        run: None,
        segments: None,
    };
    fixture.apply(Event::TaskFinished { task, blocks: vec![absurd(0), absurd(u32::MAX)] });
    assert_eq!(fixture.state(unit(0, 0)), "done");
}
