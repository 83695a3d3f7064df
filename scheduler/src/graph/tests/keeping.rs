//! What is deleted, and when.

use super::*;

fn freed(actions: &[Action]) -> Vec<BlockId> {
    let freed = actions.iter().filter_map(|action| match action {
        Action::FreeBlock { block, .. } => Some(*block),
        _ => None,
    });
    freed.collect()
}

#[test]
fn what_was_consumed_first_is_deleted_first() {
    let mut job = spec(vec![stage(2), stage(0)], &[(0, 1, BLOCK)]);
    job.limits.kept_bytes_max = 20;
    let mut fixture = Fixture::new(job);
    fixture.run(unit(0, 0), "a", 4);
    let mut deleted = vec![];
    for seq in [2, 0, 3, 1] {
        let task = fixture.bind_blocks(&[unit(0, 0).block(seq)], "b").task;
        deleted.extend(freed(&fixture.finish(task, 0)));
    }
    assert_eq!(deleted, [unit(0, 0).block(2), unit(0, 0).block(0)]);
}

#[test]
fn the_input_of_a_reader_that_must_run_again_is_no_longer_deleted() {
    let edges = [(0, 1, BLOCK), (1, 2, BLOCK)];
    let mut job = spec(vec![stage(2), stage(0), stage(0)], &edges);
    job.limits.kept_bytes_max = 10;
    let mut fixture = Fixture::new(job);
    fixture.run(unit(0, 0), "a", 2);
    let first = fixture.bind_blocks(&[unit(0, 0).block(0)], "b").task;
    fixture.finish(first, 1);
    fixture.lose("b");
    let second = fixture.bind_blocks(&[unit(0, 0).block(1)], "c").task;
    assert_eq!(freed(&fixture.finish(second, 1)), [], "one block is needed, one fits");
    assert_eq!(fixture.block_state(unit(0, 0).block(0)), BlockState::Assigned);
}

#[test]
fn the_output_of_a_shuffle_is_consumed_when_its_reader_is_complete() {
    let edges = [(0, 1, EdgeKind::Blocking), (1, 2, EdgeKind::Blocking)];
    let mut job = spec(vec![stage(1), stage(2), stage(1)], &edges);
    job.limits.kept_bytes_max = 0;
    let mut fixture = Fixture::new(job);
    fixture.run(unit(0, 0), "a", 1);
    fixture.run(unit(1, 0), "a", 1);
    let last = fixture.bind(unit(1, 1), "a").task;
    assert_eq!(freed(&fixture.finish(last, 1)), [unit(0, 0).block(0)]);
}

#[test]
fn nothing_of_a_failed_job_stays() {
    let mut fixture = Fixture::pair();
    fixture.run(unit(0, 0), "a", 2);
    let task = fixture.bind(unit(0, 1), "a").task;
    assert_eq!(freed(&fixture.fail(task, FailureKind::Final(ErrorKind::InvalidArgument))).len(), 2);
}

#[test]
fn bytes_are_charged_to_their_producer_until_they_are_consumed() {
    let mut fixture = Fixture::pair();
    let fill = |fixture: &Fixture| {
        let edge = fixture.graph.budgeted_outputs(StageId(0), Millis(0)).next().unwrap();
        (edge.unconsumed_bytes, edge.expected_bytes)
    };
    let guess = 128 << 20;
    let task = fixture.bind(unit(0, 0), "a").task;
    assert_eq!(fill(&fixture), (0, guess));
    fixture.seal(task, 0);
    assert_eq!(fill(&fixture), (10, guess - 10));
    let consumer = fixture.bind_blocks(&[unit(0, 0).block(0)], "b").task;
    fixture.finish(task, 1);
    assert_eq!(fill(&fixture), (10, 0));
    fixture.finish(consumer, 0);
    assert_eq!(fill(&fixture), (0, 0));
    assert_eq!(fixture.graph.learned(StageId(0)).expected_bytes(), 10);
}

#[test]
fn an_edge_has_no_budget_if_its_reader_waits_for_all_of_its_producer() {
    // The scan streams to a join, whose other side is an aggregate of the same scan.
    let edges = [(0, 2, BLOCK), (0, 1, EdgeKind::Blocking), (1, 2, EdgeKind::Broadcast)];
    let fixture = Fixture::new(spec(vec![stage(2), stage(1), stage(0)], &edges));
    assert_eq!(fixture.graph.budgeted_outputs(StageId(0), Millis(0)).count(), 0);
    // The other side is another scan: waiting for it can be bounded.
    let edges = [(0, 2, BLOCK), (1, 2, EdgeKind::Broadcast)];
    let fixture = Fixture::new(spec(vec![stage(2), stage(1), stage(0)], &edges));
    assert_eq!(fixture.graph.budgeted_outputs(StageId(0), Millis(0)).count(), 1);
}

#[test]
fn a_full_disk_costs_what_was_kept_on_it_and_nothing_else() {
    let mut fixture = Fixture::pair();
    fixture.run(unit(0, 0), "a", 3);
    for seq in [0, 1] {
        let task = fixture.bind_blocks(&[unit(0, 0).block(seq)], "b").task;
        fixture.finish(task, 1);
    }
    let task = fixture.bind(unit(0, 1), "b").task;
    assert_eq!(freed(&fixture.fail(task, FailureKind::DiskFull)), [], "nothing is kept on b");
    fixture.graph.advance(Millis(1_000_000));
    let task = fixture.bind(unit(0, 1), "a").task;
    let consumed = [unit(0, 0).block(0), unit(0, 0).block(1)];
    assert_eq!(freed(&fixture.fail(task, FailureKind::DiskFull)), consumed);
    assert_eq!(fixture.block_state(unit(0, 0).block(2)), BlockState::Sealed);
}

#[test]
fn a_full_worker_keeps_nothing_that_has_been_read() {
    let mut fixture = Fixture::pair();
    fixture.run(unit(0, 0), "a", 3);
    for seq in [0, 1] {
        let task = fixture.bind_blocks(&[unit(0, 0).block(seq)], "b").task;
        fixture.finish(task, 1);
    }
    let full = |name| Event::WorkerFull { worker: worker(name) };
    assert_eq!(freed(&fixture.apply(full("b"))), [], "nothing is kept on b");
    let consumed = [unit(0, 0).block(0), unit(0, 0).block(1)];
    assert_eq!(freed(&fixture.apply(full("a"))), consumed);
    assert_eq!(fixture.block_state(unit(0, 0).block(2)), BlockState::Sealed);
}

#[test]
fn a_full_disk_counts_against_a_unit_only_if_nothing_has_ended_well_since() {
    let mut fixture = Fixture::new(spec(vec![stage(9)], &[]));
    for other in 1..9 {
        let task = fixture.bind(unit(0, 0), "a").task;
        fixture.fail(task, FailureKind::DiskFull);
        fixture.run(unit(0, other), "a", 1);
        fixture.graph.advance(Millis(1_000_000));
    }
    for _ in 0..5 {
        let task = fixture.bind(unit(0, 0), "a").task;
        fixture.fail(task, FailureKind::DiskFull);
        fixture.graph.advance(Millis(1_000_000));
    }
    assert!(fixture.failure().contains("4 failures of one unit"), "{}", fixture.failure());
}

#[test]
fn a_worker_is_needed_as_long_as_it_runs_or_holds_what_somebody_has_yet_to_read() {
    let mut fixture = Fixture::pair();
    let [a, b] = ["a", "b"].map(worker);
    let first = fixture.bind(unit(0, 0), "a").task;
    assert!(fixture.graph.needs_worker(&a) && !fixture.graph.needs_worker(&b));
    fixture.finish(first, 1);
    assert!(fixture.graph.needs_worker(&a), "its block is not read");
    let reader = fixture.bind_blocks(&[unit(0, 0).block(0)], "b").task;
    fixture.finish(reader, 1);
    assert!(!fixture.graph.needs_worker(&a), "what it holds is only kept");
    assert!(fixture.graph.needs_worker(&b), "it holds a part of the result");
}
