//! Tasks that begin before all is there that they read.

use super::dealt::round;
use super::*;

/// Units that deal rows out, and two partitions that are read while they do.
fn pipelined_spec(maps: u32) -> JobSpec {
    let maps = StageSpec::new("maps", Need::cpus(1000), maps);
    let reduces = StageSpec::new("reduces", Need::cpus(1000), 2);
    let mut spec = spec(vec![maps, reduces], &[(0, 1, EdgeKind::Hash)]);
    spec.edges[0].is_pipelined = true;
    spec
}

/// Three units of which two run and one has ended, and a partition that is read.
fn begun() -> (Fixture, TaskId, TaskId, TaskId) {
    let mut fixture = Fixture::new(pipelined_spec(3));
    let [first, second, third] = [0, 1, 2].map(|index| fixture.bind(unit(0, index), "a").task);
    fixture.end(first, [1, 2]);
    let reader = fixture.bind(unit(1, 0), "b").task;
    (fixture, second, third, reader)
}

impl Fixture {
    fn end(&mut self, task: TaskId, rows: [u32; 2]) -> Vec<Action> {
        self.apply(Event::TaskFinished { task, blocks: vec![round(0, rows)] })
    }

    /// Rows of each segment that a task is told of, of how many outputs, and whether these are all.
    fn told(&self, task: TaskId, since: u32) -> (Vec<u64>, u32, bool) {
        let dealt = self.graph.dealt_since(task, 0, since).unwrap();
        (dealt.inputs.iter().map(|input| input.rows).collect(), dealt.told, dealt.is_all)
    }
}

#[test]
fn a_task_begins_when_all_before_it_run_and_some_have_ended() {
    let mut fixture = Fixture::new(pipelined_spec(3));
    let reads = |fixture: &Fixture| fixture.graph.begins_early(StageId(1));
    let first = fixture.bind(unit(0, 0), "a").task;
    let second = fixture.bind(unit(0, 1), "a").task;
    fixture.end(first, [1, 2]);
    assert!(!reads(&fixture), "one has not begun");
    fixture.bind(unit(0, 2), "a");
    assert!(reads(&fixture));
    assert_eq!(fixture.graph.ready(StageId(1)).unwrap().len(), 2);
    assert_eq!(fixture.graph.told_so_far(StageId(0)), Some(1));
    fixture.fail(second, FailureKind::Passing);
    assert!(!reads(&fixture), "one has to begin again");
    let refused = fixture.try_bind(Work::Unit(unit(1, 0)), "b").unwrap_err();
    assert_eq!(refused, BindError::InputIncomplete(StageId(1)));
}

#[test]
fn a_stage_that_is_not_told_to_be_pipelined_or_reads_something_else_waits_for_all() {
    let (mut plain, mut broadcast) = (pipelined_spec(2), pipelined_spec(2));
    plain.edges[0].is_pipelined = false;
    broadcast.edges.push(EdgeSpec::new(StageId(0), StageId(1), EdgeKind::Broadcast));
    for spec in [plain, broadcast] {
        let mut fixture = Fixture::new(spec);
        let first = fixture.bind(unit(0, 0), "a").task;
        fixture.bind(unit(0, 1), "a");
        fixture.end(first, [1, 2]);
        assert!(fixture.graph.ready(StageId(1)).is_none());
    }
}

#[test]
fn it_is_told_what_has_ended_since_in_that_order_and_when_that_is_all() {
    let (mut fixture, second, third, reader) = begun();
    assert_eq!(fixture.segments(0).len(), 1, "with its plan");
    assert_eq!(fixture.told(reader, 1), (vec![], 1, false));
    fixture.end(third, [4, 0]);
    assert_eq!(fixture.told(reader, 1), (vec![4], 2, false));
    fixture.end(second, [0, 5]);
    assert_eq!(fixture.told(reader, 2), (vec![], 3, true), "of its own there is nothing");
    assert_eq!(fixture.told(reader, 0), (vec![1, 4], 3, true));
    assert_eq!(fixture.graph.dealt_since(reader, 0, 4), None, "of four it was never told");
    assert_eq!(fixture.graph.early_tasks().count(), 0, "it waits for nothing any more");
    fixture.finish(reader, 1);
    assert_eq!(fixture.graph.dealt_since(reader, 0, 0), None);
    fixture.run(unit(1, 1), "b", 1);
    assert_eq!(*fixture.graph.status(), JobStatus::Finished);
}

/// What it has read of one attempt it does not read of another.
#[test]
fn what_is_lost_stops_it_whether_it_has_read_that_or_not() {
    let (mut fixture, second, third, reader) = begun();
    fixture.end(third, [4, 0]);
    let actions = fixture.lose("a");
    let stops =
        |action: &Action| matches!(action, Action::CancelTask { task, .. } if *task == reader);
    assert!(actions.iter().any(stops), "{actions:?}");
    assert!(!fixture.graph.runs(second));
    assert_eq!(fixture.graph.dealt_since(reader, 0, 1), None);
    let tasks = [0, 1, 2].map(|index| fixture.bind(unit(0, index), "c").task);
    fixture.end(tasks[1], [7, 0]);
    assert!(!fixture.graph.begins_early(StageId(1)), "what runs again is waited for");
    fixture.end(tasks[0], [1, 2]);
    fixture.end(tasks[2], [4, 0]);
    let reader = fixture.bind(unit(1, 0), "b").task;
    assert_eq!(fixture.told(reader, 0), (vec![1, 4, 7], 5, true));
    let rows: u64 = fixture.segments(0).iter().map(|segment| segment.3).sum();
    assert_eq!(rows, 12);
}

#[test]
fn a_task_that_has_not_ended_is_read_by_nobody_when_it_runs_again() {
    let (mut fixture, second, third, reader) = begun();
    fixture.fail(second, FailureKind::WorkerLost);
    assert!(fixture.graph.runs(reader), "it waits for the next attempt");
    let again = fixture.bind(unit(0, 1), "c").task;
    fixture.end(again, [8, 0]);
    fixture.end(third, [4, 0]);
    assert_eq!(fixture.told(reader, 1), (vec![8, 4], 3, true));
}

#[test]
fn it_counts_as_if_it_did_not_run_and_gives_its_worker_back() {
    let (mut fixture, second, third, reader) = begun();
    assert!(fixture.graph.runs_anything());
    assert_eq!(fixture.graph.early_tasks().map(|(task, ..)| task).collect::<Vec<_>>(), [reader]);
    for task in [second, third] {
        fixture.fail(task, FailureKind::WorkerLost);
    }
    assert!(!fixture.graph.runs_anything());
    let actions = fixture.apply(Event::Displaced { task: reader });
    assert_eq!(actions, [Action::CancelTask { task: reader, worker: worker("b") }]);
    assert_eq!(fixture.state(unit(1, 0)), "pending");
    assert!(fixture.graph.drains());
    assert_eq!(fixture.apply(Event::Displaced { task: reader }), [], "twice is once");
    fixture.apply(Event::TaskEnded { task: reader });
    assert!(!fixture.graph.drains());
    // What waits for nothing stays.
    for index in [1, 2] {
        let task = fixture.bind(unit(0, index), "c").task;
        assert_eq!(fixture.apply(Event::Displaced { task }), []);
        fixture.end(task, [1, 1]);
    }
    let reader = fixture.bind(unit(1, 0), "b").task;
    assert_eq!(fixture.apply(Event::Displaced { task: reader }), []);
}

#[test]
fn what_it_was_told_is_known_again() {
    let spec = pipelined_spec(3);
    let mut graph = JobGraph::try_new(spec.clone()).unwrap();
    graph.record_steps();
    let mut fixture = Fixture { graph };
    fixture.apply(Event::Started);
    let [first, second, third] = [0, 1, 2].map(|index| fixture.bind(unit(0, index), "a").task);
    fixture.end(second, [1, 2]);
    let reader = fixture.bind(unit(1, 0), "b").task;
    let displaced = fixture.bind(unit(1, 1), "c").task;
    fixture.apply(Event::Displaced { task: displaced });
    fixture.end(third, [4, 0]);
    let mut again = JobGraph::try_new(spec).unwrap();
    for step in fixture.graph.take_steps() {
        let text = serde_json::to_string(&step).unwrap();
        again.replay(serde_json::from_str(&text).unwrap()).unwrap();
    }
    let again = Fixture { graph: again };
    assert!(again.graph.runs(reader) && again.graph.runs(first) && !again.graph.runs(displaced));
    assert_eq!(again.told(reader, 1), (vec![4], 2, false));
}
