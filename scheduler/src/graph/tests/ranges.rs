//! Sorted runs, read range by range.

use forebay_testkit::random::Random;

use super::*;

/// Stages: runs of two partitions, what reads them in ranges of so many bytes, and a client.
fn spec_of(range_bytes: u64) -> JobSpec {
    let runs = StageSpec::new("runs", Need::cpus(1000), 2);
    let ranges = StageSpec::new("ranges", Need::cpus(1000), 0).with_range_bytes(range_bytes);
    spec(vec![runs, ranges, StageSpec::client()], &[(0, 1, EdgeKind::Ranges), (1, 2, UNIT)])
}

fn key(byte: u8) -> RowKey {
    RowKey::new(&[byte])
}

/// Blocks of 10 bytes that begin with these keys.
fn run_of(keys: &[u8]) -> Vec<BlockReport> {
    let block = |(seq, byte): (u32, &u8)| {
        let run = RunBlock { key: key(*byte), end: None, digest: (*byte).into() };
        BlockReport { run: Some(run), ..report(seq) }
    };
    (0..).zip(keys).map(block).collect()
}

impl Fixture {
    /// Runs a unit of the first stage, which gives a run.
    fn sort(&mut self, index: u32, on: &str, keys: &[u8]) {
        let task = self.bind(unit(0, index), on).task;
        self.apply(Event::TaskFinished { task, blocks: run_of(keys) });
    }

    /// Binds a range. What it reads: blocks by unit, and where it begins and ends.
    fn bind_range(&mut self, index: u32) -> (TaskId, Vec<Vec<BlockId>>, [Option<RowKey>; 2]) {
        let bound = self.bind(unit(1, index), "c");
        let range = bound.range.unwrap();
        let read = self.graph.blocks_in(StageId(0), &range).into_iter();
        let read = read.map(|run| run.into_iter().map(|input| input.block).collect()).collect();
        (bound.task, read, [range.from, range.to])
    }

    fn ready_ranges(&self) -> usize {
        self.graph.ready(StageId(1)).map_or(0, Ready::len)
    }
}

fn blocks(run: u32, seqs: &[u32]) -> Vec<BlockId> {
    seqs.iter().map(|seq| unit(0, run).block(*seq)).collect()
}

#[test]
fn ranges_are_there_when_all_runs_are_and_read_what_they_need_of_each() {
    let mut fixture = Fixture::new(spec_of(20));
    fixture.sort(0, "a", &[1, 3, 5]);
    assert_eq!(fixture.graph.ranges(StageId(1)), None);
    assert_eq!(fixture.ready_ranges(), 0);
    fixture.sort(1, "b", &[2, 4, 6]);
    assert_eq!((fixture.graph.ranges(StageId(1)), fixture.ready_ranges()), (Some(3), 3));
    // What begins before a border may end behind it.
    let (_, read, ends) = fixture.bind_range(0);
    assert_eq!((read, ends), (vec![blocks(0, &[0]), blocks(1, &[0])], [None, Some(key(3))]));
    let (_, read, ends) = fixture.bind_range(1);
    let expected = vec![blocks(0, &[0, 1]), blocks(1, &[0, 1])];
    assert_eq!((read, ends), (expected, [Some(key(3)), Some(key(5))]));
    let (_, read, ends) = fixture.bind_range(2);
    let expected = vec![blocks(0, &[1, 2]), blocks(1, &[1, 2])];
    assert_eq!((read, ends), (expected, [Some(key(5)), None]));
}

#[test]
fn few_rows_none_or_those_without_keys_are_one_range() {
    let runs: [&[&[u8]; 2]; 3] = [&[&[1, 3], &[2]], &[&[], &[]], &[&[7; 3], &[7; 3]]];
    for (keys, range_bytes) in runs.into_iter().zip([31, 1, 61]) {
        let mut fixture = Fixture::new(spec_of(range_bytes));
        fixture.sort(0, "a", keys[0]);
        fixture.sort(1, "b", keys[1]);
        let (task, read, ends) = fixture.bind_range(0);
        assert_eq!(ends, [None, None]);
        assert_eq!(read.concat().len(), keys.concat().len());
        assert_eq!(fixture.ready_ranges(), 0);
        fixture.finish(task, 1);
        assert_eq!(fixture.state(unit(1, 0)), "done");
    }
    let mut fixture = Fixture::new(spec_of(1));
    fixture.run(unit(0, 0), "a", 3);
    fixture.run(unit(0, 1), "b", 3);
    assert_eq!(fixture.bind_range(0).1.concat().len(), 6);
    assert_eq!(fixture.ready_ranges(), 0);
}

#[test]
fn a_lost_run_is_made_again_and_cut_where_it_was() {
    let mut fixture = Fixture::new(spec_of(20));
    fixture.sort(0, "a", &[1, 3, 5]);
    fixture.sort(1, "b", &[2, 4, 6]);
    let (task, ..) = fixture.bind_range(0);
    fixture.finish(task, 1);
    let (task, _, ends) = fixture.bind_range(1);
    let actions = fixture.lose("a");
    let stopped = Action::CancelTask { task, worker: worker("c") };
    assert!(actions.contains(&stopped), "{actions:?}");
    assert_eq!(fixture.recomputed(), [(unit(0, 0), Cause::WorkerLost(worker("a")))]);
    assert_eq!(fixture.ready_ranges(), 0, "a run is missing");
    // The same rows, in other blocks.
    let task = fixture.bind(unit(0, 0), "d").task;
    let again = run_again();
    fixture.apply(Event::TaskFinished { task, blocks: again });
    assert_eq!((fixture.graph.ranges(StageId(1)), fixture.ready_ranges()), (Some(3), 2));
    let (_, read, again) = fixture.bind_range(1);
    assert_eq!((read, again), (vec![blocks(0, &[0, 1]), blocks(1, &[0, 1])], ends));
    assert_eq!(fixture.state(unit(1, 0)), "done", "its rows are there");
}

/// The rows of `run_of(&[1, 3, 5])`, in other blocks.
fn run_again() -> Vec<BlockReport> {
    let mut again = run_of(&[1, 4]);
    again[0].rows = 4;
    let digest = |report: &mut BlockReport, digest| report.run.as_mut().unwrap().digest = digest;
    digest(&mut again[0], u64::MAX);
    digest(&mut again[1], 10);
    again
}

/// A row at a border might be in two ranges then, or in none.
#[test]
fn a_run_that_has_other_rows_when_it_is_made_again_fails_the_job_if_a_range_is_done() {
    let run_again_after = |is_done: bool, blocks: Vec<BlockReport>| {
        let mut fixture = Fixture::new(spec_of(20));
        fixture.sort(0, "a", &[1, 3, 5]);
        fixture.sort(1, "b", &[2, 4, 6]);
        let (task, ..) = fixture.bind_range(0);
        if is_done {
            fixture.finish(task, 1);
        }
        fixture.lose("a");
        let task = fixture.bind(unit(0, 0), "d").task;
        fixture.apply(Event::TaskFinished { task, blocks });
        fixture
    };
    // As many rows, and one of them is another one.
    let mut other = run_again_of_others();
    let failure = run_again_after(true, other.clone()).failure();
    let expected =
        "unit 0.0 gave other rows than at first, and ranges of those it gave at first are done";
    assert!(failure.contains("stage 0 'runs' is not deterministic"), "{failure}");
    assert!(failure.contains(expected) && failure.contains("range_bytes = 0"), "{failure}");
    // A row less.
    let mut fewer = run_again();
    fewer[0].rows -= 1;
    let failure = run_again_after(true, fewer).failure();
    let expected = "unit 0.0 gave 5 rows, and 6 at first";
    assert!(failure.contains(expected) && failure.contains("range_bytes = 0"), "{failure}");
    // Nobody has seen a row of it.
    let mut fixture = run_again_after(false, other.clone());
    assert_eq!(fixture.state(unit(0, 0)), "done");
    assert_eq!(fixture.bind_range(0).1[0], blocks(0, &[0]));
    // Of what is not told nothing is concluded but from the number of rows.
    other[0].run = None;
    assert_eq!(run_again_after(true, other).state(unit(0, 0)), "done");
}

/// It does not read again what it has read, whatever was heard of that.
#[test]
fn a_run_that_has_other_rows_fails_the_job_if_the_client_has_begun_to_read_ranges() {
    let run_again = |reads: bool| {
        let mut fixture = Fixture::new(spec_of(20));
        fixture.sort(0, "a", &[1, 3, 5]);
        fixture.sort(1, "b", &[2, 4, 6]);
        let (task, ..) = fixture.bind_range(0);
        fixture.finish(task, 1);
        if reads {
            fixture.graph.bind_client(NOW).unwrap();
        }
        fixture.lose("c");
        fixture.lose("a");
        assert_eq!(fixture.state(unit(1, 0)), "pending", "no range is done");
        let task = fixture.bind(unit(0, 0), "d").task;
        fixture.apply(Event::TaskFinished { task, blocks: run_again_of_others() });
        fixture
    };
    assert_eq!(run_again(false).state(unit(0, 0)), "done");
    let failure = run_again(true).failure();
    assert!(failure.contains("unit 0.0 gave other rows than at first"), "{failure}");
}

fn run_again_of_others() -> Vec<BlockReport> {
    let mut others = run_again();
    others[1].run.as_mut().unwrap().digest += 1;
    others
}

/// Behind the end of a run there is nothing to read of it.
#[test]
fn a_range_behind_the_end_of_a_run_reads_nothing_of_it() {
    let ends_at = |end: u8| {
        let mut fixture = Fixture::new(spec_of(20));
        let mut run = run_of(&[1, 2]);
        run[1].run.as_mut().unwrap().end = Some(key(end));
        let task = fixture.bind(unit(0, 0), "a").task;
        fixture.apply(Event::TaskFinished { task, blocks: run });
        fixture.sort(1, "b", &[3, 4, 5, 6]);
        let ranges = fixture.graph.ranges(StageId(1)).unwrap() as u32;
        (0..ranges).map(|range| fixture.bind_range(range).1).collect::<Vec<_>>()
    };
    // Borders are 3 and 5.
    let of_first = |read: Vec<Vec<Vec<BlockId>>>| -> Vec<Vec<BlockId>> {
        let is_first = |id: &BlockId| id.unit == unit(0, 0);
        read.into_iter()
            .map(|range| range.concat().into_iter().filter(is_first).collect())
            .collect()
    };
    assert_eq!(of_first(ends_at(2)), [blocks(0, &[0, 1]), vec![], vec![]]);
    assert_eq!(of_first(ends_at(3)), [blocks(0, &[0, 1]), blocks(0, &[1]), vec![]]);
    assert_eq!(of_first(ends_at(9)), [blocks(0, &[0, 1]), blocks(0, &[1]), blocks(0, &[1])]);
}

#[test]
fn the_client_reads_ranges_in_their_order() {
    let mut fixture = Fixture::new(spec_of(20));
    fixture.sort(0, "a", &[1, 3, 5]);
    fixture.sort(1, "b", &[2, 4, 6]);
    let (first, ..) = fixture.bind_range(0);
    for range in [2, 1] {
        let (task, ..) = fixture.bind_range(range);
        fixture.finish(task, 1);
        assert_eq!(fixture.graph.bind_client(NOW), None);
    }
    fixture.finish(first, 1);
    for range in 0..3 {
        let bound = fixture.graph.bind_client(NOW).unwrap();
        assert_eq!(bound.inputs[0].block, unit(1, range).block(0));
        assert_eq!(fixture.graph.bind_client(NOW), None);
        fixture.finish(bound.task, 0);
    }
    assert_eq!(*fixture.graph.status(), JobStatus::Finished);
}

#[test]
fn borders_are_written_down_and_others_are_refused() {
    let mut graph = JobGraph::try_new(spec_of(20)).unwrap();
    graph.record_steps();
    let mut fixture = Fixture { graph };
    fixture.sort(0, "a", &[1, 3, 5]);
    fixture.sort(1, "b", &[2, 4, 6]);
    let (stage, borders) = (StageId(1), vec![key(3), key(5)]);
    let steps = fixture.graph.take_steps();
    assert_eq!(steps.last(), Some(&Step::Ranges { stage, borders, now: NOW }));
    let again = |steps: &[Step]| -> Result<JobGraph, BindError> {
        let mut graph = JobGraph::try_new(spec_of(20)).unwrap();
        for step in steps {
            let text = serde_json::to_string(step).unwrap();
            graph.replay(serde_json::from_str(&text).unwrap())?;
        }
        graph.record_steps();
        graph.take_steps();
        Ok(graph)
    };
    let same = |graph: JobGraph| format!("{graph:?}") == format!("{:?}", fixture.graph);
    assert!(same(again(&steps).unwrap()));
    // The last of it was lost with the scheduler.
    assert!(same(again(&steps[..steps.len() - 1]).unwrap()));
    let mut other = steps;
    *other.last_mut().unwrap() = Step::Ranges { stage, borders: vec![key(4)], now: NOW };
    assert_eq!(again(&other).unwrap_err(), BindError::OtherRanges(stage));
}

/// Known with the runs, before the first of them is bound.
#[test]
fn a_task_takes_memory_for_blocks_of_all_runs() {
    for (bytes, blocks) in [(10, 40), (16 << 20, 64 << 20), (17 << 20, 34 << 20)] {
        let mut fixture = Fixture::new(spec_of(20));
        let memory = |fixture: &Fixture| fixture.graph.stage(StageId(1)).need.memory_wanted;
        fixture.sort(0, "a", &[1, 3, 5]);
        assert_eq!(memory(&fixture), 0);
        let mut run = run_of(&[2, 4, 6]);
        run[1].bytes = 2 * bytes - 10;
        let task = fixture.bind(unit(0, 1), "b").task;
        fixture.apply(Event::TaskFinished { task, blocks: run });
        assert_eq!(memory(&fixture), blocks + (512 << 10), "{bytes}");
    }
}

#[test]
fn a_stage_reads_the_runs_of_one_order() {
    let ranges = EdgeKind::Ranges;
    let spec = spec(vec![stage(1), stage(1), stage(0)], &[(0, 2, ranges), (1, 2, ranges)]);
    let error = JobGraph::try_new(spec).unwrap_err().to_string();
    assert!(error.contains("the runs of several stages"), "{error}");
}

/// What a task adds to the numbers of its rows: told by the graph, and counted where blocks begin before the range.
#[test]
fn rows_before_a_range_are_in_blocks_that_it_does_not_read_or_are_left_out() {
    let mut random = Random::new(11);
    let mut not_read = 0;
    for _ in 0..300 {
        let mut fixture = Fixture::new(spec_of(random.between(1, 80)));
        let mut runs = vec![];
        for index in 0..2 {
            let mut rows: Vec<u8> = (0..random.below(40)).map(|_| random.below(9) as u8).collect();
            rows.sort_unstable();
            let mut blocks: Vec<Vec<u8>> = vec![];
            for row in rows {
                match blocks.last_mut().filter(|_| random.chance(70)) {
                    Some(block) => block.push(row),
                    None => blocks.push(vec![row]),
                }
            }
            let mut reports = run_of(&blocks.iter().map(|block| block[0]).collect::<Vec<_>>());
            reports.iter_mut().zip(&blocks).for_each(|(told, rows)| told.rows = rows.len() as u64);
            if let (Some(told), Some(rows)) = (reports.last_mut(), blocks.last()) {
                let end = rows.last().map(|row| key(*row));
                told.run.as_mut().unwrap().end = end.filter(|_| random.chance(80));
            }
            let task = fixture.bind(unit(0, index), "a").task;
            fixture.apply(Event::TaskFinished { task, blocks: reports });
            runs.push(blocks);
        }
        let all = runs.iter().flatten().flatten();
        assert_eq!(fixture.graph.rows_of(StageId(0)), all.clone().count() as u64);
        for index in 0..fixture.graph.ranges(StageId(1)).unwrap() as u32 {
            let (_, read, [from, to]) = fixture.bind_range(index);
            let is_before = |row: &&u8| from.as_ref().is_some_and(|from| key(**row) < *from);
            let rows = read.iter().flatten();
            let rows = rows.flat_map(|block| &runs[block.unit.index as usize][block.seq as usize]);
            let left_out = rows.filter(is_before).count() as u64;
            let range = KeyRange { from: from.clone(), to };
            let before = fixture.graph.rows_before(StageId(0), &range);
            let expected = all.clone().filter(is_before).count() as u64;
            assert_eq!(before + left_out, expected, "{runs:?} {range:?}");
            not_read += before;
        }
    }
    assert!(not_read > 0);
}
