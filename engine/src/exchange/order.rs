//! The input's order, put back from sequence numbers; and how far the exchange may run ahead.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

/// How many rows have left the plan in order: the exchange reads it, the restorer writes it.
///
/// # Why the two never wait for each other forever
///
/// The exchange seals a window that starts at row `s` only while `s` is at most `ahead` rows beyond
/// the lowest row `r` that has not left. Suppose it refuses, so `s > r + ahead`. Rows are sealed in
/// order, so `r < s` is in a window sealed before: it is in a batch that any replica may take
/// without asking here, or in a replica, or on its way up, and the restorer takes whatever comes,
/// in any order. So `r` arrives and leaves, and `r` grows until the exchange may go on. If on the
/// other hand `r` is not sealed yet, then `r >= s`, and the exchange is not refused.
///
/// Without a restorer that reports, nothing is refused.
#[derive(Debug, Default)]
pub(crate) struct OrderProgress {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_watched: bool,
    /// Whether there is no memory for rows that come before their turn.
    is_tight: bool,
    left_rows: u64,
    waiting: Vec<Waker>,
}

impl OrderProgress {
    /// A restorer will report.
    pub(super) fn watch(&self) {
        self.state.lock().is_watched = true;
    }

    /// `rows` more have left.
    pub(super) fn advance(&self, rows: u64) {
        self.change(|state| state.left_rows += rows);
    }

    /// Whether there is room for rows that come before their turn. While there is not, a window is
    /// sealed once all rows before it have left: the argument above holds for any `ahead`.
    pub(super) fn tighten(&self, is_tight: bool) {
        self.change(|state| state.is_tight = is_tight);
    }

    /// The restorer will report no more.
    pub(super) fn unwatch(&self) {
        self.change(|state| state.is_watched = false);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let waiting = {
            let mut state = self.state.lock();
            change(&mut state);
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether a window that starts at `start` may be sealed; keeps the waker if not.
    pub(super) fn allows(&self, start: u64, ahead: u64, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        let ahead = if state.is_tight { 0 } else { ahead };
        let allowed = !state.is_watched || start <= state.left_rows.saturating_add(ahead);
        if !allowed && !state.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            state.waiting.push(waker.clone());
        }
        allowed
    }
}

/// Rows that came out of order, until their turn. `B` is what a row is part of.
#[derive(Debug)]
pub(super) struct Reorder<B> {
    next: u64,
    /// Row `next + i` is at `i`, if it has come.
    waiting: VecDeque<Option<(Arc<B>, usize)>>,
}

impl<B> Default for Reorder<B> {
    fn default() -> Self {
        Self { next: 0, waiting: VecDeque::new() }
    }
}

impl<B> Reorder<B> {
    /// Takes the rows of a batch, given each row's position in the sequence.
    ///
    /// # Errors
    /// The position that came twice.
    pub(super) fn insert(
        &mut self,
        batch: B,
        positions: impl IntoIterator<Item = u64>,
    ) -> Result<(), u64> {
        let batch = Arc::new(batch);
        for (row, position) in positions.into_iter().enumerate() {
            let at = position.checked_sub(self.next).ok_or(position)?;
            let at = usize::try_from(at).map_err(|_| position)?;
            if at >= self.waiting.len() {
                self.waiting.resize_with(at + 1, || None);
            }
            let slot = self.waiting.get_mut(at).ok_or(position)?;
            if slot.replace((Arc::clone(&batch), row)).is_some() {
                return Err(position);
            }
        }
        Ok(())
    }

    /// The rows whose turn it is, at most `rows_max`.
    pub(super) fn pop_ready(&mut self, rows_max: usize) -> Vec<(Arc<B>, usize)> {
        let mut ready = Vec::new();
        while ready.len() < rows_max && matches!(self.waiting.front(), Some(Some(_))) {
            ready.extend(self.waiting.pop_front().flatten());
        }
        self.next += ready.len() as u64;
        ready
    }

    /// Whether a row is missing that others wait for.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The position of the row whose turn it is.
    pub(super) fn next(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::flag_waker;
    use futures::task::noop_waker;
    use proptest::prelude::*;

    #[test]
    fn a_window_too_far_ahead_waits_for_rows_to_leave() {
        let progress = OrderProgress::default();
        let (waker, woken) = flag_waker();
        assert!(progress.allows(1_000_000, 10, &waker), "nobody watches");
        progress.watch();
        assert!(progress.allows(10, 10, &waker));
        assert!(!progress.allows(11, 10, &waker));
        assert!(!woken.get());
        progress.advance(1);
        assert!(woken.get());
        assert!(progress.allows(11, 10, &noop_waker()));
        assert!(!progress.allows(12, 10, &waker));
        progress.tighten(true);
        assert!(progress.allows(1, 10, &noop_waker()), "all rows before it have left");
        assert!(!progress.allows(2, 10, &waker));
        progress.tighten(false);
        assert!(woken.get());
        assert!(progress.allows(11, 10, &noop_waker()));
        progress.unwatch();
        assert!(progress.allows(12, 10, &waker));
    }

    #[test]
    fn a_position_that_comes_twice_is_an_error() {
        let mut reorder = Reorder::default();
        reorder.insert("a", [0, 2]).unwrap();
        assert_eq!(reorder.insert("b", [2]), Err(2));
        assert_eq!(reorder.pop_ready(9).len(), 1);
        assert_eq!(reorder.insert("c", [0]), Err(0));
        assert!(!reorder.is_empty());
    }

    proptest! {
        #[test]
        fn any_arrival_order_leaves_in_sequence(
            order in Just((0u64..100).collect::<Vec<_>>()).prop_shuffle(),
            batch_rows in 1usize..20,
            rows_max in 1usize..30,
        ) {
            let mut reorder = Reorder::default();
            let mut left = Vec::new();
            for batch in order.chunks(batch_rows) {
                reorder.insert(batch.to_vec(), batch.iter().copied()).unwrap();
                let ready = reorder.pop_ready(rows_max);
                prop_assert!(ready.len() <= rows_max);
                left.extend(ready.into_iter().map(|(batch, row)| batch[row]));
            }
            while !reorder.is_empty() {
                left.extend(reorder.pop_ready(rows_max).into_iter().map(|(batch, row)| batch[row]));
            }
            prop_assert!(left.into_iter().eq(0..100));
            prop_assert_eq!(reorder.next(), 100);
        }
    }
}
