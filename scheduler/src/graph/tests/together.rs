//! What is merged lies together, and is read there.

use super::*;

/// Two units that deal out to two groups of two units each that merge, which deal out to four partitions.
fn merged_spec() -> JobSpec {
    let cpu = || Need::cpus(1000);
    let merges = StageSpec::new("merges", cpu(), 4).with_units_together(2);
    let (maps, reduces) = (StageSpec::new("maps", cpu(), 2), StageSpec::new("reduces", cpu(), 4));
    let hash = |from, to| (from, to, EdgeKind::Hash);
    let mut spec = spec(vec![maps, merges, reduces], &[hash(0, 1), hash(1, 2)]);
    spec.edges[1].lies_together = true;
    spec
}

/// A round with so many rows of these partitions.
fn round(seq: u32, rows: &[(u32, u32)]) -> BlockReport {
    let mut at = 0;
    let segment = |(partition, rows): &(u32, u32)| {
        let bytes = 10 * rows;
        at += bytes;
        Segment { partition: *partition, at: at - bytes, bytes, rows: *rows, checksum: 7 }
    };
    let segments = Segments::new(&rows.iter().map(segment).collect::<Vec<_>>());
    let (bytes, rows) = (segments.file_bytes(), segments.rows());
    BlockReport { bytes, rows, segments: Some(segments), ..report(seq) }
}

impl Fixture {
    fn give(&mut self, unit: UnitId, on: &str, rows: &[(u32, u32)]) {
        let task = self.bind(unit, on).task;
        self.apply(Event::TaskFinished { task, blocks: vec![round(0, rows)] });
    }

    /// Both units have dealt out, on workers of their own.
    fn dealt() -> Self {
        let mut fixture = Self::new(merged_spec());
        let all = [(0, 1), (1, 1), (2, 1), (3, 1)];
        fixture.give(unit(0, 0), "m", &all);
        fixture.give(unit(0, 1), "n", &all);
        fixture
    }

    /// And all is merged: partition 0 lies on `a` and most of it on `b`, partition 1 the other way round.
    fn merged() -> Self {
        let mut fixture = Self::dealt();
        fixture.give(unit(1, 0), "a", &[(0, 2), (1, 5)]);
        fixture.give(unit(1, 1), "b", &[(0, 4), (1, 1)]);
        fixture.give(unit(1, 2), "c", &[(2, 2), (3, 2)]);
        fixture.give(unit(1, 3), "c", &[(2, 2)]);
        fixture
    }

    /// The units of a stage that are ready, and would best run on a worker.
    fn at_home(&self, stage: u32, home: Option<&str>) -> Vec<u32> {
        let ready = self.graph.ready(StageId(stage)).unwrap();
        let home = home.map(worker);
        let number = |item| match item {
            ReadyItem::Unit(number) => number,
            other => panic!("{other:?}"),
        };
        ready.at(home.as_ref()).map(number).collect()
    }
}

#[test]
fn units_follow_the_first_of_those_that_they_belong_to() {
    let mut fixture = Fixture::dealt();
    assert_eq!(fixture.at_home(1, None), [0, 1, 2, 3]);
    fixture.bind(unit(1, 2), "a");
    assert_eq!((fixture.at_home(1, None), fixture.at_home(1, Some("a"))), (vec![0, 1], vec![3]));
    fixture.bind(unit(1, 0), "b");
    assert_eq!(fixture.at_home(1, Some("b")), [1]);
    // It went elsewhere: no other one is left to follow.
    fixture.bind(unit(1, 1), "c");
    assert_eq!(fixture.at_home(1, Some("a")), [3]);
    fixture.lose("a");
    assert_eq!(fixture.at_home(1, None), [2, 3], "nobody can grant that");
    fixture.bind(unit(1, 2), "c");
    assert_eq!(fixture.at_home(1, Some("c")), [3]);
}

#[test]
fn partitions_are_read_where_most_of_them_lies() {
    let mut fixture = Fixture::merged();
    let homes = ["a", "b", "c"].map(|home| fixture.at_home(2, Some(home)));
    assert_eq!(homes, [vec![1], vec![0], vec![2, 3]]);
    assert!(fixture.at_home(2, None).is_empty());
    // What is merged again lies elsewhere.
    fixture.lose("b");
    fixture.give(unit(1, 1), "d", &[(0, 4), (1, 1)]);
    let homes = ["a", "b", "d"].map(|home| fixture.at_home(2, Some(home)));
    assert_eq!(homes, [vec![1], vec![], vec![0]]);
    // It is a wish: any worker may have them.
    for partition in 0..4 {
        fixture.run(unit(2, partition), "e", 1);
    }
    assert_eq!(*fixture.graph.status(), JobStatus::Finished);
}

#[test]
fn partitions_that_do_not_lie_together_have_no_home() {
    let mut spec = merged_spec();
    spec.edges[1].lies_together = false;
    let mut fixture = Fixture::new(spec);
    fixture.give(unit(0, 0), "m", &[(0, 1)]);
    fixture.give(unit(0, 1), "m", &[(1, 1)]);
    for merge in 0..4 {
        fixture.give(unit(1, merge), "a", &[(merge, 1)]);
    }
    assert_eq!(fixture.at_home(2, None), [0, 1, 2, 3]);
}

#[test]
fn what_was_merged_is_merged_again_by_the_same_unit_and_of_others_what_is_gone() {
    let mut fixture = Fixture::merged();
    fixture.run(unit(2, 1), "e", 1);
    fixture.lose("b");
    let states = |fixture: &Fixture| -> Vec<&str> {
        let units = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)];
        units.iter().map(|(stage, index)| fixture.state(unit(*stage, *index))).collect()
    };
    let (done, pending) = ("done", "pending");
    assert_eq!(states(&fixture), [done, done, done, pending, done, done, pending, done]);
    fixture.give(unit(1, 1), "d", &[(0, 4), (1, 1)]);
    assert_eq!(states(&fixture), [done, done, done, done, done, done, pending, done]);
    // With rounds that it would read again. Those of the other task are kept.
    fixture.lose("n");
    assert_eq!(states(&fixture)[..2], [done, done], "nobody needs them");
    fixture.lose("d");
    assert_eq!(states(&fixture), [done, pending, done, pending, done, done, pending, done]);
}
