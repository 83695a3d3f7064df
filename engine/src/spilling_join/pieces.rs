//! Rows that no hash can part, joined a piece at a time.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use datafusion::common::{JoinType, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::PartitionMode;
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use super::parts::Rows;
use super::run::Run;
use super::shape::{Shape, Side};
use super::sides::{GivenExec, Held};

/// What is taken in pieces, and what is made of a piece and all rows of the other side.
#[derive(Clone, Copy, Debug)]
enum Pass {
    /// The build side: a join of this kind.
    Build(JoinType),
    /// The probe side: a join of this kind, with the sides turned around.
    Probe(JoinType),
    /// The probe side: the rows of a full join that nothing has met.
    Unmet,
}

/// A side in pieces that fit into memory.
pub(super) struct Pieces {
    pass: Pass,
    taken: SendableRecordBatchStream,
    /// For which the piece before had no room.
    waiting: Option<RecordBatch>,
    others: Rows,
}

impl Pieces {
    /// All that a join of these rows consists of, the first one at the end.
    pub(super) fn of(kind: JoinType, build: &Rows, probe: &Rows) -> Vec<Self> {
        let passes = match kind {
            JoinType::Inner if probe.count() < build.count() => vec![Pass::Probe(kind)],
            JoinType::Inner
            | JoinType::Left
            | JoinType::LeftSemi
            | JoinType::LeftAnti
            | JoinType::LeftMark => vec![Pass::Build(kind)],
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                vec![Pass::Probe(kind)]
            }
            JoinType::Full => vec![Pass::Unmet, Pass::Build(JoinType::Left)],
        };
        let pieces = |pass| {
            let (taken, others) = match pass {
                Pass::Build(_) => (build, probe),
                Pass::Probe(_) | Pass::Unmet => (probe, build),
            };
            Self { pass, taken: taken.read(), waiting: None, others: others.clone() }
        };
        passes.into_iter().map(pieces).collect()
    }

    /// What the next piece gives; `None` behind the last one.
    ///
    /// # Errors
    /// Of the disk, and for a row that is too large.
    pub(super) async fn next(
        &mut self,
        shape: &Arc<Shape>,
        outside: &Arc<TaskContext>,
        partition: usize,
    ) -> Result<Option<SendableRecordBatchStream>> {
        let run = Run::new(shape, outside, partition, None);
        let piece = self.piece(&run).await?;
        if piece.is_empty() {
            return Ok(None);
        }
        let taken = GivenExec::of_batches(self.taken.schema(), piece);
        let others = GivenExec::of_rows(self.others.read());
        let join = joined(shape, self.pass, taken, others)?;
        let rows = join.execute(partition, run.context())?;
        Ok(Some(finished(shape, self.pass, partition, rows)))
    }

    async fn piece(&mut self, run: &Run) -> Result<Vec<RecordBatch>> {
        let mut held = Held::default();
        loop {
            let batch = match self.waiting.take() {
                Some(batch) => Some(batch),
                None => self.taken.next().await.transpose()?,
            };
            let Some(batch) = batch else { return Ok(held.batches) };
            let is_first = held.batches.is_empty();
            held.add(batch);
            if run.memory.hold(held.rows, held.bytes)? {
                continue;
            }
            if is_first {
                run.memory.hold_anyway(held.rows, held.bytes, &run.shape.label())?;
            } else {
                self.waiting = held.batches.pop();
            }
            return Ok(held.batches);
        }
    }
}

fn joined(
    shape: &Shape,
    pass: Pass,
    taken: Arc<dyn ExecutionPlan>,
    others: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let join = match pass {
        Pass::Build(kind) => return Ok(Arc::new(shape.of_part(kind, taken, others)?)),
        Pass::Probe(kind) => shape.of_part(kind, others, taken)?,
        Pass::Unmet => {
            let full = shape.of_part(JoinType::Full, others, taken)?.builder();
            full.with_projection(None).with_type(JoinType::RightAnti).build()?
        }
    };
    // What a join has told its probe side does not go for the other one.
    join.builder().reset_state().build()?.swap_inputs(PartitionMode::Partitioned)
}

/// The rows in the columns of the join that was planned.
fn finished(
    shape: &Arc<Shape>,
    pass: Pass,
    partition: usize,
    rows: SendableRecordBatchStream,
) -> SendableRecordBatchStream {
    let schema = shape.join.schema();
    // Those of the build side are counted by the planned join's own metrics.
    let counted = match pass {
        Pass::Build(_) => None,
        Pass::Probe(_) | Pass::Unmet => Some(BaselineMetrics::new(&shape.metrics, partition)),
    };
    let (shape, to) = (Arc::clone(shape), Arc::clone(&schema));
    let rows = rows.map(move |batch| {
        let batch = batch?;
        let count = batch.num_rows();
        let columns = match pass {
            Pass::Build(_) | Pass::Probe(_) => batch.columns().to_vec(),
            Pass::Unmet => beside_nulls(&shape, &batch),
        };
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&to), columns, &options)?;
        Ok(match &counted {
            Some(counted) => batch.record_output(counted),
            None => batch,
        })
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// Rows of the probe side beside NULLs, as far as the planned join gives the columns.
fn beside_nulls(shape: &Shape, unmet: &RecordBatch) -> Vec<ArrayRef> {
    let build = shape.schema(Side::Build);
    let count = unmet.num_rows();
    let nulls = build.fields().iter().map(|field| new_null_array(field.data_type(), count));
    let all: Vec<ArrayRef> = nulls.chain(unmet.columns().iter().cloned()).collect();
    match &shape.join.projection {
        Some(given) => given.iter().filter_map(|at| all.get(*at).cloned()).collect(),
        None => all,
    }
}
