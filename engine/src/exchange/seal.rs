//! When the open window is sealed into batches, and how many of these are handed out: everything
//! here that is a judgement and not a limit, with the reason for it.
//!
//! A batch that is not full wastes a pass of the device, and one of unlike lengths wastes padding; a
//! replica that waits wastes the device altogether. So rows wait as long as others may make their
//! batch better, and nobody waits for what cannot come.
//!
//! Pure: what is seen goes in, a decision comes out.

use std::time::Duration;

use forebay_udf::model::BatchLimits;

use super::batcher::{Row, Size};

/// How long a replica with nothing to do waits for a batch to fill up.
pub(super) const LINGER: Duration = Duration::from_millis(50);

/// How many times in a row rows with lengths are put back; see [`SealPolicy::handed_out`].
pub(super) const REOPENED_MAX: u32 = 8;

/// How much longer a replica waits for rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Until a batch is full.
    FullBatch,
    /// It takes what there is: it has waited for [`LINGER`].
    Flush,
}

/// Why the open window is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// No more rows will come.
    InputEnded,
    /// A replica has waited long enough: what is there is computed meanwhile.
    PatienceOver,
    /// There is no room for more rows.
    WindowFull,
    /// A producer waits for what the window or its batches hold, so no rows may come at all.
    ProducerBlocked,
    /// There is a full batch, and more rows will come for the rest.
    BatchFull,
}

/// What of the model's work waits in a window: rows that share their inputs count once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    rows: usize,
    tokens: u64,
    input_bytes: u64,
}

impl Work {
    pub(super) fn add(&mut self, row: &Row) {
        self.rows += 1;
        self.tokens += u64::from(row.length);
        self.input_bytes = self.input_bytes.saturating_add(row.bytes);
    }
}

/// What a replica finds when it asks for a batch and none is sealed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Rows in the open window, of which there may be more than are computed.
    pub(super) rows: usize,
    pub(super) work: Work,
    /// Whether all producers have ended.
    pub(super) input_ended: bool,
    /// Whether a producer waits for room.
    pub(super) producer_blocked: bool,
    pub(super) patience: Patience,
}

/// What a window was cut into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Batches that hardly another row would have fitted into.
    pub(super) full: usize,
    /// Whether the rows have lengths, and so were sorted by them.
    pub(super) has_lengths: bool,
}

/// How rows become batches.
#[derive(Clone, Debug)]
pub(super) struct SealPolicy {
    pub(super) limits: BatchLimits,
    /// Whether somebody puts the rows back in order, and so waits for each of them.
    pub(super) ordered: bool,
    /// What the model's device rounds lengths up to.
    pub(super) multiple: u32,
}

impl SealPolicy {
    /// Why the open window is to be sealed now; `None` while waiting may help.
    pub(super) fn reason(&self, seen: &Seen) -> Option<Reason> {
        if seen.rows == 0 {
            return None;
        }
        if seen.input_ended {
            return Some(Reason::InputEnded);
        }
        if seen.patience == Patience::Flush {
            return Some(Reason::PatienceOver);
        }
        if seen.rows >= self.limits.window_rows as usize {
            return Some(Reason::WindowFull);
        }
        if seen.producer_blocked {
            return Some(Reason::ProducerBlocked);
        }
        self.fills_a_batch(seen.work).then_some(Reason::BatchFull)
    }

    /// Whether rows of a window that is sealed for `reason` wait for more: those that may find better
    /// company, or do not fill a batch. Not where order is kept: the oldest rows must not wait.
    pub(super) fn keeps_rest(&self, reason: Reason) -> bool {
        reason == Reason::BatchFull && !self.ordered
    }

    /// How many of the batches are handed out if the rest may wait. All that are full, but of rows with
    /// lengths one for each replica: the others wait for their like. That only [`REOPENED_MAX`] times in
    /// a row, which `reopened` counts: it costs a copy of the rows that wait, and short ones would wait
    /// as long as longer ones come.
    pub(super) fn handed_out(&self, cut: Cut, replicas: usize, reopened: &mut u32) -> usize {
        let waits = cut.has_lengths && cut.full > replicas && *reopened < REOPENED_MAX;
        *reopened = if waits { *reopened + 1 } else { 0 };
        if waits { replicas.max(1) } else { cut.full.max(1) }
    }

    /// Whether a batch of this size has as many rows as it may, or is within an eighth of another of
    /// its limits, where one more row may be too much.
    pub(super) fn is_full(&self, size: Size) -> bool {
        let nearly = |part: u64, max: u64| part.saturating_mul(8) >= max.saturating_mul(7);
        let BatchLimits { max_rows, max_tokens, max_bytes, .. } = self.limits;
        size.rows >= u64::from(max_rows)
            || max_tokens.is_some_and(|max| nearly(size.padded(), u64::from(max)))
            || max_bytes.is_some_and(|max| nearly(size.bytes, max))
    }

    /// Whether there is work for more than one batch, or just for one. Tokens without their padding,
    /// which is not known before the rows are sorted.
    fn fills_a_batch(&self, work: Work) -> bool {
        let BatchLimits { max_rows, max_tokens, max_bytes, .. } = self.limits;
        work.rows >= max_rows as usize
            || max_tokens.is_some_and(|max| work.tokens >= u64::from(max))
            || max_bytes.is_some_and(|max| work.input_bytes >= max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(ordered: bool) -> SealPolicy {
        let limits =
            BatchLimits { max_rows: 4, max_tokens: Some(80), max_bytes: None, window_rows: 100 };
        SealPolicy { limits, ordered, multiple: 1 }
    }

    fn row(length: u32) -> Row {
        Row { block: 0, index: 0, length, bytes: 8 }
    }

    /// So many rows of so many tokens, of which more will come.
    fn seen(rows: usize, length: u32) -> Seen {
        let mut work = Work::default();
        (0..rows).for_each(|_| work.add(&row(length)));
        let (input_ended, producer_blocked) = (false, false);
        Seen { rows, work, input_ended, producer_blocked, patience: Patience::FullBatch }
    }

    #[test]
    fn a_window_is_sealed_for_the_first_reason_that_there_is() {
        let impatient = |seen: Seen| Seen { patience: Patience::Flush, ..seen };
        let blocked = |seen: Seen| Seen { producer_blocked: true, ..seen };
        let ended = |seen: Seen| Seen { input_ended: true, ..seen };
        for (seen, expected) in [
            (ended(impatient(blocked(seen(0, 1)))), None),
            (seen(3, 1), None),
            (seen(4, 1), Some(Reason::BatchFull)),
            (seen(2, 40), Some(Reason::BatchFull)),
            (blocked(seen(3, 1)), Some(Reason::ProducerBlocked)),
            (blocked(seen(100, 1)), Some(Reason::WindowFull)),
            (impatient(seen(1, 1)), Some(Reason::PatienceOver)),
            (ended(impatient(seen(1, 1))), Some(Reason::InputEnded)),
        ] {
            assert_eq!(policy(false).reason(&seen), expected, "{seen:?}");
        }
    }

    #[test]
    fn rows_wait_for_others_only_if_these_come_and_no_order_is_kept() {
        for (reason, ordered, expected) in [
            (Reason::BatchFull, false, true),
            (Reason::BatchFull, true, false),
            (Reason::PatienceOver, false, false),
            (Reason::ProducerBlocked, false, false),
            (Reason::InputEnded, false, false),
        ] {
            assert_eq!(policy(ordered).keeps_rest(reason), expected, "{reason:?}");
        }
    }

    #[test]
    fn of_rows_with_lengths_each_replica_has_one_batch_for_so_many_times() {
        let (texts, numbers) =
            (Cut { full: 5, has_lengths: true }, Cut { full: 5, has_lengths: false });
        let mut reopened = 0;
        assert_eq!(policy(false).handed_out(numbers, 2, &mut reopened), 5);
        for time in 1..=REOPENED_MAX {
            assert_eq!(policy(false).handed_out(texts, 2, &mut reopened), 2);
            assert_eq!(reopened, time);
        }
        assert_eq!(policy(false).handed_out(texts, 2, &mut reopened), 5);
        assert_eq!(reopened, 0);
        assert_eq!(policy(false).handed_out(Cut { full: 0, ..texts }, 2, &mut reopened), 1);
    }

    #[test]
    fn a_batch_is_full_at_its_rows_or_close_to_another_limit() {
        let size = |rows, length| (0..rows).fold(Size::default(), |s, _| s.with(&row(length)));
        for (rows, length, expected) in
            [(3, 1, false), (4, 1, true), (2, 34, false), (2, 35, true), (1, 300, true)]
        {
            assert_eq!(policy(false).is_full(size(rows, length)), expected, "{rows} of {length}");
        }
    }
}
