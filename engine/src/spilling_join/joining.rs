//! The rows of one partition of a join.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use super::memory::of_sort;
use super::parts::{LEVELS_MAX, Parting, Rows};
use super::pieces::Pieces;
use super::run::{Run, TooLarge, with_pool};
use super::shape::{Shape, Side};
use super::sides::{GivenExec, SideExec};

/// A part with more than so many percent of the rows that were parted is not parted again: what they share is
/// most likely their key.
const PERCENT_MAX: usize = 90;

/// What one partition does. At first that is the planned join; the rest comes of what does not fit.
pub(super) struct Joining {
    shape: Arc<Shape>,
    outside: Arc<TaskContext>,
    partition: usize,
    /// What rows are taken of now.
    current: Option<Current>,
    /// What is left, the last one first.
    work: Vec<Work>,
    /// Rows that may still be given.
    fetch: Option<usize>,
}

struct Current {
    rows: SendableRecordBatchStream,
    attempt: Option<Attempt>,
}

/// A join that may come to nothing.
struct Attempt {
    run: Arc<Run>,
    /// Its rows, if they are on disk.
    of: Option<[Rows; 2]>,
}

enum Work {
    Join { build: Rows, probe: Rows, level: Option<usize> },
    Pieces(Pieces),
}

impl Joining {
    /// The planned join, over sides that stand between it and its inputs.
    ///
    /// # Errors
    /// The inputs'.
    pub(super) fn begin(
        shape: &Arc<Shape>,
        planned: &dyn ExecutionPlan,
        outside: &Arc<TaskContext>,
        partition: usize,
    ) -> Result<SendableRecordBatchStream> {
        let run = Run::new(shape, outside, partition, Some(0));
        let rows = planned.execute(partition, run.context())?;
        let first = Current { rows, attempt: Some(Attempt { run, of: None }) };
        let mut joining = Self::new(shape, outside, partition, vec![]);
        joining.current = Some(first);
        joining.fetch = shape.join.fetch();
        Ok(joining.into_stream())
    }

    fn new(
        shape: &Arc<Shape>,
        outside: &Arc<TaskContext>,
        partition: usize,
        work: Vec<Work>,
    ) -> Self {
        let (shape, outside) = (Arc::clone(shape), Arc::clone(outside));
        Self { shape, outside, partition, current: None, work, fetch: None }
    }

    fn into_stream(self) -> SendableRecordBatchStream {
        let schema = self.shape.join.schema();
        let rows = futures::stream::try_unfold(self, |mut joining| async move {
            Ok(joining.next().await?.map(|batch| (batch, joining)))
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if self.fetch == Some(0) {
            return Ok(None);
        }
        loop {
            let Some(current) = &mut self.current else {
                match self.work.pop() {
                    Some(work) => self.take_up(work).await?,
                    None => return Ok(None),
                }
                continue;
            };
            match current.rows.next().await {
                Some(Ok(batch)) if batch.num_rows() == 0 => {}
                Some(Ok(batch)) => return Ok(Some(self.cut(batch))),
                None => self.current = None,
                Some(Err(error)) => match TooLarge::of(&error) {
                    Some(found) => {
                        drop(error);
                        self.divide(&found).await?;
                    }
                    None => return Err(error),
                },
            }
        }
    }

    fn cut(&mut self, batch: RecordBatch) -> RecordBatch {
        let Some(left) = &mut self.fetch else { return batch };
        let rows = batch.num_rows().min(*left);
        *left -= rows;
        batch.slice(0, rows)
    }

    async fn take_up(&mut self, work: Work) -> Result<()> {
        self.current = match work {
            Work::Join { build, probe, level } => {
                let run = Run::new(&self.shape, &self.outside, self.partition, level);
                let side =
                    |side, rows: &Rows| SideExec::over(side, GivenExec::of_rows(rows.read()));
                let (left, right) = (side(Side::Build, &build), side(Side::Probe, &probe));
                let join = self.shape.of_part(*self.shape.join.join_type(), left, right)?;
                let rows = join.execute(self.partition, run.context())?;
                Some(Current { rows, attempt: Some(Attempt { run, of: Some([build, probe]) }) })
            }
            Work::Pieces(mut pieces) => {
                let next = pieces.next(&self.shape, &self.outside, self.partition).await?;
                next.map(|rows| {
                    self.work.push(Work::Pieces(pieces));
                    Current { rows, attempt: None }
                })
            }
        };
        Ok(())
    }

    /// Goes on with the parts, or pieces, of what did not fit.
    async fn divide(&mut self, found: &TooLarge) -> Result<()> {
        let attempt = self.current.take().and_then(|current| current.attempt);
        let Some(Attempt { run, of }) = attempt else {
            return Err(internal_datafusion_err!("a piece of a join did not fit"));
        };
        match (&found.parts, run.level, of) {
            (Some(parts), Some(level), _) => self.divide_by_hash(found, parts, level, &run).await,
            (_, _, Some([build, probe])) => {
                let pieces = Pieces::of(*self.shape.join.join_type(), &build, &probe);
                self.work.extend(pieces.into_iter().map(Work::Pieces));
                Ok(())
            }
            (None, ..) | (_, None, None) => {
                Err(internal_datafusion_err!("the build side of a join is nowhere"))
            }
        }
    }

    async fn divide_by_hash(
        &mut self,
        found: &TooLarge,
        parts: &[Rows],
        level: usize,
        run: &Run,
    ) -> Result<()> {
        let probe = run.take_probe();
        let probe = probe.ok_or_else(|| internal_datafusion_err!("a probe side was taken"))?;
        let mut parting =
            Parting::new(&self.shape, Side::Probe, level, self.partition, &self.outside)?;
        parting.write_all(probe).await?;
        let mut probes = parting.finish()?;
        if level == 0 && self.shape.gives_rows_of_a_shared_table() {
            // Whoever comes last goes on, with the rows of all. The others do not wait.
            match found.with_probe(probes, self.shape.probe_partitions()) {
                Some(all) => probes = all,
                None => return Ok(()),
            }
        }
        if self.shape.join.null_aware && !leave_nulls(&mut probes) {
            return Ok(());
        }
        let all: usize = parts.iter().map(Rows::count).sum();
        let may_part = |part: &Rows| {
            level + 1 < LEVELS_MAX
                && part.count().saturating_mul(100) <= all.saturating_mul(PERCENT_MAX)
        };
        let joins = parts.iter().zip(probes).map(|(build, probe)| {
            let level = may_part(build).then_some(level + 1);
            Work::Join { build: build.clone(), probe, level }
        });
        self.work.extend(joins);
        if level == 0 { self.sort() } else { Ok(()) }
    }

    /// The rows of the parts in the order that the join claims.
    fn sort(&mut self) -> Result<()> {
        let Some(order) = self.shape.order() else { return Ok(()) };
        let work = std::mem::take(&mut self.work);
        let rest = Self::new(&self.shape, &self.outside, self.partition, work);
        let sorted = SortExec::new(order, GivenExec::of_rows(rest.into_stream()));
        let pool = of_sort(self.outside.memory_pool().as_ref());
        let context = with_pool(&self.outside, self.outside.session_config().clone(), pool);
        let rows = sorted.execute(self.partition, context)?;
        self.current = Some(Current { rows, attempt: None });
        Ok(())
    }
}

/// What `NOT IN` says of NULLs, which are the last part of both sides: with one on the probe side nothing is known
/// not to be in it, and those of the build side are not in it only if there is nothing. Says whether there can be
/// rows; of the build side's parts those count for which there is one of the probe side.
fn leave_nulls(probes: &mut Vec<Rows>) -> bool {
    let nulls = probes.last().map_or(0, Rows::count);
    if probes.iter().any(|part| part.count() > 0) {
        probes.pop();
    }
    nulls == 0
}
