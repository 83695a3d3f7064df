//! The client reads the result while it is made.

use super::*;

/// Two partitions whose blocks a client reads.
fn read_by_client(kind: EdgeKind) -> Fixture {
    Fixture::new(spec(vec![stage(2), StageSpec::client()], &[(0, 1, kind)]))
}

impl Fixture {
    fn read(&mut self) -> Option<(TaskId, Vec<BlockId>)> {
        let bound = self.graph.bind_client(NOW);
        check(&self.graph).unwrap();
        let bound = bound?;
        Some((bound.task, bound.inputs.into_iter().map(|input| input.block).collect()))
    }
}

#[test]
fn blocks_are_read_in_their_order_while_their_task_runs() {
    let mut fixture = read_by_client(BLOCK);
    let task = fixture.bind(unit(0, 0), "a").task;
    fixture.seal(task, 1);
    assert_eq!(fixture.read(), None, "block 0 comes first");
    fixture.seal(task, 0);
    let (reading, blocks) = fixture.read().unwrap();
    assert_eq!(blocks, [unit(0, 0).block(0), unit(0, 0).block(1)]);
    fixture.seal(task, 2);
    assert_eq!(fixture.read(), None, "one thing at a time");
    fixture.finish(reading, 0);
    assert_eq!(fixture.read().unwrap().1, [unit(0, 0).block(2)]);
}

#[test]
fn what_was_read_is_deleted_and_the_job_ends_when_all_was() {
    let mut fixture = read_by_client(UNIT);
    let task = fixture.run(unit(0, 0), "a", 2);
    let (reading, blocks) = fixture.read().unwrap();
    let free = |block: &BlockId| Action::FreeBlock { block: *block, task, worker: worker("a") };
    let freed: Vec<_> = blocks.iter().map(free).collect();
    assert_eq!(fixture.finish(reading, 0), freed);
    fixture.run(unit(0, 1), "b", 1);
    assert_eq!(*fixture.graph.status(), JobStatus::Running);
    let (reading, _) = fixture.read().unwrap();
    assert!(fixture.finish(reading, 0).contains(&Action::JobFinished));
    assert_eq!(fixture.graph.result_size(), (6, 30));
}

#[test]
fn a_block_that_the_client_cannot_have_is_made_again_and_nothing_overtakes_it() {
    let mut fixture = read_by_client(BLOCK);
    let task = fixture.bind(unit(0, 0), "a").task;
    fixture.seal(task, 0);
    let (reading, blocks) = fixture.read().unwrap();
    fixture.seal(task, 1);
    fixture.finish(task, 2);
    fixture.fail(reading, FailureKind::BlockLost(blocks[0]));
    assert_eq!(fixture.read(), None, "block 1 waits for block 0");
    let again = fixture.bind(unit(0, 0), "b");
    assert_eq!(again.skip, [1]);
    fixture.seal(again.task, 0);
    let later = Millis(100_000);
    assert_eq!(fixture.graph.bind_client(later).unwrap().inputs.len(), 1);
}
