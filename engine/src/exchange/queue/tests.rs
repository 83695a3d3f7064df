use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch};
use arrow::datatypes::Int32Type;

use super::super::seal::REOPENED_MAX;
use super::*;
use crate::testing::{flag_waker, ids, limits, numbers};
use crate::{Sharing, TOKENS_COLUMN};
use datafusion::common::exec_datafusion_err;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};

fn queue(producers: usize, replicas: usize, limits: BatchLimits, bytes_max: usize) -> Queue {
    queue_within(producers, replicas, Arc::new(LiveLimits::new(limits, 1)), bytes_max)
}

fn queue_within(
    producers: usize,
    replicas: usize,
    limits: Arc<LiveLimits>,
    bytes_max: usize,
) -> Queue {
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let reservation = MemoryConsumer::new("test").register(&pool);
    let budget = Arc::new(Budget::new(bytes_max, reservation));
    let limits = (limits, false);
    let queue = Queue::new(producers, replicas, limits, Sharing::None, budget, Arc::default());
    (0..replicas).for_each(|_| queue.enter());
    queue
}

fn block(ids: std::ops::Range<i64>) -> Option<Block> {
    Some(Block::new(numbers(ids, |_| false), Sharing::None))
}

fn push(queue: &Queue, waker: &Waker, producer: usize, block: &mut Option<Block>) -> Poll<Push> {
    queue.poll_push(&Context::from_waker(waker), producer, block)
}

fn take(queue: &Queue, waker: &Waker, replica: usize) -> Take {
    queue.take(&Context::from_waker(waker), replica, Patience::FullBatch)
}

fn taken(take: Take) -> Vec<i64> {
    let Take::Batch(planned) = take else { panic!("expected a batch, found {take:?}") };
    ids(&[planned.gather(&numbers(0..0, |_| false).schema()).unwrap()])
}

const ACCEPTED: Poll<Push> = Poll::Ready(Push::Accepted);

#[test]
fn a_replica_waits_for_a_full_batch_and_any_replica_takes_the_next() {
    let queue = queue(1, 2, limits(4, 100), 1 << 20);
    let (waker, woken) = flag_waker();
    assert!(matches!(take(&queue, &waker, 0), Take::Empty));
    assert_eq!(push(&queue, &waker, 0, &mut block(0..3)), ACCEPTED);
    assert!(woken.get());
    assert!(matches!(take(&queue, &waker, 0), Take::Partial));
    assert_eq!(push(&queue, &waker, 0, &mut block(3..9)), ACCEPTED);
    assert!(woken.get());
    assert_eq!(taken(take(&queue, &waker, 0)), [0, 1, 2, 3]);
    assert_eq!(taken(take(&queue, &waker, 1)), [4, 5, 6, 7]);
    assert!(matches!(take(&queue, &waker, 0), Take::Partial), "the rest waits for more rows");
    assert_eq!(push(&queue, &waker, 0, &mut block(9..12)), ACCEPTED);
    assert_eq!(taken(take(&queue, &waker, 0)), [8, 9, 10, 11]);
    assert!(matches!(take(&queue, &waker, 1), Take::Empty));
}

#[test]
fn batches_that_wait_grow_with_their_limits() {
    let live = Arc::new(LiveLimits::new(limits(2, 100), 1));
    let queue = queue_within(1, 1, Arc::clone(&live), 1 << 20);
    let (waker, _) = flag_waker();
    assert_eq!(push(&queue, &waker, 0, &mut block(0..7)), ACCEPTED);
    assert_eq!(push(&queue, &waker, 0, &mut block(7..11)), ACCEPTED);
    queue.finish(0);
    assert_eq!(taken(take(&queue, &waker, 0)), [0, 1]);
    live.set(limits(5, 100));
    assert_eq!(taken(take(&queue, &waker, 0)), [2, 3, 4, 5], "another two would be too many");
    live.set(limits(1, 100));
    assert_eq!(taken(take(&queue, &waker, 0)), [6, 7], "whoever computes it cuts it");
    live.set(limits(100, 100));
    assert_eq!(taken(take(&queue, &waker, 0)), [8, 9, 10]);
    assert!(matches!(take(&queue, &waker, 0), Take::End));
}

/// Rows of so many tokens.
fn texts(ids: std::ops::Range<i64>, lengths: &[usize]) -> RecordBatch {
    let lists = lengths.iter().map(|length| Some(vec![Some(7); *length]));
    let tokens: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(ids));
    RecordBatch::try_from_iter([("id", ids), (TOKENS_COLUMN, tokens)]).unwrap()
}

#[test]
fn short_rows_do_not_wait_as_long_as_longer_ones_come() {
    let queue = queue(1, 1, limits(2, 100), 1 << 20);
    let (waker, _) = flag_waker();
    let pushed = |batch| push(&queue, &waker, 0, &mut Some(Block::new(batch, Sharing::None)));
    assert_eq!(pushed(texts(0..2, &[1, 1])), ACCEPTED);
    let mut rounds = 0;
    for round in 1.. {
        assert_eq!(pushed(texts(2 * round..2 * round + 2, &[9, 9])), ACCEPTED);
        let Take::Batch(planned) = take(&queue, &waker, 0) else { panic!("a batch") };
        if planned.tokens == 2 {
            rounds = round;
            break;
        }
    }
    assert_eq!(rounds, i64::from(REOPENED_MAX) + 2, "the last batch of the window that is sealed");
}

#[test]
fn what_fills_no_batch_waits_even_if_a_replica_does() {
    let queue = queue(1, 2, limits(2, 8), 1 << 20);
    let (waker, _) = flag_waker();
    let block = Block::new(texts(0..3, &[3, 2, 1]), Sharing::None);
    assert_eq!(push(&queue, &waker, 0, &mut Some(block)), ACCEPTED);
    assert!(matches!(take(&queue, &waker, 0), Take::Batch(_)));
    assert!(matches!(take(&queue, &waker, 1), Take::Partial));
}

#[test]
fn rows_with_lengths_wait_for_their_like_while_the_window_fills() {
    let queue = queue(1, 2, limits(2, 8), 1 << 20);
    let (waker, _) = flag_waker();
    let pushed = |batch| push(&queue, &waker, 0, &mut Some(Block::new(batch, Sharing::None)));
    let taken = |replica| match take(&queue, &waker, replica) {
        Take::Batch(planned) => ids(&[planned.gather(&texts(0..0, &[]).schema()).unwrap()]),
        other => panic!("expected a batch, found {other:?}"),
    };
    assert_eq!(pushed(texts(0..7, &[9, 1, 9, 2, 8, 1, 7])), ACCEPTED);
    // One batch for each replica, as the second may wait already.
    assert_eq!(taken(0), [0, 2]);
    assert_eq!(taken(1), [4, 6]);
    assert_eq!(pushed(texts(7..9, &[5, 2])), ACCEPTED);
    assert_eq!(taken(0), [7, 3], "a longer one has come");
    assert_eq!(taken(0), [8, 1]);
    assert!(matches!(take(&queue, &waker, 0), Take::Partial));
    queue.finish(0);
    assert_eq!(taken(1), [5]);
    assert!(matches!(take(&queue, &waker, 0), Take::End));
}

#[test]
fn rows_wait_for_their_like_only_if_there_is_memory_to_copy_them() {
    let batch = texts(0..6, &[9, 1, 9, 2, 8, 1]);
    let bytes = Block::new(batch.clone(), Sharing::None).bytes();
    for (bytes_max, left) in [(2 * bytes, true), (2 * bytes - 1, false)] {
        let queue = queue(1, 1, limits(2, 8), bytes_max);
        let (waker, _) = flag_waker();
        let mut block = Some(Block::new(batch.clone(), Sharing::None));
        assert_eq!(push(&queue, &waker, 0, &mut block), ACCEPTED);
        let Take::Batch(first) = take(&queue, &waker, 0) else { panic!("a batch") };
        assert_eq!(queue.state.lock().open.rows() == 4, left, "of six, two are handed out");
        assert!(queue.budget.held_bytes_peak() <= bytes_max);
        drop(first);
    }
}

#[test]
fn a_replica_that_has_waited_long_enough_takes_what_there_is() {
    let queue = queue(1, 1, limits(4, 100), 1 << 20);
    let (waker, _) = flag_waker();
    let flush = || queue.take(&Context::from_waker(&waker), 0, Patience::Flush);
    assert!(matches!(flush(), Take::Empty));
    assert_eq!(push(&queue, &waker, 0, &mut block(0..1)), ACCEPTED);
    assert_eq!(taken(flush()), [0]);
}

#[test]
fn a_window_takes_the_part_of_a_block_that_it_has_room_for() {
    let queue = queue(1, 1, limits(4, 4), 1 << 20);
    let (waker, _) = flag_waker();
    assert_eq!(push(&queue, &waker, 0, &mut block(0..3)), ACCEPTED);
    let mut second = block(3..6);
    assert_eq!(push(&queue, &waker, 0, &mut second), Poll::Ready(Push::Room(1)));
    assert!(second.is_some(), "nothing of it was taken");
    assert_eq!(push(&queue, &waker, 0, &mut block(3..4)), ACCEPTED);
    assert_eq!(taken(take(&queue, &waker, 0)), [0, 1, 2, 3]);
    assert_eq!(push(&queue, &waker, 0, &mut block(4..6)), ACCEPTED);
}

#[test]
fn a_producer_that_is_told_of_room_no_longer_waits() {
    let bytes = block(0..4).unwrap().bytes();
    let queue = queue(2, 1, limits(4, 4), bytes * 3 - 1);
    let (waker, _) = flag_waker();
    let batch = |ids| {
        assert_eq!(push(&queue, &waker, 0, &mut block(ids)), ACCEPTED);
        take(&queue, &waker, 0)
    };
    let held = [batch(-8..-4), batch(-4..0)];
    let mut waiting = block(10..14);
    assert!(push(&queue, &waker, 1, &mut waiting).is_pending(), "its bytes are held");
    drop(held);
    assert_eq!(push(&queue, &waker, 0, &mut block(0..1)), ACCEPTED);
    assert_eq!(push(&queue, &waker, 1, &mut waiting), Poll::Ready(Push::Room(3)));
    assert!(matches!(take(&queue, &waker, 0), Take::Partial), "three rows are about to come");
}

#[test]
fn a_full_window_blocks_its_producer_until_it_is_sealed() {
    let queue = queue(1, 1, limits(100, 4), 1 << 20);
    let (producer, producer_woken) = flag_waker();
    let (replica, replica_woken) = flag_waker();
    assert!(matches!(take(&queue, &replica, 0), Take::Empty));
    assert_eq!(push(&queue, &producer, 0, &mut block(0..4)), ACCEPTED);
    let mut second = block(4..7);
    assert!(push(&queue, &producer, 0, &mut second).is_pending());
    assert!(replica_woken.get(), "more will not come, so it need not wait");
    assert_eq!(taken(take(&queue, &replica, 0)), [0, 1, 2, 3]);
    assert!(producer_woken.get());
    assert_eq!(push(&queue, &producer, 0, &mut second), ACCEPTED);
}

#[test]
fn a_full_budget_blocks_a_producer_until_a_batch_has_left() {
    // Each block is larger than half of the budget.
    let bytes = block(0..8).unwrap().bytes();
    let queue = queue(1, 1, limits(8, 1000), bytes * 3 / 2);
    let (producer, producer_woken) = flag_waker();
    let (replica, _) = flag_waker();
    assert_eq!(push(&queue, &producer, 0, &mut block(0..8)), ACCEPTED);
    let mut second = block(8..16);
    assert!(push(&queue, &producer, 0, &mut second).is_pending());
    let Take::Batch(planned) = take(&queue, &replica, 0) else { panic!("a batch") };
    assert!(producer_woken.get(), "the window was sealed");
    assert!(push(&queue, &producer, 0, &mut second).is_pending(), "but its bytes are held");
    drop(planned);
    assert!(producer_woken.get());
    assert_eq!(push(&queue, &producer, 0, &mut second), ACCEPTED);
}

#[test]
fn nothing_is_taken_in_while_no_replica_is_there() {
    let queue = queue(1, 1, limits(4, 100), 1 << 20);
    let (producer, woken) = flag_waker();
    assert_eq!(push(&queue, &producer, 0, &mut block(0..1)), ACCEPTED);
    queue.leave();
    let mut second = block(1..4);
    assert!(push(&queue, &producer, 0, &mut second).is_pending());
    queue.enter();
    assert!(woken.get());
    assert_eq!(push(&queue, &producer, 0, &mut second), ACCEPTED);
    assert_eq!(taken(take(&queue, &producer, 0)), [0, 1, 2, 3], "none is lost");
}

#[test]
fn the_end_comes_when_all_producers_have_finished_and_all_rows_are_taken() {
    let queue = queue(2, 2, limits(4, 100), 1 << 20);
    let (waker, woken) = flag_waker();
    assert_eq!(push(&queue, &waker, 0, &mut block(0..1)), ACCEPTED);
    queue.finish(0);
    assert!(matches!(take(&queue, &waker, 0), Take::Partial));
    queue.finish(1);
    assert!(woken.get());
    assert_eq!(taken(take(&queue, &waker, 0)), [0]);
    assert!(matches!(take(&queue, &waker, 0), Take::End));
    assert!(matches!(take(&queue, &waker, 1), Take::End));
}

#[test]
fn a_failure_reaches_each_replica_once_and_closes_the_producers() {
    let queue = queue(1, 2, limits(4, 100), 1 << 20);
    let (waker, woken) = flag_waker();
    assert!(matches!(take(&queue, &waker, 0), Take::Empty));
    queue.fail(exec_datafusion_err!("first"));
    queue.fail(exec_datafusion_err!("second"));
    assert!(woken.get());
    for replica in [0, 1] {
        let Take::Failed(error) = take(&queue, &waker, replica) else { panic!("a failure") };
        assert!(error.to_string().contains("first"));
        assert!(matches!(take(&queue, &waker, replica), Take::End));
    }
    assert_eq!(push(&queue, &waker, 0, &mut block(0..1)), Poll::Ready(Push::Closed));
}
