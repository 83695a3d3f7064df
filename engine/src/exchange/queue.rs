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
mod tests;
