//! Rows that are dealt out by hash, read segment by segment.

use super::*;

/// Two units that deal rows out, two partitions that read them, and a client.
fn dealt_spec() -> JobSpec {
    let maps = StageSpec::new("maps", Need::cpus(1000), 2);
    let reduces = StageSpec::new("reduces", Need::cpus(1000), 2);
    spec(vec![maps, reduces, StageSpec::client()], &[(0, 1, EdgeKind::Hash), (1, 2, UNIT)])
}

/// A round, with so many rows of each partition.
pub(super) fn round(seq: u32, rows: [u32; 2]) -> BlockReport {
    let (mut segments, mut at) = (vec![], 0);
    for (partition, rows) in (0..).zip(rows).filter(|(_, rows)| *rows > 0) {
        let bytes = 10 * rows;
        segments.push(Segment { partition, at, bytes, rows, checksum: 7 * rows });
        at += bytes;
    }
    let segments = Segments::new(&segments);
    let (bytes, rows) = (segments.file_bytes(), segments.rows());
    BlockReport { bytes, rows, segments: Some(segments), ..report(seq) }
}

impl Fixture {
    fn deal(&mut self, index: u32, on: &str, rounds: &[[u32; 2]]) -> TaskId {
        let task = self.bind(unit(0, index), on).task;
        let blocks = (0..).zip(rounds).map(|(seq, rows)| round(seq, *rows)).collect();
        self.apply(Event::TaskFinished { task, blocks });
        task
    }

    /// Block, place, bytes, rows and checksum of what a partition has.
    pub(super) fn segments(&self, partition: u32) -> Vec<(BlockId, Option<u64>, u64, u64, u64)> {
        let segments = self.graph.segments(StageId(0), partition).into_iter();
        let told =
            |input: Input| (input.block, input.segment_at, input.bytes, input.rows, input.checksum);
        segments.map(told).collect()
    }
}

#[test]
fn a_partition_reads_its_segment_of_each_round_that_has_one() {
    let mut fixture = Fixture::new(dealt_spec());
    fixture.deal(0, "a", &[[1, 2], [0, 3]]);
    assert!(fixture.graph.ready(StageId(1)).is_none(), "not all has been dealt out");
    fixture.deal(1, "b", &[[4, 0]]);
    assert_eq!(fixture.graph.ready(StageId(1)).unwrap().len(), 2);
    let (first, second) = (unit(0, 0), unit(0, 1));
    let of_zero = [(first.block(0), Some(0), 10, 1, 7), (second.block(0), Some(0), 40, 4, 28)];
    assert_eq!(fixture.segments(0), of_zero);
    let of_one = [(first.block(0), Some(10), 20, 2, 14), (first.block(1), Some(0), 30, 3, 21)];
    assert_eq!(fixture.segments(1), of_one);
    assert_eq!(fixture.segments(2), []);
    // Whoever reads all of it reads whole blocks.
    let whole: Vec<_> = fixture.graph.outputs(StageId(0)).collect();
    assert_eq!(whole.len(), 3);
    assert!(whole.iter().all(|input| input.segment_at.is_none()));
    for partition in 0..2 {
        fixture.run(unit(1, partition), "c", 1);
    }
    assert_eq!(fixture.graph.stage_state(StageId(0)), StageState::Done);
    assert_eq!(fixture.block_state(first.block(1)), BlockState::Consumed);
}

#[test]
fn a_round_that_is_damaged_has_its_task_run_again_and_no_other() {
    let mut fixture = Fixture::new(dealt_spec());
    fixture.deal(0, "a", &[[1, 2], [2, 3]]);
    fixture.deal(1, "b", &[[4, 5]]);
    let reader = fixture.bind(unit(1, 0), "c").task;
    fixture.fail(reader, FailureKind::BlockLost(unit(0, 0).block(1)));
    let states = [(0, 0), (0, 1), (1, 0)].map(|(stage, index)| fixture.state(unit(stage, index)));
    assert_eq!(states, ["pending", "done", "pending"]);
    assert_eq!(fixture.segments(0).len(), 1, "an attempt writes all rounds again");
    assert!(fixture.graph.ready(StageId(1)).is_none());
    // In other rounds.
    fixture.deal(0, "b", &[[3, 5]]);
    assert_eq!(fixture.segments(0).iter().map(|segment| segment.3).sum::<u64>(), 7);
    assert_eq!(fixture.graph.ready(StageId(1)).unwrap().len(), 2);
}

#[test]
fn all_that_a_worker_has_is_lost_if_it_cannot_be_reached() {
    let mut fixture = Fixture::new(dealt_spec());
    fixture.deal(0, "a", &[[1, 0]]);
    fixture.deal(1, "a", &[[0, 1]]);
    let reader = fixture.bind(unit(1, 0), "c").task;
    // Of the second unit's it reads nothing.
    let lost = FailureKind::OutputLost { stage: StageId(0), worker: worker("a") };
    fixture.fail(reader, lost);
    assert_eq!([0, 1].map(|index| fixture.state(unit(0, index))), ["pending", "pending"]);
}

/// A row might be in two partitions then, or in none.
#[test]
fn rows_that_are_dealt_out_otherwise_fail_the_job_if_a_partition_is_done() {
    let dealt_again = |is_done: bool, again: [u32; 2]| {
        let mut fixture = Fixture::new(dealt_spec());
        fixture.deal(0, "a", &[[1, 2], [2, 3]]);
        fixture.deal(1, "b", &[[4, 5]]);
        if is_done {
            fixture.run(unit(1, 0), "c", 1);
        }
        fixture.lose("a");
        fixture.deal(0, "b", &[again]);
        fixture
    };
    assert_eq!(*dealt_again(true, [3, 5]).graph.status(), JobStatus::Running);
    assert_eq!(*dealt_again(false, [2, 6]).graph.status(), JobStatus::Running);
    let failure = dealt_again(true, [2, 6]).failure();
    assert!(failure.contains("dealt its rows out otherwise than at first"), "{failure}");
    let failure = dealt_again(true, [3, 6]).failure();
    assert!(failure.contains("gave 9 rows, and 8 at first"), "{failure}");
}

#[test]
fn what_was_dealt_out_is_known_again() {
    let spec = dealt_spec();
    let mut graph = JobGraph::try_new(spec.clone()).unwrap();
    graph.record_steps();
    let mut fixture = Fixture { graph };
    fixture.apply(Event::Started);
    fixture.deal(0, "a", &[[1, 2], [2, 3]]);
    fixture.deal(1, "b", &[[4, 5]]);
    let mut again = JobGraph::try_new(spec).unwrap();
    for step in fixture.graph.take_steps() {
        let text = serde_json::to_string(&step).unwrap();
        again.replay(serde_json::from_str(&text).unwrap()).unwrap();
    }
    let again = Fixture { graph: again };
    for partition in 0..2 {
        assert_eq!(again.segments(partition).len(), 3);
        assert_eq!(again.segments(partition), fixture.segments(partition));
    }
}
