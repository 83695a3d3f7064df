//! The rows of a side on disk, in parts by a hash of their keys.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::take_record_batch;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::{NullEquality, Result};
use datafusion::execution::spill_file::SpillFile;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::utils::evaluate_expressions_to_arrays;
use datafusion::physical_plan::SpillManager;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt, stream};

use super::shape::{Shape, Side};

/// Parts of a side, each of which is a file while it is written.
pub(super) const PARTS: usize = 16;

/// How often rows may be parted: into 65,536 parts at last.
pub(super) const LEVELS_MAX: usize = 4;

/// Neither DataFusion's seed for exchanges, by which all keys of a partition are alike, nor that of its tables,
/// whose buckets would be alike; and one for each level.
const SEEDS: u64 = 0x5f0e_bad5_0a1e_d000;

/// Rows of a side that are on disk.
#[derive(Clone)]
pub(super) struct Rows {
    files: Vec<Arc<dyn SpillFile>>,
    count: usize,
    disk: Arc<SpillManager>,
}

impl Rows {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Those of `self`, and then the others.
    pub(super) fn and(mut self, others: Self) -> Self {
        self.files.extend(others.files);
        self.count += others.count;
        self
    }

    /// In the order in which they were written.
    pub(super) fn read(&self) -> SendableRecordBatchStream {
        let disk = Arc::clone(&self.disk);
        let read = move |file| {
            let read = disk.read_spill_as_stream_unbuffered(file, None);
            futures::future::ready(read)
        };
        let rows = stream::iter(self.files.clone()).map(Ok).and_then(read).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(self.disk.schema()), rows))
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows({} in {} files)", self.count, self.files.len())
    }
}

/// A file while it is written: takes batches, and at the end nothing, and gives itself then. DataFusion's type has
/// no public name.
type Append = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send>;

/// Writes the rows of a side to disk in parts. Rows that meet have equal keys, and these are in the same part.
pub(super) struct Parting {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    nulls: NullEquality,
    seed: RandomState,
    disk: Arc<SpillManager>,
    parts: Vec<(Append, usize)>,
    /// The part of the next row that meets none: they may be many. `None` if these are to be found again, in a
    /// part of their own behind the others.
    turn: Option<usize>,
    hashes: Vec<u64>,
    label: String,
}

impl Parting {
    /// # Errors
    /// If there cannot be files.
    pub(super) fn new(
        shape: &Shape,
        side: Side,
        level: usize,
        partition: usize,
        context: &TaskContext,
    ) -> Result<Self> {
        let disk = shape.on_disk(side, partition, context);
        let label = shape.label();
        let part = || {
            let mut file = disk.create_in_progress_file("a join that does not fit into memory")?;
            let append = move |batch: Option<&RecordBatch>| match batch {
                Some(batch) => file.append_batch(batch).map(|_| None),
                None => file.finish(),
            };
            Ok((Box::new(append) as Append, 0))
        };
        let count = if shape.join.null_aware { PARTS + 1 } else { PARTS };
        let parts = (0..count).map(|_| part()).collect::<Result<_>>();
        Ok(Self {
            keys: shape.keys(side),
            nulls: shape.join.null_equality(),
            seed: RandomState::with_seed(SEEDS + level as u64),
            parts: parts
                .map_err(|error| error.context(format!("{label} does not fit into memory")))?,
            disk: Arc::new(disk),
            turn: (!shape.join.null_aware).then_some(0),
            hashes: vec![],
            label,
        })
    }

    /// # Errors
    /// Of the keys' expressions, and of the disk.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let picked = self.picked(batch)?;
        for ((append, count), rows) in self.parts.iter_mut().zip(picked) {
            if rows.is_empty() {
                continue;
            }
            *count += rows.len();
            let rows = take_record_batch(batch, &UInt32Array::from(rows))?;
            append(Some(&rows))
                .map_err(|error| error.context(format!("{} cannot write to disk", self.label)))?;
        }
        Ok(())
    }

    /// The rows of each part.
    fn picked(&mut self, batch: &RecordBatch) -> Result<Vec<Vec<u32>>> {
        let keys = evaluate_expressions_to_arrays(&self.keys, batch)?;
        self.hashes.clear();
        self.hashes.resize(batch.num_rows(), 0);
        create_hashes(&keys, &self.seed, &mut self.hashes)?;
        let meet = meet(&keys, self.nulls);
        let mut picked = vec![vec![]; self.parts.len()];
        for (row, hash) in (0_u32..).zip(&self.hashes) {
            let part = if meet.as_ref().is_none_or(|meet| meet.is_valid(row as usize)) {
                // Not the lowest bits, to be safe from a hash whose lowest bits are poor.
                (hash >> 32) as usize % PARTS
            } else {
                self.turn = self.turn.map(|turn| (turn + 1) % PARTS);
                self.turn.unwrap_or(PARTS)
            };
            if let Some(rows) = picked.get_mut(part) {
                rows.push(row);
            }
        }
        Ok(picked)
    }

    /// Writes all rows of a stream.
    ///
    /// # Errors
    /// The stream's, and of [`Parting::write`].
    pub(super) async fn write_all(&mut self, mut rows: SendableRecordBatchStream) -> Result<()> {
        while let Some(batch) = rows.next().await.transpose()? {
            self.write(&batch)?;
        }
        Ok(())
    }

    /// The parts as they can be read.
    ///
    /// # Errors
    /// Of the disk.
    pub(super) fn finish(self) -> Result<Vec<Rows>> {
        let Self { parts, disk, label, .. } = self;
        let finish = |(mut append, count): (Append, usize)| {
            let files = append(None)?.into_iter().collect();
            Ok(Rows { files, count, disk: Arc::clone(&disk) })
        };
        let parts: Result<Vec<Rows>> = parts.into_iter().map(finish).collect();
        parts.map_err(|error| error.context(format!("{label} cannot write to disk")))
    }
}

/// The rows that may meet others: those without a NULL, unless NULLs are equal.
fn meet(keys: &[ArrayRef], nulls: NullEquality) -> Option<NullBuffer> {
    if nulls == NullEquality::NullEqualsNull {
        return None;
    }
    let valid = keys.iter().map(|key| key.logical_nulls());
    valid.fold(None, |all, valid| NullBuffer::union(all.as_ref(), valid.as_ref()))
}
