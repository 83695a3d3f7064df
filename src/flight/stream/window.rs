//! The newest rows of a stream that all readers get, and how far each of them is.

use std::collections::{HashMap, VecDeque};

use arrow::array::RecordBatch;
use forebay_engine::weight;
use parking_lot::Mutex;
use tokio::sync::Notify;
use uuid::Uuid;

/// Bytes that wait for the slowest reader, but for a single batch that has more.
const BYTES_MAX: usize = 64 << 20;

/// What is kept for those who have yet to read it: as much as may wait, also when all that are there
/// have read it, for those who come later.
#[derive(Debug, Default)]
pub(super) struct Window {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the oldest batch that is kept.
    first: u64,
    batches: VecDeque<RecordBatch>,
    bytes: usize,
    is_over: bool,
    /// The next batch of each reader.
    next: HashMap<Uuid, u64>,
}

impl State {
    /// Makes room by what everyone has read. Says whether there is enough.
    fn make_room(&mut self, bytes: usize) -> bool {
        while self.bytes > 0 && self.bytes.saturating_add(bytes) > BYTES_MAX {
            let is_read = self.next.values().min().is_some_and(|next| *next > self.first);
            if !is_read {
                return false;
            }
            if let Some(batch) = self.batches.pop_front() {
                self.bytes -= weight::bytes(&batch);
                self.first += 1;
            }
        }
        true
    }
}

impl Window {
    /// A reader, which gets what is kept and all that follows.
    pub(super) fn enter(&self) -> Uuid {
        let mut state = self.state.lock();
        let (id, first) = (Uuid::new_v4(), state.first);
        state.next.insert(id, first);
        id
    }

    /// A reader goes; nobody waits for it any more.
    pub(super) fn leave(&self, reader: Uuid) {
        self.state.lock().next.remove(&reader);
        self.changed.notify_waiters();
    }

    /// Adds a batch as soon as there is room.
    pub(super) async fn push(&self, batch: RecordBatch) {
        let bytes = weight::bytes(&batch);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.make_room(bytes) {
                    state.bytes += bytes;
                    state.batches.push_back(batch);
                    break;
                }
            }
            changed.await;
        }
        self.changed.notify_waiters();
    }

    /// There is nothing more to come.
    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_waiters();
    }

    /// The next batch of a reader.
    pub(super) async fn next(&self, reader: Uuid) -> Option<RecordBatch> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = self.now(reader) {
                return found;
            }
            changed.await;
        }
    }

    /// The next batch or the end, if it is there.
    fn now(&self, reader: Uuid) -> Option<Option<RecordBatch>> {
        let mut state = self.state.lock();
        let next = *state.next.get(&reader)?;
        let at = usize::try_from(next - state.first).unwrap_or(usize::MAX);
        match state.batches.get(at).cloned() {
            Some(batch) => {
                state.next.insert(reader, next + 1);
                self.changed.notify_waiters();
                Some(Some(batch))
            }
            None => state.is_over.then_some(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use datafusion::common::runtime::SpawnedTask;

    use super::*;

    /// 1 MiB whose first value is `n`.
    fn batch(n: i64) -> RecordBatch {
        let values = Int64Array::from_iter_values(std::iter::repeat_n(n, 1 << 17));
        RecordBatch::try_from_iter([("n", Arc::new(values) as ArrayRef)]).unwrap()
    }

    async fn all(window: &Window, reader: Uuid) -> Vec<i64> {
        let mut found = vec![];
        while let Some(batch) = window.next(reader).await {
            found.push(batch.column(0).as_primitive::<Int64Type>().value(0));
        }
        window.leave(reader);
        found
    }

    #[tokio::test]
    async fn everyone_gets_everything_and_late_ones_the_rest() {
        let window = Arc::new(Window::default());
        let readers = [window.enter(), window.enter()];
        let writing = {
            let window = Arc::clone(&window);
            SpawnedTask::spawn(async move {
                for n in 0..200 {
                    window.push(batch(n)).await;
                }
                window.end();
            })
        };
        let [a, b] = readers.map(|reader| {
            let window = Arc::clone(&window);
            SpawnedTask::spawn(async move { all(&window, reader).await })
        });
        let whole: Vec<i64> = (0..200).collect();
        assert_eq!((a.join().await.unwrap(), b.join().await.unwrap()), (whole.clone(), whole));
        writing.join().await.unwrap();
        let rest = all(&window, window.enter()).await;
        assert!((32..=64).contains(&rest.len()), "{} MiB were kept", rest.len());
        assert_eq!(rest, (200 - rest.len() as i64..200).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_reader_that_goes_holds_nobody_back() {
        let window = Arc::new(Window::default());
        let (here, gone) = (window.enter(), window.enter());
        let writing = {
            let window = Arc::clone(&window);
            SpawnedTask::spawn(async move {
                for n in 0..100 {
                    window.push(batch(n)).await;
                }
                window.end();
            })
        };
        for _ in 0..50 {
            assert!(window.next(here).await.is_some());
        }
        window.leave(gone);
        assert_eq!(all(&window, here).await.len(), 50);
        writing.join().await.unwrap();
    }
}
