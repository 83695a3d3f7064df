//! Tasks that begin before all is there that they read.

use super::*;
use crate::graph::{Segment, Segments, UnitState};

/// So many tasks that deal rows out, and four that read them.
fn shuffle(maps: u32) -> JobGraph {
    let (maps, reduces) = (scan(maps), StageSpec::new("reduces", Need::cpus(1000), 4));
    let edge = EdgeSpec::new(StageId(0), StageId(1), EdgeKind::Hash).pipelined();
    let spec = JobSpec { stages: vec![maps, reduces], edges: vec![edge], ..JobSpec::default() };
    JobGraph::try_new(spec).unwrap()
}

fn deal(graph: &mut JobGraph, task: TaskId) {
    let segment = Segment { partition: 0, at: 0, bytes: 10, rows: 1, checksum: 1 };
    let segments = Some(Segments::new(&[segment]));
    let block = BlockReport { seq: 0, bytes: 10, rows: 1, checksum: 1, run: None, segments };
    graph.apply(Event::TaskFinished { task, blocks: vec![block] }, Millis(0));
}

/// A task that is in the way, and which job's it is.
type Displaced = Option<(usize, TaskId)>;

/// Two of these at a time, in one fleet.
struct Jobs {
    graphs: [JobGraph; 2],
    papers: [PaperBudget; 2],
    fleet: Fleet,
}

impl Jobs {
    fn new(graphs: [JobGraph; 2], workers: &[WorkerState]) -> Self {
        Self { graphs, papers: Default::default(), fleet: fleet(workers) }
    }

    /// What is bound, and what is in the way.
    fn round(&mut self) -> (Vec<(usize, String)>, Displaced) {
        let jobs = self.graphs.iter_mut().zip(&mut self.papers).zip(["one", "other"]);
        let mut jobs: Vec<_> =
            jobs.map(|((graph, paper), id)| Job { id, ..job_of(graph, paper) }).collect();
        let bindings = place(&mut jobs, &mut self.fleet, Millis(0));
        let bound = bindings.iter().map(|binding| (binding.job, binding.bound.unit.to_string()));
        (bound.collect(), in_the_way(&jobs, &self.fleet))
    }
}

#[test]
fn what_would_wait_gets_what_others_leave() {
    let workers = [worker("a", 3, 0)];
    let mut jobs = Jobs::new([shuffle(3), job(vec![scan(0)], &[])], &workers);
    let bound =
        |units: &[&str]| -> Vec<_> { units.iter().map(|unit| (0, (*unit).to_owned())).collect() };
    assert_eq!(jobs.round(), (bound(&["0.0", "0.1", "0.2"]), None));
    deal(&mut jobs.graphs[0], StageId(0).task(0));
    assert_eq!(jobs.round(), (bound(&["1.0"]), None));
    deal(&mut jobs.graphs[0], StageId(0).task(1));
    assert_eq!(jobs.round(), (bound(&["1.1"]), None));
    deal(&mut jobs.graphs[0], StageId(0).task(2));
    assert_eq!(jobs.round(), (bound(&["1.2"]), None), "as ever");
}

#[test]
fn it_gets_nothing_as_long_as_another_job_has_work_that_found_no_worker() {
    let workers = [worker("a", 2, 0)];
    let (device, mut needy) = (worker("b", 0, 1), infer());
    needy.partitions = 2;
    let mut jobs = Jobs::new([shuffle(2), job(vec![needy], &[])], &[workers[0].clone(), device]);
    assert_eq!(jobs.round().0.len(), 3, "one finds no device");
    deal(&mut jobs.graphs[0], StageId(0).task(0));
    assert_eq!(jobs.round(), (vec![], None));
    finish(&mut jobs.graphs[1], StageId(0).task(0), &[1]);
    assert_eq!(jobs.round(), (vec![(1, "0.1".to_owned()), (0, "1.0".to_owned())], None));
}

#[test]
fn it_gives_back_what_is_wanted_one_after_the_other() {
    let workers = [worker("a", 2, 0), worker("b", 1, 0)];
    let mut jobs = Jobs::new([shuffle(3), job(vec![scan(2)], &[])], &workers);
    let other = std::mem::replace(&mut jobs.graphs[1], job(vec![scan(0)], &[]));
    assert_eq!(jobs.round().0.len(), 3);
    (0..2).for_each(|task| deal(&mut jobs.graphs[0], StageId(0).task(task)));
    assert_eq!(jobs.round().0.len(), 2);
    jobs.graphs[1] = other;
    for left in [1, 0] {
        let (bound, displaced) = jobs.round();
        assert_eq!(bound, []);
        let (at, task) = displaced.unwrap();
        assert_eq!((at, task.stage), (0, StageId(1)));
        jobs.graphs[0].apply(Event::Displaced { task }, Millis(0));
        assert_eq!(jobs.round(), (vec![], None), "it has not ended");
        jobs.graphs[0].apply(Event::TaskEnded { task }, Millis(0));
        assert_eq!(jobs.graphs[0].early_tasks().count(), left);
        let (bound, _) = jobs.round();
        assert_eq!(bound.len(), 1, "{bound:?}");
        assert_eq!(bound[0].0, 1);
    }
    assert_eq!(jobs.round(), (vec![], None), "nothing wants more");
}

/// A cluster of one slot ends any job, and one whose slots are all waited on does.
#[test]
fn what_it_waits_for_takes_its_place_when_that_has_to_begin_again() {
    let workers = [worker("a", 1, 0), worker("b", 1, 0)];
    let mut jobs = Jobs::new([shuffle(2), job(vec![scan(0)], &[])], &workers);
    jobs.round();
    let on = |jobs: &Jobs, task| jobs.graphs[0].worker_of(task).unwrap().clone();
    let (first, second) = (StageId(0).task(0), StageId(0).task(1));
    deal(&mut jobs.graphs[0], first);
    assert_eq!(jobs.round().0, [(0, "1.0".to_owned())]);
    let lost = on(&jobs, second);
    jobs.graphs[0].apply(Event::WorkerLost { worker: lost.clone() }, Millis(0));
    jobs.fleet.attend(workers.into_iter().filter(|worker| worker.id != lost).collect());
    let (bound, displaced) = jobs.round();
    assert_eq!(bound, []);
    let (_, task) = displaced.unwrap();
    assert_eq!(task, StageId(1).task(0));
    jobs.graphs[0].apply(Event::Displaced { task }, Millis(0));
    jobs.graphs[0].apply(Event::TaskEnded { task }, Millis(0));
    assert_eq!(jobs.round(), (vec![(0, "0.1".to_owned())], None));
    let UnitState::Running(again) = jobs.graphs[0].unit_state(StageId(0).unit(1)) else { panic!() };
    deal(&mut jobs.graphs[0], StageId(0).task(again));
    for partition in 0..4 {
        let (bound, _) = jobs.round();
        assert_eq!(bound, [(0, format!("1.{partition}"))]);
        let state = jobs.graphs[0].unit_state(StageId(1).unit(partition));
        let UnitState::Running(task) = state else { panic!("{state:?}") };
        finish(&mut jobs.graphs[0], StageId(1).task(task), &[1]);
    }
    assert!(!jobs.graphs[0].is_running_job());
}
