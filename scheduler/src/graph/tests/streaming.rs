//! Sealing, grouping, binding, and the end of a job.

use super::*;

#[test]
fn a_consumer_runs_while_its_producer_runs() {
    let mut fixture = Fixture::pair();
    let producer = fixture.bind(unit(0, 0), "a").task;
    fixture.seal(producer, 0);
    let bound = fixture.bind_blocks(&[unit(0, 0).block(0)], "b");
    assert_eq!(fixture.state(unit(0, 0)), "running");
    let input = &bound.inputs[0];
    assert_eq!((input.writer, input.worker.as_str(), input.rows), (producer, "a", 2));
}

#[test]
fn announcements_may_come_twice_late_or_never() {
    let mut fixture = Fixture::pair();
    let task = fixture.bind(unit(0, 0), "a").task;
    fixture.seal(task, 1);
    fixture.seal(task, 1);
    assert_eq!(fixture.graph.block_rows().count(), 1);
    fixture.finish(task, 3);
    assert_eq!(fixture.graph.block_rows().count(), 3, "the end tells of all");
    fixture.seal(task, 2);
    fixture.finish(task, 3);
    assert_eq!(fixture.graph.stale_reports(), 2);
    assert_eq!(fixture.graph.block_rows().count(), 3);
}

#[test]
fn a_job_ends_when_every_block_is_consumed() {
    let mut fixture = Fixture::pair();
    fixture.run(unit(0, 0), "a", 2);
    let blocks = [unit(0, 0).block(0), unit(0, 0).block(1)];
    let consumer = fixture.bind_blocks(&blocks, "a").task;
    assert!(fixture.finish(consumer, 1).is_empty(), "a producer has not run yet");
    let empty = fixture.bind(unit(0, 1), "a").task;
    let actions = fixture.finish(empty, 0);
    assert_eq!(actions.last(), Some(&Action::JobFinished));
    assert_eq!(fixture.graph.outputs(StageId(1)).count(), 1, "the result stays");
    assert_eq!(fixture.block_state(blocks[0]), BlockState::Freed);
}

#[test]
fn a_stage_that_gives_rows_for_nothing_runs_once_if_nothing_streams_in() {
    for kind in [BLOCK, UNIT] {
        let total = StageSpec { runs_on_nothing: true, ..stage(0) };
        let mut job = spec(vec![stage(1), total, stage(0)], &[(0, 1, BLOCK), (1, 2, kind)]);
        job.stages[2].runs_on_nothing = true;
        let mut fixture = Fixture::new(job.clone());
        fixture.run(unit(0, 0), "a", 0);
        let bound = fixture.bind(unit(1, 0), "a");
        assert_eq!((bound.edge, bound.inputs.len()), (Some(EdgeId(0)), 0));
        fixture.lose("a");
        fixture.run(unit(1, 0), "b", 0);
        fixture.run(unit(2, 0), "b", 0);
        let mut fixture = Fixture::new(job);
        fixture.run(unit(0, 0), "a", 1);
        let only = fixture.bind_blocks(&[unit(0, 0).block(0)], "a");
        assert_eq!(only.unit, unit(1, 0), "something has streamed in");
    }
}

#[test]
fn a_unit_that_reads_a_whole_output_waits_for_its_end() {
    let mut fixture = Fixture::new(spec(vec![stage(2), stage(0)], &[(0, 1, UNIT)]));
    let task = fixture.bind(unit(0, 1), "a").task;
    fixture.seal(task, 0);
    let early = fixture.try_bind(Work::Unit(unit(1, 1)), "a");
    assert_eq!(early, Err(BindError::InputMissing(unit(1, 1))));
    fixture.finish(task, 2);
    let bound = fixture.bind(unit(1, 1), "a");
    assert_eq!((bound.partition, bound.inputs.len()), (1, 2));
}

#[test]
fn children_of_a_union_keep_their_partitions() {
    let mut job = spec(vec![stage(1), stage(2), stage(0)], &[(0, 2, UNIT), (1, 2, UNIT)]);
    job.edges[1].partition_offset = 1;
    let mut fixture = Fixture::new(job);
    let mut partitions = vec![];
    for (producer, reader) in [(unit(0, 0), 0), (unit(1, 0), 1), (unit(1, 1), 2)] {
        fixture.run(producer, "a", 1);
        partitions.push(fixture.bind(unit(2, reader), "a").partition);
    }
    assert_eq!(partitions, [0, 1, 2]);
}

#[test]
fn a_stage_behind_a_shuffle_waits_for_all_of_it() {
    for kind in [EdgeKind::Blocking, EdgeKind::Broadcast] {
        let mut fixture = Fixture::new(spec(vec![stage(2), stage(1)], &[(0, 1, kind)]));
        fixture.run(unit(0, 0), "a", 1);
        let early = fixture.try_bind(Work::Unit(unit(1, 0)), "a");
        assert_eq!(early, Err(BindError::InputIncomplete(StageId(1))));
        assert!(fixture.graph.ready(StageId(1)).is_none());
        fixture.run(unit(0, 1), "a", 1);
        fixture.bind(unit(1, 0), "a");
    }
}

#[test]
fn what_is_bound_must_be_free_and_there() {
    let mut fixture = Fixture::pair();
    let task = fixture.bind(unit(0, 0), "a").task;
    let block = unit(0, 0).block(0);
    let bind = |fixture: &mut Fixture, blocks: &[BlockId], edge: u32| {
        let work = Work::Blocks { edge: EdgeId(edge), blocks: blocks.to_vec() };
        fixture.try_bind(work, "b").unwrap_err()
    };
    let taken = BindError::BlockTaken { block, edge: EdgeId(0) };
    assert_eq!(bind(&mut fixture, &[block], 0), taken, "it is not sealed");
    fixture.seal(task, 0);
    assert_eq!(bind(&mut fixture, &[block, block], 0), taken, "it is named twice");
    assert!(matches!(bind(&mut fixture, &[block], 5), BindError::Unknown(_)));
    assert!(matches!(bind(&mut fixture, &[], 0), BindError::Unknown(_)));
    fixture.bind_blocks(&[block], "b");
    assert_eq!(bind(&mut fixture, &[block], 0), taken, "another unit has it");
    let twice = fixture.try_bind(Work::Unit(unit(0, 0)), "b").unwrap_err();
    assert!(matches!(twice, BindError::NotPending { .. }));
    let unknown = fixture.try_bind(Work::Unit(unit(0, 9)), "b").unwrap_err();
    assert!(matches!(unknown, BindError::Unknown(_)));
}

#[test]
fn a_rerun_that_gives_other_blocks_fails_the_job() {
    let other = BlockReport { checksum: 1, ..report(0) };
    let fewer = BlockReport { rows: 1, ..report(0) };
    let cases = [
        (vec![other], "checksum 0000000000000001, and 0000000000000064 at first"),
        (vec![fewer], "1 rows, and 2 at first"),
        (vec![report(0), report(1)], "block 0.0/1: the first run did not have it"),
        (vec![], "block 0.0/0: this run does not have it"),
    ];
    for (blocks, part) in cases {
        let mut fixture = Fixture::pair();
        fixture.run(unit(0, 0), "a", 1);
        fixture.lose("a");
        let task = fixture.bind(unit(0, 0), "b").task;
        fixture.apply(Event::TaskFinished { task, blocks });
        let failure = fixture.failure();
        assert!(failure.contains("stage 0 's' is not deterministic"), "{failure}");
        assert!(failure.ends_with("; declare the function in it as volatile"), "{failure}");
        assert!(failure.contains(part), "{part} is not in: {failure}");
    }
}

#[test]
fn a_rerun_of_what_is_not_replayable_may_cut_otherwise_but_not_lose_rows() {
    let run_again = |blocks: Vec<BlockReport>| {
        let once = StageSpec::new("once", Need::cpus(1), 1);
        let edges = [(0, 1, UNIT), (0, 2, EdgeKind::Blocking)];
        let mut fixture = Fixture::new(spec(vec![once, stage(0), stage(2)], &edges));
        fixture.run(unit(0, 0), "a", 2);
        fixture.run(unit(1, 0), "b", 1);
        fixture.lose("a");
        let task = fixture.bind(unit(0, 0), "b").task;
        fixture.apply(Event::TaskFinished { task, blocks });
        fixture
    };
    let whole = BlockReport { rows: 4, checksum: 9, ..report(0) };
    let fixture = run_again(vec![whole]);
    assert_eq!(fixture.state(unit(0, 0)), "done");
    assert_eq!(fixture.graph.outputs(StageId(0)).count(), 1);
    let failure = run_again(vec![report(0)]).failure();
    assert!(failure.contains("unit 0.0 gave 2 rows, and 4 at first"), "{failure}");
    assert!(failure.ends_with("; run the query again"), "{failure}");
}

#[test]
fn outputs_are_read_in_groups_when_they_are_whole() {
    let mut fixture = Fixture::new(spec(vec![stage(3), stage(0)], &[(0, 1, UNITS)]));
    let outputs = |indices: &[u32]| {
        let units = indices.iter().map(|index| unit(0, *index)).collect();
        Work::Outputs { edge: EdgeId(0), units }
    };
    fixture.run(unit(0, 0), "a", 2);
    let running = fixture.bind(unit(0, 1), "a").task;
    let early = fixture.try_bind(outputs(&[0, 1]), "a");
    assert_eq!(early, Err(BindError::OutputTaken { unit: unit(0, 1), edge: EdgeId(0) }));
    fixture.finish(running, 1);
    let bound = fixture.try_bind(outputs(&[0, 1]), "b").unwrap();
    assert_eq!((bound.unit, bound.inputs.len()), (unit(1, 0), 3));
    let again = fixture.try_bind(outputs(&[1]), "b");
    assert_eq!(again, Err(BindError::OutputTaken { unit: unit(0, 1), edge: EdgeId(0) }));
    // What is lost is made again, and read by the same unit.
    fixture.lose("a");
    assert_eq!(fixture.state(unit(1, 0)), "pending");
    fixture.run(unit(0, 0), "b", 2);
    fixture.run(unit(0, 1), "b", 1);
    let bound = fixture.bind(unit(1, 0), "b");
    assert_eq!(bound.inputs.len(), 3);
    fixture.finish(bound.task, 1);
    fixture.run(unit(0, 2), "b", 0);
    let last = fixture.try_bind(outputs(&[2]), "b").unwrap().task;
    assert_eq!(fixture.finish(last, 0).last(), Some(&Action::JobFinished));
}

#[test]
fn a_group_waits_until_it_has_its_size_or_no_more_comes() {
    for kind in [BLOCK, UNITS] {
        let reader = stage(0).with_group_bytes_min(25);
        let mut fixture = Fixture::new(spec(vec![stage(4), reader.clone()], &[(0, 1, kind)]));
        let mut is_ready = vec![];
        for index in 0..4 {
            fixture.run(unit(0, index), "a", 1);
            is_ready.push(fixture.graph.ready(StageId(1)).is_some());
        }
        assert_eq!(is_ready, [false, false, true, true], "{kind:?}");
        // Less than half of what may wait is enough.
        let mut job = spec(vec![stage(4), reader], &[(0, 1, kind)]);
        job.edges[0].budget_bytes = 20;
        let mut fixture = Fixture::new(job);
        fixture.run(unit(0, 0), "a", 1);
        assert!(fixture.graph.ready(StageId(1)).is_some(), "{kind:?}");
        // Nothing more comes.
        let reader = stage(0).with_group_bytes_min(1000);
        let mut fixture = Fixture::new(spec(vec![stage(1), reader], &[(0, 1, kind)]));
        fixture.run(unit(0, 0), "a", 1);
        assert!(fixture.graph.ready(StageId(1)).is_some(), "{kind:?}");
    }
}
