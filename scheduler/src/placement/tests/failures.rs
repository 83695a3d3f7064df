//! Workers that failed, stop, or could not be read.

use forebay_engine::{ErrorKind, RemoteError};

use super::*;
use crate::graph::{Failure, FailureKind};

#[test]
fn a_unit_that_failed_goes_to_another_worker_if_there_is_one() {
    let mut graph = job(vec![scan(1)], &[]);
    let workers = [worker("a", 1, 0), worker("b", 1, 0)];
    let fail = |graph: &mut JobGraph, task| {
        let failure = Failure::new(FailureKind::Passing, "no");
        graph.apply(Event::TaskFailed { task, failure }, Millis(0));
        graph.advance(Millis(1_000_000));
    };
    let first = round(&mut graph, &workers);
    assert_eq!(told(&first), ["0.0 on a"]);
    fail(&mut graph, first[0].bound.task);
    let second = round(&mut graph, &workers);
    assert_eq!(told(&second), ["0.0 on b"]);
    fail(&mut graph, second[0].bound.task);
    assert_eq!(told(&round(&mut graph, &workers[..1])), ["0.0 on a"], "there is no other");
}

#[test]
fn a_worker_that_stops_gets_nothing_and_a_canceled_task_still_counts() {
    let mut graph = job(vec![scan(2)], &[]);
    let mut workers = [worker("a", 1, 0)];
    workers[0].is_draining = true;
    assert!(round(&mut graph, &workers).is_empty());
    workers[0].is_draining = false;
    let task = round(&mut graph, &workers)[0].bound.task;
    graph.apply(Event::Canceled(RemoteError::new(ErrorKind::Canceled, "")), Millis(0));
    let mut other = job(vec![scan(1)], &[]);
    assert_eq!(together(&mut graph, &mut other, &workers).len(), 0);
    graph.apply(Event::TaskEnded { task }, Millis(0));
    assert_eq!(together(&mut graph, &mut other, &workers).len(), 1);
}

/// A round of two jobs.
fn together(graph: &mut JobGraph, other: &mut JobGraph, workers: &[WorkerState]) -> Vec<Binding> {
    let (first, second) = (&mut PaperBudget::default(), &mut PaperBudget::default());
    let other = Job { id: "other", ..job_of(other, second) };
    place(&mut [job_of(graph, first), other], &mut fleet(workers), Millis(0))
}

/// A scan's output, written on a worker, that a reader on another one could not have.
fn unreadable(on: &WorkerState, reader: &WorkerState) -> JobGraph {
    let mut graph = job(vec![scan(1), infer()], &[(0, 1, BLOCK, u64::MAX)]);
    let scan = round(&mut graph, std::slice::from_ref(on)).remove(0).bound;
    finish(&mut graph, scan.task, &[1]);
    let read = round(&mut graph, std::slice::from_ref(reader)).remove(0).bound;
    let failure = Failure::new(FailureKind::BlockLost(scan.unit.block(0)), "silent");
    graph.apply(Event::TaskFailed { task: read.task, failure }, Millis(0));
    graph
}

#[test]
fn what_could_not_be_read_from_a_worker_waits_for_another_one() {
    let (a, b, reader) = (worker("a", 1, 0), worker("b", 1, 0), worker("g", 0, 1));
    let mut graph = unreadable(&a, &reader);
    let mut other = job(vec![scan(1)], &[]);
    let busy = round(&mut other, std::slice::from_ref(&b)).remove(0).bound.task;
    let workers = [a.clone(), b, reader.clone()];
    assert_eq!(told(&together(&mut graph, &mut other, &workers)), [""; 0]);
    finish(&mut other, busy, &[1]);
    assert_eq!(told(&together(&mut graph, &mut other, &workers)), ["0.0 on b"]);
    let alone = round(&mut unreadable(&a, &reader), &[a, reader]);
    assert_eq!(told(&alone), ["0.0 on a"]);
}

/// It is left out itself, so it would be waited for for ever.
#[test]
fn what_could_not_be_read_waits_for_nobody_whose_disk_fails() {
    let (a, bad, reader) = (worker("a", 1, 0), worker("bad", 1, 0), worker("g", 0, 1));
    let mut graph = job(vec![scan(2), infer()], &[(0, 1, BLOCK, u64::MAX)]);
    let scan = round(&mut graph, std::slice::from_ref(&a)).remove(0).bound;
    let other = round(&mut graph, std::slice::from_ref(&bad)).remove(0).bound;
    let failure = Failure::new(FailureKind::DiskBroken, "input/output error");
    graph.apply(Event::TaskFailed { task: other.task, failure }, Millis(0));
    finish(&mut graph, scan.task, &[1]);
    let read = round(&mut graph, std::slice::from_ref(&reader)).remove(0).bound;
    let failure = Failure::new(FailureKind::BlockLost(scan.unit.block(0)), "silent");
    graph.apply(Event::TaskFailed { task: read.task, failure }, Millis(0));
    assert_eq!(told(&round(&mut graph, &[a, bad, reader])), ["0.0 on a"]);
}

/// Its disk fails each task at once, so that it would always be the one that is free.
#[test]
fn a_worker_whose_disk_fails_gets_nothing_as_long_as_there_are_others() {
    let mut graph = job(vec![scan(9)], &[]);
    let workers = [worker("bad", 4, 0), worker("good", 1, 0)];
    let bad = WorkerId::new("bad");
    let bound = round(&mut graph, &workers);
    for binding in &bound {
        let task = binding.bound.task;
        let failure = Failure::new(FailureKind::DiskBroken, "input/output error");
        if binding.worker == bad {
            graph.apply(Event::TaskFailed { task, failure }, Millis(0));
        }
    }
    assert!(bound.iter().any(|binding| binding.worker == bad));
    let busy = round(&mut graph, &workers);
    assert_eq!(told(&busy), [""; 0], "it waits for the good one");
    let alone = round(&mut graph, &workers[..1]);
    assert!(!alone.is_empty(), "better than to wait for ever");
}
