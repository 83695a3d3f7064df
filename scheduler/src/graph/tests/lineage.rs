//! What runs again when something is gone, and what does not.

use super::*;

/// A scan of one block per partition, and two stages behind it, on a worker each.
fn chain() -> Fixture {
    let mut job = spec(vec![stage(2), stage(0), stage(0)], &[(0, 1, BLOCK), (1, 2, BLOCK)]);
    // Nothing that is consumed stays.
    job.limits.kept_bytes_max = 0;
    Fixture::new(job)
}

fn second_edge(blocks: &[BlockId]) -> Work {
    Work::Blocks { edge: EdgeId(1), blocks: blocks.to_vec() }
}

#[test]
fn a_consumed_block_is_not_recomputed() {
    let mut fixture = Fixture::pair();
    fixture.run(unit(0, 0), "a", 1);
    let consumer = fixture.bind_blocks(&[unit(0, 0).block(0)], "b").task;
    fixture.finish(consumer, 1);
    assert_eq!(fixture.block_state(unit(0, 0).block(0)), BlockState::Consumed);
    assert!(fixture.lose("a").is_empty());
    assert_eq!(fixture.block_state(unit(0, 0).block(0)), BlockState::Lost);
    assert_eq!(fixture.recomputed(), []);
}

#[test]
fn a_block_that_waits_is_recomputed_and_skips_what_is_consumed() {
    let mut fixture = Fixture::pair();
    fixture.run(unit(0, 0), "a", 3);
    let consumer = fixture.bind_blocks(&[unit(0, 0).block(1)], "b").task;
    fixture.finish(consumer, 1);
    let why = Cause::WorkerLost(worker("a"));
    let again = Action::Recomputing { unit: unit(0, 0), why };
    assert_eq!(fixture.lose("a"), [again]);
    let bound = fixture.bind(unit(0, 0), "b");
    assert_eq!((bound.attempt, bound.skip), (2, vec![1]));
    let task = bound.task;
    let blocks = vec![report(0), report(2)];
    fixture.apply(Event::TaskFinished { task, blocks });
    assert_eq!(fixture.state(unit(0, 0)), "done");
    assert_eq!(fixture.block_state(unit(0, 0).block(0)), BlockState::Sealed);
}

#[test]
fn a_lost_output_reaches_back_as_far_as_inputs_are_gone() {
    let mut fixture = chain();
    fixture.run(unit(0, 0), "a", 1);
    fixture.run(unit(0, 1), "a", 1);
    for partition in [0, 1] {
        let on = ["b", "c"][partition as usize];
        let task = fixture.bind_blocks(&[unit(0, partition).block(0)], on).task;
        let freed = fixture.finish(task, 1);
        assert!(matches!(freed[..], [Action::FreeBlock { .. }]), "{freed:?}");
    }
    fixture.lose("b");
    let expected =
        [(unit(1, 0), Cause::WorkerLost(worker("b"))), (unit(0, 0), Cause::InputOf(unit(1, 0)))];
    assert_eq!(fixture.recomputed(), expected);
    assert_eq!(fixture.state(unit(0, 1)), "done");
    assert_eq!(fixture.state(unit(1, 1)), "done");
    assert!(fixture.graph.ready(StageId(1)).is_none(), "its input is not there");
    fixture.run(unit(0, 0), "a", 1);
    assert_eq!(fixture.bind(unit(1, 0), "a").inputs.len(), 1);
}

#[test]
fn kept_inputs_save_the_way_back_to_the_scan() {
    let mut fixture = chain();
    fixture.graph.limits.kept_bytes_max = 1000;
    fixture.run(unit(0, 0), "a", 1);
    let task = fixture.bind_blocks(&[unit(0, 0).block(0)], "b").task;
    fixture.finish(task, 1);
    fixture.lose("b");
    assert_eq!(fixture.recomputed(), [(unit(1, 0), Cause::WorkerLost(worker("b")))]);
    assert_eq!(fixture.block_state(unit(0, 0).block(0)), BlockState::Assigned);
    fixture.bind(unit(1, 0), "c");
}

#[test]
fn a_reader_elsewhere_is_canceled_when_its_input_is_lost() {
    let mut fixture = Fixture::pair();
    fixture.run(unit(0, 0), "a", 2);
    fixture.run(unit(0, 1), "c", 1);
    let reader = fixture.bind_blocks(&[unit(0, 0).block(0)], "b").task;
    let other = fixture.bind_blocks(&[unit(0, 1).block(0)], "b").task;
    let actions = fixture.lose("a");
    assert_eq!(actions[0], Action::CancelTask { task: reader, worker: worker("b") });
    assert_eq!(fixture.state(unit(1, 0)), "pending");
    assert!(fixture.graph.is_running(other), "it reads something else");
    let draining = fixture.graph.task_rows().filter(|row| row.is_draining);
    assert_eq!(draining.map(|row| row.id).collect::<Vec<_>>(), [reader]);
    assert_eq!(fixture.graph.slots().count(), 2, "both still hold what they were given");
    fixture.apply(Event::TaskEnded { task: reader });
    assert_eq!(fixture.graph.slots().count(), 1);
}

#[test]
fn blocks_of_an_attempt_that_failed_stay() {
    let mut fixture = Fixture::pair();
    let first = fixture.bind(unit(0, 0), "a").task;
    fixture.seal(first, 0);
    fixture.seal(first, 1);
    let consumer = fixture.bind_blocks(&[unit(0, 0).block(0)], "b").task;
    fixture.fail(first, FailureKind::Passing);
    assert!(fixture.graph.is_running(consumer));
    fixture.graph.advance(Millis(10_000));
    let bound = fixture.bind(unit(0, 0), "b");
    assert_eq!(bound.skip, [0, 1]);
    fixture.finish(bound.task, 3);
    let workers: Vec<_> = fixture.graph.outputs(StageId(0)).map(|i| i.worker).collect();
    assert_eq!(workers, [worker("a"), worker("a"), worker("b")]);
}

#[test]
fn a_skipped_block_that_is_lost_meanwhile_is_written_by_one_more_attempt() {
    let mut fixture = Fixture::pair();
    let first = fixture.bind(unit(0, 0), "a").task;
    fixture.seal(first, 0);
    fixture.fail(first, FailureKind::Passing);
    fixture.graph.advance(Millis(10_000));
    let second = fixture.bind(unit(0, 0), "b").task;
    fixture.lose("a");
    fixture.finish(second, 2);
    assert_eq!(fixture.recomputed(), [(unit(0, 0), Cause::SkippedAndLost)]);
    let third = fixture.bind(unit(0, 0), "b");
    assert_eq!(third.skip, [1]);
}

#[test]
fn an_announcement_that_comes_after_its_attempt_has_failed_is_ignored() {
    let mut fixture = Fixture::pair();
    let first = fixture.bind(unit(0, 0), "a").task;
    fixture.fail(first, FailureKind::Passing);
    fixture.graph.advance(Millis(10_000));
    let second = fixture.bind(unit(0, 0), "b").task;
    fixture.seal(first, 0);
    assert_eq!(fixture.graph.outputs(StageId(0)).count(), 0);
    fixture.seal(second, 0);
    assert_eq!(fixture.graph.outputs(StageId(0)).next().unwrap().writer, second);
    assert_eq!(fixture.graph.stale_reports(), 1);
}

#[test]
fn a_worker_that_comes_back_is_not_listened_to() {
    let mut fixture = Fixture::pair();
    let first = fixture.bind(unit(0, 0), "a").task;
    fixture.lose("a");
    fixture.finish(first, 1);
    assert_eq!(fixture.state(unit(0, 0)), "pending");
    let second = fixture.bind(unit(0, 0), "b").task;
    fixture.seal(first, 0);
    fixture.finish(second, 1);
    let writers: Vec<_> = fixture.graph.outputs(StageId(0)).map(|input| input.writer).collect();
    assert_eq!(writers, [second]);
}

#[test]
fn a_lost_shuffle_output_stops_all_its_readers_and_is_recomputed_alone() {
    let edges = [(0, 1, EdgeKind::Blocking)];
    let mut fixture = Fixture::new(spec(vec![stage(2), stage(3)], &edges));
    fixture.run(unit(0, 0), "a", 1);
    fixture.run(unit(0, 1), "b", 1);
    fixture.run(unit(1, 0), "c", 1);
    fixture.bind(unit(1, 1), "c");
    let actions = fixture.lose("a");
    assert_eq!(actions.len(), 2, "{actions:?}");
    let states = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(s, i)| fixture.state(unit(s, i)));
    assert_eq!(states, ["pending", "done", "done", "pending"]);
    assert!(fixture.graph.ready(StageId(1)).is_none());
    fixture.run(unit(0, 0), "b", 1);
    assert_eq!(fixture.graph.ready(StageId(1)).unwrap().len(), 2);
}

#[test]
fn a_block_with_two_readers_is_needed_until_both_are_done() {
    let edges = [(0, 1, BLOCK), (0, 2, BLOCK)];
    let mut job = spec(vec![stage(1), stage(0), stage(0)], &edges);
    job.limits.kept_bytes_max = 0;
    let mut fixture = Fixture::new(job);
    fixture.run(unit(0, 0), "a", 1);
    let block = unit(0, 0).block(0);
    let first = fixture.bind_blocks(&[block], "b").task;
    assert!(fixture.finish(first, 1).is_empty());
    let second = fixture.try_bind(second_edge(&[block]), "b").unwrap().task;
    let actions = fixture.finish(second, 1);
    assert!(matches!(actions[..], [Action::FreeBlock { .. }, Action::JobFinished]));
}

#[test]
fn a_rerun_that_nobody_needs_any_more_does_not_run_again() {
    let mut fixture = Fixture::pair();
    fixture.run(unit(0, 0), "a", 1);
    fixture.lose("a");
    let again = fixture.bind(unit(0, 0), "b").task;
    fixture.seal(again, 0);
    let consumer = fixture.bind_blocks(&[unit(0, 0).block(0)], "c").task;
    fixture.finish(consumer, 1);
    fixture.fail(again, FailureKind::Passing);
    assert_eq!(fixture.state(unit(0, 0)), "done");
}
