//! Rows in an order that a seed determines: all of them at once, or window by window.
//!
//! ```text
//!  files     ├──0──┤├──1──┤├──2──┤├──3──┤├──4──┤├──5──┤   parts, by bytes
//!  windows   │ 4 1 │ 0 5 │ 3 2 │                          parts in the order of the seed
//!  rows      ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒                          of each window, sorted by row_hash
//!              ▲read  ▲made  ▲made
//! ```
//! Which rows are in a window depends on the files, its size and the seed; nothing of it on who computes them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, plan_err};
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::{FunctionRegistry, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, ScalarUDF, lit};
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::prelude::DataFrame;
use forebay_engine::sort_at_once::{sort_at_once, sort_in_parts};
use forebay_engine::write::resume::{Input, Inputs, Piece, changes};
use forebay_planner::physical::resumable::{CutQuery, cut_query};
use forebay_scheduler::client::cluster_exec::ClusterExec;
use futures::stream::{self, StreamExt, TryStreamExt};
use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};

use super::ahead::AheadPool;
use crate::flight::statements::plan::Execution;
use crate::flight::statements::session::Session;
use crate::flight::statements::statement::Prepared;

/// From so many places of the files the rows of a window come, if it is not small.
const PARTS_IN_WINDOW: u64 = 16;

/// Windows that are made while one is read: one is sorted by one core, so that another core reads for the next one.
const AHEAD_MAX: usize = 2;

/// A window that is sorted at once ends within this, if nobody wants it any more.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Parts of all files at most, as each takes memory.
const PARTS_MAX: u64 = 1 << 18;

/// In an order that the seed and the values determine: the same on one machine and on many. Rows
/// that are equal come one after the other.
pub(super) fn shuffled(rows: DataFrame, session: &Session, seed: i64) -> Result<DataFrame> {
    let columns = rows.schema().columns().into_iter().map(Expr::Column);
    let arguments = std::iter::once(lit(seed)).chain(columns).collect();
    let row_hash = session.context.session().udf("row_hash")?;
    rows.sort(vec![row_hash.call(arguments).sort(true, false)])
}

/// The same order of operators' rows.
struct ByRowHash {
    function: Arc<ScalarUDF>,
    seed: i64,
    options: Arc<ConfigOptions>,
}

impl ByRowHash {
    fn new(session: &Session, seed: i64) -> Result<Self> {
        let function = session.context.session().udf("row_hash")?;
        Ok(Self { function, seed, options: Arc::new(session.options()) })
    }

    fn of(&self, rows: &Schema) -> Result<LexOrdering> {
        let seed = Literal::new(ScalarValue::Int64(Some(self.seed)));
        let mut arguments: Vec<Arc<dyn PhysicalExpr>> = vec![Arc::new(seed)];
        for (at, field) in rows.fields().iter().enumerate() {
            arguments.push(Arc::new(Column::new(field.name(), at)));
        }
        let (function, options) = (Arc::clone(&self.function), Arc::clone(&self.options));
        let hash = ScalarFunctionExpr::try_new(function, arguments, rows, options)?;
        Ok([PhysicalSortExpr::new_default(Arc::new(hash))].into())
    }
}

/// A query whose rows are shuffled window by window, planned.
pub(super) struct Windows {
    query: CutQuery,
    windows: Vec<Vec<Piece>>,
    order: ByRowHash,
    schema: SchemaRef,
    context: Arc<TaskContext>,
}

impl Windows {
    /// Plans a query for windows of about so many bytes of its files.
    ///
    /// # Errors
    /// If it cannot be read in parts, and those of planning.
    pub(super) async fn new(
        session: &Arc<Session>,
        prepared: &Prepared,
        seed: i64,
        window_bytes: u64,
    ) -> Result<Self> {
        if prepared.schema.fields().is_empty() {
            return plan_err!("the query's rows have no columns, so there is nothing to shuffle");
        }
        session.plan_in_parts()?;
        let Execution { plan, context } = prepared.execute(session, &[]).await?;
        let query = cut_query(&plan, &|plan: &dyn ExecutionPlan| plan.is::<ClusterExec>())?;
        let schema = plan.schema();
        Ok(Self {
            windows: windows(&query.inputs, seed, window_bytes),
            query,
            order: ByRowHash::new(session, seed)?,
            schema,
            context,
        })
    }

    /// All rows, of one window after the other.
    pub(super) fn rows(self: Arc<Self>, session: &Arc<Session>) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.schema);
        let session = Arc::clone(session);
        let reading =
            Reading { windows: self, session, next: 0, now: None, ahead: VecDeque::new() };
        let rows = stream::try_unfold(reading, |mut reading| async move {
            let batch = reading.batch().await?;
            Ok::<_, DataFusionError>(batch.map(|batch| (batch, reading)))
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }

    /// Begins to make the rows of a window, in their order.
    fn begin(&self, window: usize, memory: Arc<AheadPool>) -> Result<SendableRecordBatchStream> {
        let pieces = &self.windows[window];
        let nothing =
            || -> Arc<dyn ExecutionPlan> { Arc::new(EmptyExec::new(Arc::clone(&self.schema))) };
        let plan = self.query.part(pieces)?.unwrap_or_else(nothing);
        // Somebody waits for the first rows of all; from then on for the last ones of each window.
        let context = Arc::clone(&memory).context(&self.context);
        let rows = match window {
            0 => sort_in_parts(plan, &self.order.of(&self.schema)?, context)?,
            _ => sort_at_once(plan, |schema| self.order.of(schema), context)?,
        };
        let rows = stopped_until_read(rows, memory);
        Ok(unless_changed(rows, self.files(pieces), Arc::clone(&self.context)))
    }

    /// Whether a window can be made beside the one that is read and so many others: while it is sorted, it takes twice
    /// what its rows do.
    fn has_memory_left(&self, others: usize) -> bool {
        let pool = &self.context.runtime_env().memory_pool;
        match pool.memory_limit() {
            MemoryLimit::Finite(limit) => pool.reserved() <= limit / (2 << others),
            MemoryLimit::Infinite | MemoryLimit::Unknown => true,
        }
    }

    /// What was dropped gives its memory back when it has computed to its end. Others may have taken as much: they are
    /// not waited for.
    async fn until_memory_is_back(&self) {
        let is_back = async {
            while !self.has_memory_left(0) {
                sleep(LOOK_EVERY).await;
            }
        };
        timeout(GIVEN_BACK_WITHIN, is_back).await.ok();
    }

    /// What a window reads.
    fn files(&self, pieces: &[Piece]) -> Vec<Input> {
        let files = pieces.iter().map(|piece| &self.query.inputs.files[piece.file].input);
        let files: BTreeSet<&Input> = files.chain(&self.query.pinned).collect();
        files.into_iter().cloned().collect()
    }
}

/// One window, and the next ones behind it.
struct Reading {
    windows: Arc<Windows>,
    session: Arc<Session>,
    /// Which one begins next.
    next: usize,
    now: Option<Begun>,
    ahead: VecDeque<Begun>,
}

/// A window that has begun.
struct Begun {
    rows: SendableRecordBatchStream,
    window: usize,
    memory: Arc<AheadPool>,
    /// Whether it began while another one was read, and has given nothing yet.
    is_ahead: bool,
}

impl Reading {
    async fn batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if self.now.is_none() {
                self.now = match self.ahead.pop_front() {
                    Some(begun) => {
                        begun.memory.begin_reading();
                        Some(begun)
                    }
                    None => self.begin_next(false)?,
                };
            }
            let Some(now) = &mut self.now else { return Ok(None) };
            match now.rows.next().await {
                Some(Ok(batch)) => {
                    now.is_ahead = false;
                    // Its rows are in order, and only have to be sent: there is time for others.
                    let others = self.ahead.len();
                    if others < AHEAD_MAX && self.windows.has_memory_left(others) {
                        let next = self.begin_next(true)?;
                        self.ahead.extend(next);
                    }
                    return Ok(Some(batch));
                }
                None => self.now = None,
                // It gets memory of all behind it.
                Some(Err(error)) if now.is_ahead && is_short(&error) => {
                    tracing::debug!(window = now.window, "is made anew: {error}");
                    self.next = now.window;
                    self.ahead.clear();
                    self.now = None;
                    self.windows.until_memory_is_back().await;
                    self.now = self.begin_next(false)?;
                }
                Some(Err(error)) => return Err(error),
            }
        }
    }

    /// Begins the next window, if there is one: it runs as far as its first batches without being asked.
    fn begin_next(&mut self, is_ahead: bool) -> Result<Option<Begun>> {
        let window = self.next;
        if window == self.windows.windows.len() {
            return Ok(None);
        }
        self.next += 1;
        let (windows, schema) = (Arc::clone(&self.windows), Arc::clone(&self.windows.schema));
        let memory = AheadPool::over(Arc::clone(windows.context.memory_pool()));
        if !is_ahead {
            memory.begin_reading();
        }
        let pool = Arc::clone(&memory);
        let begin = move || windows.begin(window, pool);
        let rows = self.session.slots.threads().rows(schema, begin)?;
        Ok(Some(Begun { rows, window, memory, is_ahead }))
    }
}

fn is_short(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Whoever takes rows before they are wanted gets the first ones: those that follow may need memory that only a window
/// has that is read.
fn stopped_until_read(
    rows: SendableRecordBatchStream,
    memory: Arc<AheadPool>,
) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let rows = stream::unfold((rows, false), move |(mut rows, has_given)| {
        let memory = Arc::clone(&memory);
        async move {
            if has_given {
                memory.until_read().await;
            }
            rows.next().await.map(|batch| (batch, (rows, true)))
        }
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// Rows that are sorted, if the files that they are of are what they were when the query was planned: else rows
/// would be lost, or come twice.
fn unless_changed(
    mut rows: SendableRecordBatchStream,
    files: Vec<Input>,
    context: Arc<TaskContext>,
) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let checked = async move {
        // When there is one, all has been read.
        let first = rows.next().await.transpose()?;
        if let Some(change) = changes(files, &context).await?.first() {
            return exec_err!(
                "{change}: it was changed while the stream read it; begin the stream anew, under another name or \
                 when it has been closed"
            );
        }
        Ok::<_, DataFusionError>(stream::iter(first.map(Ok)).chain(rows))
    };
    Box::pin(RecordBatchStreamAdapter::new(schema, stream::once(checked).try_flatten()))
}

/// Parts of files in the order that a seed gives them, in windows of about so many bytes.
fn windows(inputs: &Inputs, seed: i64, window_bytes: u64) -> Vec<Vec<Piece>> {
    let part_bytes = (window_bytes / PARTS_IN_WINDOW).max(inputs.bytes() / PARTS_MAX).max(1);
    let mut parts: Vec<_> = inputs.in_parts(part_bytes).into_iter().enumerate().collect();
    parts.sort_by_cached_key(|(part, _)| place(seed, *part));
    let (mut windows, mut window, mut room) = (vec![], vec![], window_bytes);
    for (_, part) in parts {
        let bytes = part.iter().map(Piece::bytes).sum();
        if bytes > room && !window.is_empty() {
            windows.push(std::mem::take(&mut window));
            room = window_bytes;
        }
        room = room.saturating_sub(bytes);
        window.extend(part);
    }
    if !window.is_empty() {
        windows.push(window);
    }
    windows
}

/// By which parts are sorted: the same in each version.
fn place(seed: i64, part: usize) -> [u8; 32] {
    Sha256::digest([seed.to_le_bytes(), (part as u64).to_le_bytes()].concat()).into()
}

#[cfg(test)]
mod tests {
    use forebay_engine::write::resume::{InputFile, Reads};
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn inputs(sizes: &[u64], reads: Reads) -> Inputs {
        let file = |(at, size): (usize, &u64)| InputFile {
            input: Input {
                store: "file:///".to_owned(),
                path: at.to_string(),
                size: *size,
                version: String::new(),
            },
            scan: 0,
            reads,
        };
        Inputs { files: sizes.iter().enumerate().map(file).collect() }
    }

    fn bytes(window: &[Piece]) -> u64 {
        window.iter().map(Piece::bytes).sum()
    }

    #[test]
    fn a_window_has_parts_of_many_places() {
        let inputs = inputs(&[1024 * MIB], Reads::Bytes);
        let found = windows(&inputs, 7, 64 * MIB);
        assert_eq!(found.len(), 16);
        for window in &found {
            assert_eq!(window.len(), 16);
            assert!(window.iter().all(|piece| piece.bytes() == 4 * MIB));
            // Of 16 random places of 256 the outermost are at least this far from each other.
            let starts = || window.iter().map(|piece| piece.start);
            assert!(starts().max().unwrap() - starts().min().unwrap() > 512 * MIB);
        }
        assert_ne!(found, windows(&inputs, 8, 64 * MIB));
        assert_eq!(found, windows(&inputs, 7, 64 * MIB));
        assert_eq!(windows(&inputs, 7, u64::MAX).len(), 1);
        assert_eq!(windows(&inputs, 7, 1).len(), 1024);
    }

    /// Whoever trains on with the next version has the same windows.
    #[test]
    fn the_order_of_parts_is_fixed() {
        let files = inputs(&[1; 8], Reads::Whole);
        let order: Vec<usize> = windows(&files, 7, 1).concat().iter().map(|p| p.file).collect();
        assert_eq!(order, [6, 1, 0, 4, 2, 3, 7, 5]);
    }

    proptest! {
        #[test]
        fn each_byte_is_in_one_window(
            sizes in prop::collection::vec(0..5 * MIB, 0..9),
            reads in prop::sample::select(vec![Reads::Bytes, Reads::Whole, Reads::File]),
            window_bytes in 1..20 * MIB,
            seed in any::<i64>(),
        ) {
            let inputs = inputs(&sizes, reads);
            let found = windows(&inputs, seed, window_bytes);
            let largest = found.iter().flatten().map(Piece::bytes).max().unwrap_or(0);
            for window in &found {
                prop_assert!(!window.is_empty());
                prop_assert!(bytes(window) <= window_bytes.max(largest) + 2 * MIB);
            }
            let mut pieces = found.concat();
            pieces.sort_unstable();
            prop_assert_eq!(bytes(&pieces), inputs.bytes());
            for pair in pieces.windows(2) {
                let [one, next] = pair else { unreachable!() };
                prop_assert!(one.file < next.file || one.end <= next.start);
            }
        }
    }
}
