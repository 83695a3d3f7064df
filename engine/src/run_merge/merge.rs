//! The rows of sorted inputs, in their order.

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::EmptyRecordBatchStream;
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use futures::future::try_join_all;
use futures::{Stream, StreamExt, TryStreamExt, stream};

use super::keys::{KeyOrder, Keys};
use super::picked::Picked;
use super::tree::LoserTree;

/// Sorted inputs, and what of them was picked.
pub(super) struct Merge {
    pub(super) order: KeyOrder,
    pub(super) inputs: Vec<SendableRecordBatchStream>,
    pub(super) picked: Picked,
    pub(super) batch_size: usize,
    pub(super) memory: MemoryReservation,
    pub(super) metrics: BaselineMetrics,
}

/// Prefixes are computed for so many rows at a time. Keys of neighbors lie in one line of the cache, and with a hundred
/// inputs that would be gone from it when the next row's turn comes.
const AHEAD: usize = 32;

/// The row of an input that comes next.
struct Cursor {
    keys: Keys,
    row: usize,
    /// Of rows from the last multiple of [`AHEAD`] on.
    prefixes: Vec<u128>,
    _reserved: MemoryReservation,
}

impl Cursor {
    /// At the first row, of one at least.
    fn new(keys: Keys, reserved: MemoryReservation) -> Self {
        let mut prefixes = Vec::with_capacity(AHEAD);
        keys.prefixes(0..AHEAD.min(keys.rows), &mut prefixes);
        Self { keys, row: 0, prefixes, _reserved: reserved }
    }

    /// Whether there is another row.
    fn advance(&mut self) -> bool {
        self.row += 1;
        if self.row < self.keys.rows && self.row.is_multiple_of(AHEAD) {
            let end = self.keys.rows.min(self.row + AHEAD);
            self.keys.prefixes(self.row..end, &mut self.prefixes);
        }
        self.row < self.keys.rows
    }

    fn prefix(&self) -> u128 {
        self.prefixes[self.row % AHEAD]
    }
}

/// The next row of each input; none of those that have ended.
struct Cursors(Vec<Option<Cursor>>);

impl Cursors {
    fn prefix(&self, input: usize) -> u128 {
        self.0[input].as_ref().map_or(u128::MAX, Cursor::prefix)
    }

    /// Of two inputs that have the same prefix. What has ended is behind the others, and equal rows are in the order of
    /// their inputs.
    fn is_before(&self, a: usize, b: usize) -> bool {
        match (&self.0[a], &self.0[b]) {
            (Some(one), Some(other)) => {
                one.keys.compare(one.row, &other.keys, other.row).then(a.cmp(&b)).is_lt()
            }
            (one, other) => (one.is_none(), a) < (other.is_none(), b),
        }
    }
}

/// Rows, and what is to come of them.
type Next = Option<(RecordBatch, Merging)>;

struct Merging {
    merge: Merge,
    cursors: Cursors,
    tree: LoserTree,
}

impl Merge {
    /// Batches of the inputs' rows, of their size but for the last.
    pub(super) fn into_batches(self) -> impl Stream<Item = Result<RecordBatch>> + Send {
        let batches = stream::once(self.begin())
            .map(|begun| begun.map(|merging| stream::try_unfold(merging, Merging::next)));
        batches.try_flatten()
    }

    async fn begin(mut self) -> Result<Merging> {
        // All at once, so that the first error is known at once.
        let batches = try_join_all(self.inputs.iter_mut().map(next_rows)).await?;
        let mut cursors = vec![];
        for (input, batch) in batches.into_iter().enumerate() {
            cursors.push(self.cursor(input, batch)?);
        }
        let cursors = Cursors(cursors);
        let prefixes: Vec<_> = (0..self.inputs.len()).map(|input| cursors.prefix(input)).collect();
        let tree = LoserTree::new(&prefixes, |a, b| cursors.is_before(a, b));
        Ok(Merging { merge: self, cursors, tree })
    }

    /// The first row of an input's next batch, if it has one.
    fn cursor(&mut self, input: usize, batch: Option<RecordBatch>) -> Result<Option<Cursor>> {
        let Some(batch) = batch else {
            self.picked.end(input);
            // What it holds is not needed any more.
            let schema = self.inputs[input].schema();
            self.inputs[input] = Box::pin(EmptyRecordBatchStream::new(schema));
            return Ok(None);
        };
        let keys = self.order.keys_of(&batch)?;
        let reserved = self.memory.new_empty();
        reserved.try_grow(keys.size)?;
        self.picked.hold(input, batch, &self.memory)?;
        Ok(Some(Cursor::new(keys, reserved)))
    }
}

/// The next batch that has rows.
async fn next_rows(input: &mut SendableRecordBatchStream) -> Result<Option<RecordBatch>> {
    while let Some(batch) = input.try_next().await? {
        if batch.num_rows() > 0 {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}

impl Merging {
    async fn next(mut self) -> Result<Next> {
        let elapsed = self.merge.metrics.elapsed_compute().clone();
        let mut timer = elapsed.timer();
        while self.merge.picked.len() < self.merge.batch_size {
            let input = self.tree.first();
            let Some(cursor) = &mut self.cursors.0[input] else { break };
            self.merge.picked.pick(input, cursor.row)?;
            if !cursor.advance() {
                timer.done();
                let batch = next_rows(&mut self.merge.inputs[input]).await?;
                self.cursors.0[input] = self.merge.cursor(input, batch)?;
                timer = elapsed.timer();
            }
            let prefix = self.cursors.prefix(input);
            self.tree.advance(prefix, |a, b| self.cursors.is_before(a, b));
        }
        let batch = self.merge.picked.take()?;
        timer.done();
        Ok(batch.map(|batch| (batch.record_output(&self.merge.metrics), self)))
    }
}
