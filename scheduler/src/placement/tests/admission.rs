//! What the budgets of edges and jobs hold back.

use super::*;

#[test]
fn producers_are_admitted_while_their_output_fits() {
    let workers = [worker("a", 8, 0), worker("g", 0, 1)];
    let mut graph = job(vec![scan(8), infer()], &[(0, 1, BLOCK, 250)]);
    let bindings = round(&mut graph, &workers);
    assert_eq!(bindings.len(), 2, "each is expected to give 100 bytes of 250");
    finish(&mut graph, bindings[0].bound.task, &[40]);
    // 40 sealed, 100 expected of the one that runs, and 40 of each new one.
    let bindings = round(&mut graph, &workers);
    assert_eq!(told(&bindings), ["1.0 on g", "0.2 on a", "0.3 on a"]);
}

#[test]
fn one_producer_is_admitted_however_large_its_output() {
    let workers = [worker("a", 8, 1)];
    let mut graph = job(vec![scan(8), infer()], &[(0, 1, BLOCK, 1)]);
    assert_eq!(round(&mut graph, &workers).len(), 1);
    assert_eq!(round(&mut graph, &workers).len(), 0);
}

#[test]
fn bytes_never_exceed_the_budget_while_a_slow_consumer_drains_them() {
    let workers = [worker("a", 8, 0), worker("g", 0, 1)];
    let mut consumer = infer();
    consumer.group_bytes_max = 1;
    for (budget, most) in [(250, 250), (1, 100), (u64::MAX, 5000)] {
        let mut graph = job(vec![scan(50), consumer.clone()], &[(0, 1, BLOCK, budget)]);
        let mut seen_most = 0;
        let mut consuming = None;
        for _ in 0..200 {
            for binding in round(&mut graph, &workers) {
                match binding.bound.unit.stage {
                    StageId(0) => finish(&mut graph, binding.bound.task, &[50, 50]),
                    _ => consuming = Some(binding.bound.task),
                }
            }
            let fill = graph.budgeted_outputs(StageId(0), Millis(0)).next().unwrap();
            seen_most = seen_most.max(fill.unconsumed_bytes + fill.expected_bytes);
            consuming.take().iter().for_each(|task| finish(&mut graph, *task, &[]));
        }
        assert!(!graph.is_running_job(), "budget {budget}");
        assert!(seen_most <= most && seen_most >= most.min(250), "{seen_most} of {budget}");
    }
}

#[test]
fn without_admission_everything_runs_that_fits() {
    let workers = [worker("a", 8, 1)];
    let mut graph = job(vec![scan(9), infer()], &[(0, 1, BLOCK, 1)]);
    let paper = &mut PaperBudget::default();
    let jobs = &mut [Job { admission: Admission::Off, ..job_of(&mut graph, paper) }];
    assert_eq!(place(jobs, &mut fleet(&workers), Millis(0)).len(), 8);
}

#[test]
fn half_of_the_jobs_budget_is_kept_for_what_runs_behind_the_sources() {
    let workers = [worker("a", 8, 1)];
    let stages = || vec![scan(8), infer(), infer()];
    let mut graph = job(stages(), &[(0, 1, BLOCK, u64::MAX), (1, 2, BLOCK, u64::MAX)]);
    graph.set_buffered_bytes_max(800);
    assert_eq!(round(&mut graph, &workers).len(), 4);
    let mut graph = job(vec![scan(8), infer()], &[(0, 1, BLOCK, u64::MAX)]);
    graph.set_buffered_bytes_max(800);
    assert_eq!(round(&mut graph, &workers).len(), 8, "nothing runs behind that has a budget");
}

#[test]
fn budgets_that_hold_each_other_back_do_not_stop_a_job() {
    // Two scans stream to two joins; each join also waits for an aggregate of the other's scan.
    let edges = [
        (0, 2, BLOCK, 1),
        (1, 3, BLOCK, 1),
        (1, 4, EdgeKind::Blocking, 0),
        (0, 5, EdgeKind::Blocking, 0),
        (4, 2, EdgeKind::Broadcast, 0),
        (5, 3, EdgeKind::Broadcast, 0),
    ];
    let join = || StageSpec::new("join", Need::cpus(1000), 0);
    let total = || StageSpec::new("total", Need::cpus(1000), 1);
    let stages = vec![scan(3), scan(3), join(), join(), total(), total()];
    let mut graph = job(stages, &edges);
    let workers = [worker("a", 1, 0)];
    for _ in 0..100 {
        for binding in round(&mut graph, &workers) {
            finish(&mut graph, binding.bound.task, &[10]);
        }
    }
    assert!(!graph.is_running_job(), "{:?}", graph.units().collect::<Vec<_>>());
}

#[test]
fn the_papers_policy_starts_sources_at_the_rate_of_the_pipeline() {
    let workers = [worker("a", 2, 0), worker("g", 0, 1)];
    let mut graph = job(vec![scan(9), infer()], &[(0, 1, BLOCK, u64::MAX)]);
    graph.set_buffered_bytes_max(250);
    let mut paper = PaperBudget::default();
    let mut at = |graph: &mut JobGraph, now| {
        let paper = &mut paper;
        let job = Job { admission: Admission::Paper, ..job_of(graph, paper) };
        place(&mut [job], &mut fleet(&workers), Millis(now))
    };
    // All of the memory at first: two of 100 bytes, though more would fit the cores later.
    let bindings = at(&mut graph, 0);
    assert_eq!(bindings.len(), 2);
    for binding in bindings {
        let report =
            BlockReport { seq: 0, bytes: 100, rows: 1, checksum: 1, run: None, segments: None };
        let event = Event::TaskFinished { task: binding.bound.task, blocks: vec![report] };
        graph.apply(event, Millis(4000));
    }
    // T = 4 s on E = 2 slots: P = 2 s, so that a second earns half a partition; one is left from
    // before, and four seconds have passed.
    let bindings = at(&mut graph, 4000);
    let sources = bindings.iter().filter(|binding| binding.bound.unit.stage == StageId(0));
    assert_eq!(sources.count(), 2);
}
