//! Failures by kind, and their maxima.

use super::*;

#[test]
fn an_error_of_the_user_or_the_data_ends_the_job_at_once() {
    for kind in [
        FailureKind::Final(ErrorKind::InvalidArgument),
        FailureKind::Final(ErrorKind::FailedPrecondition),
    ] {
        let mut fixture = Fixture::pair();
        let other = fixture.bind(unit(0, 1), "b").task;
        let task = fixture.bind(unit(0, 0), "a").task;
        let actions = fixture.fail(task, kind);
        assert!(actions.contains(&Action::CancelTask { task: other, worker: worker("b") }));
        assert_eq!(fixture.failure(), "unit 0.0 of stage 's': said the worker");
    }
}

#[test]
fn a_passing_failure_waits_longer_each_time_and_then_ends_the_job() {
    let mut fixture = Fixture::pair();
    let mut waits = vec![];
    for attempt in 1..=4 {
        let bound = fixture.bind(unit(0, 0), ["a", "b"][attempt as usize % 2]);
        assert_eq!(bound.attempt, attempt);
        fixture.fail(bound.task, FailureKind::OutOfMemory);
        waits.extend(fixture.graph.next_wakeup().map(|until| until.since(NOW)));
        fixture.graph.advance(Millis(1_000_000));
    }
    assert_eq!(waits, [200, 400, 800]);
    let failure = fixture.failure();
    for part in ["said the worker", "4 failures of one unit", "4 attempts, on b, a, b, a"] {
        assert!(failure.contains(part), "{part} is not in: {failure}");
    }
}

#[test]
fn a_unit_that_makes_no_progress_is_tried_once_more_elsewhere() {
    let mut fixture = Fixture::pair();
    let task = fixture.bind(unit(0, 0), "a").task;
    fixture.fail(task, FailureKind::NoProgress);
    assert_eq!(fixture.graph.failed_on(unit(0, 0)), [worker("a")]);
    fixture.graph.advance(Millis(1_000_000));
    let task = fixture.bind(unit(0, 0), "b").task;
    fixture.fail(task, FailureKind::NoProgress);
    let failure = fixture.failure();
    assert!(failure.contains("2 attempts without progress; 2 attempts, on a, b"), "{failure}");
}

#[test]
fn a_disk_that_fails_counts_whatever_else_goes_on_and_its_worker_is_known() {
    let mut fixture = Fixture::new(spec(vec![stage(9)], &[]));
    for other in 1..=3 {
        let task = fixture.bind(unit(0, 0), "a").task;
        fixture.fail(task, FailureKind::DiskBroken);
        fixture.run(unit(0, other), "b", 1);
        fixture.graph.advance(Millis(1_000_000));
    }
    assert_eq!(fixture.graph.failed_on(unit(0, 0)), [worker("a")]);
    assert!(fixture.graph.broken_disks().iter().eq([&worker("a")]));
    let task = fixture.bind(unit(0, 0), "a").task;
    fixture.fail(task, FailureKind::DiskBroken);
    assert!(fixture.failure().contains("4 failures of one unit"), "{}", fixture.failure());
}

#[test]
fn a_unit_that_waits_cannot_be_bound() {
    let mut fixture = Fixture::pair();
    let task = fixture.bind(unit(0, 0), "a").task;
    fixture.fail(task, FailureKind::Passing);
    let early = fixture.try_bind(Work::Unit(unit(0, 0)), "b");
    assert!(matches!(early, Err(BindError::TooEarly { .. })), "{early:?}");
    assert_eq!(fixture.graph.failed_on(unit(0, 0)), [worker("a")]);
    fixture.graph.advance(Millis(500));
    check(&fixture.graph).unwrap();
    fixture.bind(unit(0, 0), "b");
}

#[test]
fn failures_of_one_stage_are_counted_together() {
    let mut fixture = Fixture::pair();
    fixture.graph.limits.stage_failures_max = 2;
    for index in [0, 1] {
        let task = fixture.bind(unit(0, index), "a").task;
        fixture.fail(task, FailureKind::DeviceBroken);
    }
    assert!(fixture.failure().contains("2 failures in one stage"), "{}", fixture.failure());
}

#[test]
fn a_lost_worker_is_not_the_units_fault_but_has_an_end() {
    let mut fixture = Fixture::pair();
    for lost in 1..16 {
        fixture.bind(unit(0, 0), "a");
        fixture.lose("a");
        assert_eq!(fixture.state(unit(0, 0)), "pending", "{lost}");
        assert_eq!(fixture.graph.next_wakeup(), None);
    }
    fixture.bind(unit(0, 0), "a");
    fixture.lose("a");
    assert!(fixture.failure().contains("its work was lost 16 times"), "{}", fixture.failure());
}

#[test]
fn a_device_that_others_lost_is_not_the_units_fault_and_it_goes_elsewhere() {
    let mut fixture = Fixture::pair();
    fixture.graph.limits.stage_failures_max = 2;
    for lost in 1..16 {
        let task = fixture.bind(unit(0, 0), "a").task;
        fixture.fail(task, FailureKind::DeviceLost);
        assert_eq!(fixture.state(unit(0, 0)), "pending", "{lost}");
        assert_eq!(fixture.graph.failed_on(unit(0, 0)), [worker("a")]);
        assert!(fixture.graph.next_wakeup().is_some(), "it waits until the worker drains");
        fixture.graph.advance(Millis(1_000_000));
    }
    let task = fixture.bind(unit(0, 0), "a").task;
    fixture.fail(task, FailureKind::DeviceLost);
    let failure = fixture.failure();
    for part in ["said the worker", "its work was lost 16 times"] {
        assert!(failure.contains(part), "{part} is not in: {failure}");
    }
}

#[test]
fn a_block_that_a_reader_misses_is_recomputed_and_not_the_readers_fault() {
    let mut fixture = Fixture::pair();
    fixture.run(unit(0, 0), "a", 2);
    let block = unit(0, 0).block(0);
    let reader = fixture.bind_blocks(&[block], "b").task;
    fixture.fail(reader, FailureKind::BlockLost(block));
    assert_eq!(fixture.recomputed(), [(unit(0, 0), Cause::BlockLost(block))]);
    assert_eq!(fixture.graph.failed_on(unit(1, 0)), []);
    assert_eq!(fixture.graph.failed_on(unit(0, 0)), [worker("a")], "better made elsewhere");
    assert_eq!(fixture.bind(unit(0, 0), "b").skip, [1], "the other block is still there");
}

#[test]
fn a_block_that_is_lost_again_and_again_ends_the_job() {
    let mut fixture = Fixture::pair();
    let block = unit(0, 0).block(0);
    fixture.run(unit(0, 0), "a", 1);
    let mut reader = fixture.bind_blocks(&[block], "b").task;
    let mut waits = vec![];
    for _ in 0..7 {
        fixture.fail(reader, FailureKind::BlockLost(block));
        waits.extend(fixture.graph.next_wakeup().map(|until| until.since(NOW)));
        fixture.graph.advance(Millis(1_000_000));
        fixture.run(unit(0, 0), "a", 1);
        reader = fixture.bind(unit(1, 0), "b").task;
    }
    assert_eq!(waits, [400, 800, 1600, 3200, 6400, 12800], "none after the first loss");
    fixture.fail(reader, FailureKind::BlockLost(block));
    let failure = fixture.failure();
    assert!(failure.contains("a block of its output was lost 8 times"), "{failure}");
}

#[test]
fn a_lost_output_of_a_shuffle_is_recomputed() {
    let edges = [(0, 1, EdgeKind::Broadcast)];
    let mut fixture = Fixture::new(spec(vec![stage(3), stage(1)], &edges));
    fixture.run(unit(0, 0), "a", 2);
    fixture.run(unit(0, 1), "b", 1);
    fixture.run(unit(0, 2), "a", 1);
    let reader = fixture.bind(unit(1, 0), "b").task;
    let (stage, on) = (StageId(0), worker("a"));
    fixture.fail(reader, FailureKind::OutputLost { stage, worker: on });
    assert_eq!(fixture.state(unit(0, 0)), "pending");
    assert_eq!(fixture.state(unit(0, 1)), "done");
    assert_eq!(fixture.state(unit(0, 2)), "pending");
    assert_eq!(fixture.state(unit(1, 0)), "pending");
}

#[test]
fn a_reader_that_names_a_block_it_does_not_read_has_failed_itself() {
    let mut fixture = Fixture::pair();
    fixture.run(unit(0, 0), "a", 2);
    let reader = fixture.bind_blocks(&[unit(0, 0).block(0)], "b").task;
    fixture.fail(reader, FailureKind::BlockLost(unit(0, 0).block(1)));
    assert_eq!(fixture.state(unit(0, 0)), "done");
    assert_eq!(fixture.graph.failed_on(unit(1, 0)), [worker("b")]);
}

#[test]
fn after_the_end_reports_only_give_leases_back() {
    let mut fixture = Fixture::pair();
    let task = fixture.bind(unit(0, 0), "a").task;
    let actions =
        fixture.apply(Event::Canceled(RemoteError::new(ErrorKind::Canceled, "the user left")));
    assert_eq!(actions[0], Action::CancelTask { task, worker: worker("a") });
    assert_eq!(fixture.failure(), "canceled: the user left");
    assert_eq!(fixture.graph.slots().count(), 1);
    assert!(fixture.finish(task, 3).is_empty());
    assert_eq!(fixture.graph.slots().count(), 0);
    assert!(fixture.lose("a").is_empty());
    let late = fixture.try_bind(Work::Unit(unit(0, 1)), "a");
    assert_eq!(late, Err(BindError::JobIsOver));
}
