//! The state that producers and replicas share: rows wait here, and become batches.
//!
//! Batches are formed in generations. The *open* window collects rows while the *sealed* one is
//! handed out batch by batch. When a replica finds nothing sealed, the open window is sealed if
//! waiting longer would not help: [`SealPolicy`] says when that is, and what of it waits all the same.
//! Any replica takes the next batch, so none starves while another has two. A block of which only a
//! part of the rows fits into the window is cut: a window of so many batches' rows gives so many full
//! batches. A window that is full by bytes is not filled to the last row.
//!
//! Pure: it neither spawns nor sleeps; whoever must wait leaves a waker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use datafusion::common::DataFusionError;
use forebay_udf::model::BatchLimits;
use parking_lot::{Mutex, MutexGuard};

use super::budget::{Budget, Permit};
use super::limits::LiveLimits;
use super::order::OrderProgress;
use super::seal::{Cut, Patience, Reason, SealPolicy, Seen};
use super::window::{Block, Planned, Sharing, Window};
use crate::weight;

/// An answer to a producer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Push {
    /// The block is in.
    Accepted,
    /// The window has room for only so many of the block's rows, at least one: they are to come as
    /// a block of their own, so that windows, and the batches cut from them, are full.
    Room(usize),
    /// The query has failed; nobody wants more.
    Closed,
}

/// An answer to a replica.
#[derive(Debug)]
pub(super) enum Take {
    /// The next batch.
    Batch(Planned),
    /// Nothing is there yet; the replica will be woken.
    Empty,
    /// Rows are there, but fewer than a batch; the replica will be woken, or flushes them.
    Partial,
    /// There will be no more.
    End,
    /// The query has failed. Told to each replica once, then [`Take::End`].
    Failed(Arc<DataFusionError>),
}

const WINDOW_BYTES_MAX: usize = 1 << 30;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Queue {
    limits: Arc<LiveLimits>,
    /// Whether somebody puts the rows back in order.
    ordered: bool,
    sharing: Sharing,
    budget: Arc<Budget>,
    progress: Arc<OrderProgress>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    open: Window,
    sealed: VecDeque<Planned>,
    /// Rows in all windows sealed so far: where the open window starts.
    sealed_rows: u64,
    /// What came in so far.
    taken_in: Sum,
    /// How many times in a row rows with lengths were put back.
    reopened: u32,
    producers: Vec<Producer>,
    replicas: Vec<Replica>,
    /// Replicas that are there. Without one, nothing is taken in: the query was cancelled, or the
    /// next replica has not come yet.
    present: usize,
    failure: Option<Arc<DataFusionError>>,
}

/// What blocks weigh together.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    rows: u64,
    tokens: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, block: &Block) {
        self.rows += block.rows() as u64;
        self.tokens += block.tokens();
        self.bytes += block.bytes() as u64;
    }

    /// Bytes of a batch that is as large as it may be, if its rows are like those so far.
    fn batch_bytes(&self, limits: &BatchLimits) -> usize {
        let of = |units: u64, max: u64| {
            let bytes = u128::from(self.bytes) * u128::from(max) / u128::from(units.max(1));
            usize::try_from(bytes).unwrap_or(usize::MAX)
        };
        let by_rows = of(self.rows, u64::from(limits.max_rows));
        match limits.max_tokens.filter(|_| self.tokens > 0) {
            Some(max) => by_rows.min(of(self.tokens, u64::from(max))),
            None => by_rows,
        }
    }
}

impl State {
    fn seen(&self, input_ended: bool, patience: Patience) -> Seen {
        let producer_blocked = self.producers.iter().any(|producer| producer.is_blocked);
        let (rows, work) = (self.open.rows(), self.open.work());
        Seen { rows, work, input_ended, producer_blocked, patience }
    }

    /// What the sealed window was cut into: batches of which the last may be a rest.
    fn cut(&self) -> Cut {
        let has_rest = self.sealed.back().is_some_and(|last| !last.is_full);
        let has_lengths = self.sealed.front().is_some_and(|first| first.tokens > 0);
        Cut { full: self.sealed.len() - usize::from(has_rest), has_lengths }
    }
}

#[derive(Clone, Debug, Default)]
struct Producer {
    waker: Option<Waker>,
    is_blocked: bool,
    is_finished: bool,
}

#[derive(Clone, Debug, Default)]
struct Replica {
    waker: Option<Waker>,
    knows_failure: bool,
}

impl Queue {
    pub(super) fn new(
        producers: usize,
        replicas: usize,
        (limits, ordered): (Arc<LiveLimits>, bool),
        sharing: Sharing,
        budget: Arc<Budget>,
        progress: Arc<OrderProgress>,
    ) -> Self {
        let state = State {
            open: Window::default(),
            sealed: VecDeque::new(),
            sealed_rows: 0,
            taken_in: Sum::default(),
            reopened: 0,
            producers: vec![Producer::default(); producers],
            replicas: vec![Replica::default(); replicas],
            present: 0,
            failure: None,
        };
        Self { limits, ordered, sharing, budget, progress, state: Mutex::new(state) }
    }

    /// By what is known at this moment.
    fn policy(&self) -> SealPolicy {
        SealPolicy {
            limits: self.limits.get(),
            ordered: self.ordered,
            multiple: self.limits.length_multiple(),
        }
    }

    /// A replica has come.
    pub(super) fn enter(&self) {
        let wakers = {
            let mut state = self.state.lock();
            state.present += 1;
            take_producer_wakers(&mut state)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// A replica has gone.
    pub(super) fn leave(&self) {
        self.state.lock().present -= 1;
    }

    /// Most rows of one block. Small against the window, so that producers fill it together.
    pub(super) fn block_rows_max(&self) -> usize {
        (self.limits.get().window_rows as usize).div_ceil(4).max(1)
    }

    /// Most bytes of one block, unless a single row is larger.
    pub(super) fn block_bytes_max(&self) -> usize {
        (self.window_bytes_max() / 4).max(1)
    }

    /// Half of the budget for the open window, so that it fills while the sealed one is taken. No
    /// more than what 32-bit offsets can address in one gathered column, whatever the budget.
    fn window_bytes_max(&self) -> usize {
        (self.budget.bytes_max() / 2).min(WINDOW_BYTES_MAX)
    }

    /// Puts a block in; or keeps it in `block`, and waits until there is room or says how much
    /// there is.
    pub(super) fn poll_push(
        &self,
        cx: &Context<'_>,
        producer: usize,
        block: &mut Option<Block>,
    ) -> Poll<Push> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(pending) = block.take_if(|_| state.failure.is_none()) else {
            return Poll::Ready(Push::Closed);
        };
        debug_assert!(pending.rows() > 0, "a block without rows would wait for room for ever");
        let room = if state.present > 0 { self.room(&state.open, &pending) } else { 0 };
        if (1..pending.rows()).contains(&room) {
            *block = Some(pending);
            // It comes back at once, with less.
            state.producers[producer].is_blocked = false;
            return Poll::Ready(Push::Room(room));
        }
        let permit = match room {
            0 => None,
            _ => match self.budget.try_take(pending.bytes(), cx.waker()) {
                Ok(permit) => permit,
                Err(error) => {
                    drop(guard);
                    self.fail(error);
                    return Poll::Ready(Push::Closed);
                }
            },
        };
        let this = &mut state.producers[producer];
        let Some(permit) = permit else {
            *block = Some(pending);
            this.waker = Some(cx.waker().clone());
            this.is_blocked = true;
            // A replica may have waited for more rows than will come.
            wake_replicas(guard);
            return Poll::Pending;
        };
        this.is_blocked = false;
        state.taken_in.add(&pending);
        state.open.push(pending, permit);
        wake_replicas(guard);
        Poll::Ready(Push::Accepted)
    }

    /// How many rows of the block the open window has room for.
    fn room(&self, open: &Window, block: &Block) -> usize {
        let rows = (self.limits.get().window_rows as usize).saturating_sub(open.rows());
        match open.rows() {
            0 => block.rows(),
            _ if open.bytes() + block.bytes() > self.window_bytes_max() => 0,
            _ => rows.min(block.rows()),
        }
    }

    /// A producer has no more rows.
    pub(super) fn finish(&self, producer: usize) {
        let mut guard = self.state.lock();
        guard.producers[producer] = Producer { is_finished: true, ..Producer::default() };
        wake_replicas(guard);
    }

    /// Ends everything with an error. The first one counts.
    pub(super) fn fail(&self, error: DataFusionError) {
        let (rows, wakers) = {
            let mut state = self.state.lock();
            state.failure.get_or_insert_with(|| Arc::new(error));
            let rows = (std::mem::take(&mut state.open), std::mem::take(&mut state.sealed));
            let mut wakers = take_producer_wakers(&mut state);
            wakers.extend(take_replica_wakers(&mut state));
            (rows, wakers)
        };
        drop(rows);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The next batch for a replica; unless it is one or the end, the replica's waker is kept.
    pub(super) fn take(&self, cx: &Context<'_>, replica: usize, patience: Patience) -> Take {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(failure) = &state.failure {
            let told = std::mem::replace(&mut state.replicas[replica].knows_failure, true);
            return if told { Take::End } else { Take::Failed(Arc::clone(failure)) };
        }
        let policy = self.policy();
        if let Some(batch) = state.sealed.pop_front() {
            return Take::Batch(batch.grown(&mut state.sealed, &policy));
        }
        let ended = state.producers.iter().all(|producer| producer.is_finished);
        if state.open.rows() == 0 && ended {
            return Take::End;
        }
        if let Some(reason) = policy.reason(&state.seen(ended, patience)) {
            // Two windows ahead; see `OrderProgress` for why this cannot deadlock.
            let ahead = 2 * u64::from(policy.limits.window_rows);
            if self.progress.allows(state.sealed_rows, ahead, cx.waker()) {
                return self.seal(guard, reason, &policy);
            }
        }
        state.replicas[replica].waker = Some(cx.waker().clone());
        if state.open.rows() == 0 { Take::Empty } else { Take::Partial }
    }

    /// Puts the rows of the batches that are not handed out back into the open window, if that has
    /// room for them.
    fn reopen_rest(&self, state: &mut State, window_bytes: usize, policy: &SealPolicy) {
        let cut = state.cut();
        let handed_out = policy.handed_out(cut, state.present, &mut state.reopened);
        if state.sealed.len() <= handed_out {
            return;
        }
        let rest = state.sealed.split_off(handed_out);
        match self.copied(&rest, window_bytes) {
            Some((block, permit)) => {
                state.sealed_rows -= block.rows() as u64;
                state.open.push(block, permit);
            }
            None => state.sealed.extend(rest),
        }
    }

    /// The rows of batches of a window as a block of their own: one that keeps nothing of what is handed
    /// out. No more than the window has, which is reserved before they are copied; `None` if there is no
    /// room for that.
    fn copied(&self, batches: &VecDeque<Planned>, window_bytes: usize) -> Option<(Block, Permit)> {
        let mut permit = self.budget.try_take(window_bytes, Waker::noop()).ok()??;
        let rows = Planned::rows_of_all(batches).ok()?;
        // Views would keep what is handed out in memory.
        let block = Block::new(weight::compact(&rows).ok()?, self.sharing);
        permit.resize(block.bytes()).ok()?;
        Some((block, permit))
    }

    /// Cuts the open window, takes its first batch, and wakes everybody: there is room, and there
    /// may be batches for the other replicas.
    fn seal(&self, mut guard: MutexGuard<'_, State>, reason: Reason, policy: &SealPolicy) -> Take {
        let state = &mut *guard;
        // One is computed, one waits for it, one is sealed and one comes in.
        self.budget.want(state.taken_in.batch_bytes(&policy.limits).saturating_mul(4));
        let window = std::mem::take(&mut state.open);
        let window_bytes = window.bytes();
        state.sealed_rows += window.rows() as u64;
        state.sealed = window.seal(policy);
        if policy.keeps_rest(reason) {
            self.reopen_rest(state, window_bytes, policy);
        }
        let first = state.sealed.pop_front();
        let mut wakers = take_producer_wakers(state);
        wakers.extend(take_replica_wakers(state));
        drop(guard);
        wakers.into_iter().for_each(Waker::wake);
        first.map_or(Take::Empty, Take::Batch)
    }
}

fn take_producer_wakers(state: &mut State) -> Vec<Waker> {
    let producers = state.producers.iter_mut();
    let wake = |producer: &mut Producer| {
        producer.is_blocked = false;
        producer.waker.take()
    };
    producers.filter_map(wake).collect()
}

fn take_replica_wakers(state: &mut State) -> Vec<Waker> {
    state.replicas.iter_mut().filter_map(|replica| replica.waker.take()).collect()
}

/// Wakes the replicas that wait, after the lock is released.
fn wake_replicas(mut guard: MutexGuard<'_, State>) {
    let wakers = take_replica_wakers(&mut guard);
    drop(guard);
    wakers.into_iter().for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
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

    fn push(
        queue: &Queue,
        waker: &Waker,
        producer: usize,
        block: &mut Option<Block>,
    ) -> Poll<Push> {
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
        assert_eq!(
            rounds,
            i64::from(REOPENED_MAX) + 2,
            "the last batch of the window that is sealed"
        );
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
}
