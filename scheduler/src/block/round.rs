//! Rows of a hash shuffle that are gathered until they are written together, each partition's behind those of the
//! one before it.

use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{interleave_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Schema};
use datafusion::common::Result;
use datafusion::common::hash_utils::create_hashes;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::repartition::REPARTITION_RANDOM_STATE;
use forebay_engine::weight;

use super::groups::Groups;
use crate::no_panic::no_panic;

/// Which partition each row belongs to: the one that DataFusion's `RepartitionExec` would give it to, so that rows
/// with equal keys are where the plan takes them to be.
#[derive(Debug)]
pub(super) struct Partitioner {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    partitions: u32,
    groups: Groups,
    hashes: Vec<u64>,
}

impl Partitioner {
    /// By a hash of these keys, into so many partitions.
    pub(super) fn new(keys: Vec<Arc<dyn PhysicalExpr>>, partitions: u32, groups: Groups) -> Self {
        Self { keys, partitions: partitions.max(1), groups, hashes: vec![] }
    }

    /// The segment of each row: that of its partition.
    ///
    /// # Errors
    /// If a key cannot be computed.
    pub(super) fn segments_of(&mut self, batch: &RecordBatch) -> Result<Vec<u32>> {
        let keys = self.keys.iter().map(|key| key.evaluate(batch)?.into_array(batch.num_rows()));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        self.hashes.clear();
        self.hashes.resize(batch.num_rows(), 0);
        create_hashes(&keys, REPARTITION_RANDOM_STATE.random_state(), &mut self.hashes)?;
        let partitions = u64::from(self.partitions);
        // Less than their number, which has 32 bits.
        let partitions = self.hashes.iter().map(|hash| (hash % partitions) as u32);
        Ok(partitions.map(|partition| self.groups.segment_of(partition)).collect())
    }
}

/// A row, by the batch and its place in that.
type Place = (u32, u32);

/// Bytes that are kept of a row beside itself: its segment, and while it is written its place.
pub(super) const ROW_BYTES: usize = size_of::<u32>() + size_of::<Place>();

/// Rows of a batch of a segment at most, and its bytes, but for a row that has more: a header for each batch, and it is
/// in memory once more while it is written.
const BATCH_ROWS: usize = 8192;
const BATCH_BYTES: usize = 1 << 20;

/// Rows that are written together.
#[derive(Debug, Default)]
pub(super) struct Round {
    batches: Vec<RecordBatch>,
    /// Of the rows of each.
    segments: Vec<Vec<u32>>,
    bytes: usize,
    rows: usize,
}

impl Round {
    /// Adds rows of so many bytes, of each of which it is known to which segment it belongs.
    pub(super) fn add(&mut self, batch: RecordBatch, bytes: usize, segments: Vec<u32>) {
        self.bytes += bytes;
        self.rows += batch.num_rows();
        self.batches.push(batch);
        self.segments.push(segments);
    }

    /// Bytes of the rows.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// The first rows that came.
    pub(super) fn first(&self) -> Option<&RecordBatch> {
        self.batches.first()
    }

    /// Its rows by segment, of so many.
    pub(super) fn sorted(&self, segments: u32) -> Sorted<'_> {
        let mut ends = vec![0_usize; segments as usize + 1];
        for segment in self.segments.iter().flatten() {
            ends[*segment as usize + 1] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum;
        }
        let begins = ends.clone();
        let mut places = vec![Place::default(); self.rows];
        for (batch, segments) in (0..).zip(&self.segments) {
            for (row, segment) in (0..).zip(segments) {
                let next = &mut ends[*segment as usize];
                places[*next] = (batch, row);
                *next += 1;
            }
        }
        let row_bytes = self.bytes.div_ceil(self.rows.max(1)).max(1);
        let batch_rows = (BATCH_BYTES / row_bytes).clamp(1, BATCH_ROWS);
        Sorted { batches: &self.batches, begins, places, batch_rows }
    }
}

/// Rows by segment, within one in the order in which they came.
pub(super) struct Sorted<'a> {
    batches: &'a [RecordBatch],
    /// Where each segment's begin; and the end.
    begins: Vec<usize>,
    places: Vec<Place>,
    batch_rows: usize,
}

impl Sorted<'_> {
    /// The rows of a segment, in batches. None if there are none.
    pub(super) fn of(&self, segment: u32) -> impl Iterator<Item = Result<Vec<RecordBatch>>> {
        let at = segment as usize;
        let places = &self.places[self.begins[at]..self.begins[at + 1]];
        places.chunks(self.batch_rows).map(|places| self.gathered(places))
    }

    /// One batch of these rows. Of several dictionaries one cannot always be made, as there may be more values than
    /// keys: then one for each batch that they come from.
    fn gathered(&self, places: &[Place]) -> Result<Vec<RecordBatch>> {
        let mut used: Vec<&RecordBatch> = vec![];
        let mut last = None;
        // They come from the batches in their order.
        let mut place = |(batch, row): &Place| {
            if last.replace(*batch) != Some(*batch) {
                used.push(&self.batches[*batch as usize]);
            }
            (used.len() - 1, *row as usize)
        };
        let rows: Vec<(usize, usize)> = places.iter().map(&mut place).collect();
        if !holds_dictionary(&used[0].schema()) {
            return Ok(vec![weight::compact(&interleave_record_batch(&used, &rows)?)?]);
        }
        match no_panic(|| Ok(interleave_record_batch(&used, &rows)?)) {
            Ok(whole) => Ok(vec![weight::compact(&whole)?]),
            Err(error) if used.len() == 1 => Err(error),
            Err(_) => places.chunk_by(|a, b| a.0 == b.0).map(|places| self.taken(places)).collect(),
        }
    }

    /// These rows of one batch.
    fn taken(&self, places: &[Place]) -> Result<RecordBatch> {
        let rows = UInt32Array::from_iter_values(places.iter().map(|(_, row)| *row));
        let batch = &self.batches[places[0].0 as usize];
        Ok(weight::compact(&take_record_batch(batch, &rows)?)?)
    }
}

fn holds_dictionary(schema: &Schema) -> bool {
    fn holds(kind: &DataType) -> bool {
        match kind {
            DataType::Dictionary(..) => true,
            DataType::List(field)
            | DataType::LargeList(field)
            | DataType::ListView(field)
            | DataType::LargeListView(field)
            | DataType::FixedSizeList(field, _)
            | DataType::Map(field, _)
            | DataType::RunEndEncoded(_, field) => holds(field.data_type()),
            DataType::Struct(fields) => fields.iter().any(|field| holds(field.data_type())),
            _ => false,
        }
    }
    schema.fields().iter().any(|field| holds(field.data_type()))
}
