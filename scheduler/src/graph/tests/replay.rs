//! A graph made again from its steps.

use super::*;

/// Two partitions whose blocks a client reads, and what changes it is kept.
fn recorded() -> (JobSpec, Fixture) {
    let spec = spec(vec![stage(2), StageSpec::client()], &[(0, 1, BLOCK)]);
    let mut graph = JobGraph::try_new(spec.clone()).unwrap();
    graph.record_steps();
    (spec, Fixture { graph })
}

fn again(spec: &JobSpec, steps: Vec<Step>) -> Fixture {
    let mut graph = JobGraph::try_new(spec.clone()).unwrap();
    graph.record_steps();
    for step in steps {
        let text = serde_json::to_string(&step).unwrap();
        graph.replay(serde_json::from_str(&text).unwrap()).unwrap();
        check(&graph).unwrap();
    }
    graph.take_steps();
    Fixture { graph }
}

/// A job to which much happens, and all that did.
fn eventful() -> (JobSpec, Fixture, Vec<Step>) {
    let (spec, mut fixture) = recorded();
    fixture.apply(Event::Started);
    let task = fixture.run(unit(0, 0), "a", 2);
    let other = fixture.bind(unit(0, 1), "b").task;
    let kinds = [
        FailureKind::Passing,
        FailureKind::Final(ErrorKind::NotFound),
        FailureKind::BlockLost(unit(0, 0).block(0)),
        FailureKind::OutputLost { stage: StageId(0), worker: worker("a") },
    ];
    let failures =
        kinds.map(|kind| Event::TaskFailed { task, failure: Failure::new(kind, "late") });
    failures.into_iter().for_each(|late| drop(fixture.apply(late)));
    fixture.seal(other, 0);
    fixture.lose("a");
    fixture.apply(Event::WorkerFull { worker: worker("b") });
    fixture.apply(Event::Canceled(RemoteError::new(ErrorKind::Canceled, "nobody wants it")));
    fixture.apply(Event::TaskEnded { task: other });
    let steps = fixture.graph.take_steps();
    assert_eq!(steps.len(), 13);
    (spec, fixture, steps)
}

#[test]
fn events_and_bindings_make_the_same_graph_again() {
    let (spec, mut fixture, steps) = eventful();
    assert!(fixture.graph.take_steps().is_empty());
    assert_eq!(again(&spec, steps).graph, fixture.graph);
}

fn through_bytes(snapshot: &Snapshot) -> Snapshot {
    let read = Snapshot::from_bytes(&snapshot.to_bytes().unwrap()).unwrap();
    assert_eq!(read, *snapshot);
    read
}

#[test]
fn a_snapshot_of_any_steps_and_those_after_it_make_the_same_graph() {
    let (spec, fixture, steps) = eventful();
    assert!(Snapshot::new(7, spec.clone()).changed().is_none());
    for first in 0..=steps.len() {
        for second in first..=steps.len() {
            let snapshot = through_bytes(&Snapshot::new(7, spec.clone()));
            let snapshot = through_bytes(&snapshot.after(steps[..first].to_vec()).unwrap());
            let snapshot = through_bytes(&snapshot.after(steps[first..second].to_vec()).unwrap());
            let time = if second == 0 { Millis::default() } else { NOW };
            assert_eq!((snapshot.cut, snapshot.time()), (7, time));
            let mut graph = snapshot.changed().unwrap();
            steps[second..].iter().for_each(|step| drop(graph.replay(step.clone()).unwrap()));
            graph.record_steps();
            assert_eq!(graph, fixture.graph, "{first}, {second}");
            check(&graph).unwrap();
        }
    }
}

#[test]
fn a_snapshot_has_ranges_segments_and_why_a_job_failed() {
    let sorted = spec(vec![stage(1).with_range_bytes(1), stage(0)], &[(0, 1, EdgeKind::Ranges)]);
    let mut graph = JobGraph::try_new(sorted.clone()).unwrap();
    graph.record_steps();
    let mut fixture = Fixture { graph };
    fixture.apply(Event::Started);
    let task = fixture.bind(unit(0, 0), "a").task;
    let run = |key: &[u8]| RunBlock { key: RowKey::new(key), end: None, digest: 3 };
    let segment = Segment { partition: 1, at: 0, bytes: 5, rows: 2, checksum: 9 };
    let block = |seq: u32, key: &[u8]| BlockReport {
        run: Some(run(key)),
        segments: Some(Segments::new(&[segment])),
        ..report(seq)
    };
    let blocks = vec![block(0, b"a"), block(1, &[7; 300])];
    fixture.apply(Event::TaskFinished { task, blocks });
    fixture.lose("a");
    let task = fixture.bind(unit(0, 0), "b").task;
    let again = BlockReport { checksum: 1, ..block(0, b"a") };
    let before = fixture.graph.take_steps();
    fixture.apply(Event::TaskFinished { task, blocks: vec![again] });
    let failed = fixture.graph.status().clone();
    assert!(
        matches!(&failed, JobStatus::Failed(JobFailure::NotDeterministic { .. })),
        "{failed:?}"
    );
    let snapshot = through_bytes(&Snapshot::new(0, sorted).after(before).unwrap());
    let snapshot = through_bytes(&snapshot.after(fixture.graph.take_steps()).unwrap());
    let mut graph = snapshot.changed().unwrap();
    graph.record_steps();
    assert_eq!(graph, fixture.graph);
    assert_eq!(graph.ended(), Some(NOW));
}

#[test]
fn damaged_snapshots_are_errors() {
    let (spec, _, steps) = eventful();
    let whole = Snapshot::new(7, spec).after(steps).unwrap().to_bytes().unwrap();
    for length in 0..whole.len() {
        Snapshot::from_bytes(&whole[..length]).unwrap_err();
    }
    // What cannot be told by the bytes alone is another snapshot; nothing panics.
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            drop(Snapshot::from_bytes(&damaged));
        }
    }
}

#[test]
fn what_is_said_of_numbers_that_were_passed_over_counts_for_nothing() {
    let (spec, mut fixture) = recorded();
    fixture.run(unit(0, 0), "a", 1);
    let steps = fixture.graph.take_steps();
    // Its successor does not know of this one.
    let lost = fixture.bind(unit(0, 1), "a").task;
    let mut again = again(&spec, steps);
    again.graph.pass_over(5, NOW);
    assert!(!again.graph.runs(lost) && !again.graph.is_held(lost));
    assert_eq!(again.graph.worker_of(lost), None);
    for event in [
        Event::TaskEnded { task: lost },
        Event::TaskFinished { task: lost, blocks: vec![] },
        Event::TaskFailed { task: lost, failure: Failure::new(FailureKind::Passing, "late") },
    ] {
        assert_eq!(again.apply(event), []);
        check(&again.graph).unwrap();
    }
    again.seal(lost, 0);
    assert_eq!(again.graph.block_rows().count(), 1);
    let task = again.bind(unit(0, 1), "b").task;
    assert_eq!(task.index, lost.index + 5);
    again.finish(task, 1);
    assert_eq!(again.graph.task_rows().map(|row| row.id).last(), Some(task));
    check(&again.graph).unwrap();
    let steps = again.graph.take_steps();
    assert!(matches!(steps[0], Step::PassedOver { numbers: 5, .. }), "{steps:?}");
}

#[test]
fn a_step_that_does_not_follow_is_refused() {
    let (spec, mut fixture) = recorded();
    fixture.run(unit(0, 0), "a", 1);
    let steps = fixture.graph.take_steps();
    let mut other = JobGraph::try_new(spec).unwrap();
    other.replay(steps[0].clone()).unwrap();
    let refused = other.replay(steps[0].clone()).unwrap_err();
    assert!(matches!(refused, BindError::NotPending { .. }), "{refused}");
}

#[test]
fn what_the_client_reads_can_be_told_again_and_what_it_has_read_is_known() {
    let (spec, mut fixture) = recorded();
    assert_eq!(fixture.graph.client_reads(), None);
    fixture.run(unit(0, 0), "a", 2);
    let bound = fixture.graph.bind_client(NOW).unwrap();
    let mut again = again(&spec, fixture.graph.take_steps());
    assert_eq!(again.graph.client_reads(), Some(bound.clone()));
    assert_eq!(again.graph.worker_of(bound.task).unwrap().as_str(), "client");
    assert!(!again.graph.has_finished(bound.task));
    again.finish(bound.task, 0);
    assert!(again.graph.has_finished(bound.task));
    assert_eq!(again.graph.client_reads(), None);
}
