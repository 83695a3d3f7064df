//! One execution of a statement: when it begins, who reads it, and how it ends.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_flight::FlightData;
use arrow_flight::error::FlightError;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::{RecordBatchReceiverStream, RecordBatchStreamAdapter};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use forebay_engine::weight;
use futures::stream;
use futures::{Stream, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::plan::{Execution, Kind, changed};
use super::session::Session;
use super::statement::{Bound, Prepared};
use super::{on_jobs, progress};
use crate::flight::jobs::Job;
use crate::flight::limits::slots::Slot;
use crate::flight::protocol::delivery::{Messages, Patience, deliver};
use crate::flight::protocol::encode::encode;
use crate::flight::status;

/// Batches that wait for a client that polls, beside those of the exchanges.
const BATCHES_WAITING_MAX: usize = 2;

/// A query that is to be read, or is being read.
pub(in crate::flight) struct Query {
    prepared: Arc<Prepared>,
    values: Arc<Bound>,
    schema: SchemaRef,
    /// What an update gave, which has run.
    done: Option<Vec<RecordBatch>>,
    canceled: CancellationToken,
    /// What a client that polls has begun, and nobody has read yet.
    begun: Mutex<Option<Begun>>,
    plan: Mutex<Option<Arc<dyn ExecutionPlan>>>,
    /// The job that it waits for, and does nothing else.
    awaited: Option<Arc<Job>>,
    was_read: AtomicBool,
    is_read: Arc<AtomicBool>,
}

struct Begun {
    rows: SendableRecordBatchStream,
    /// Whether there is something to read, or the end.
    has_rows: watch::Receiver<bool>,
    slot: Slot,
}

impl Query {
    /// To be run with the values that are bound now. What changes something runs at once: many
    /// clients do not read what it gives.
    pub(in crate::flight) async fn new(
        session: &Arc<Session>,
        prepared: Arc<Prepared>,
    ) -> Result<Arc<Self>, Status> {
        session.slots.check_open()?;
        let awaited = on_jobs::awaited(session, &prepared)?;
        let made = async {
            let values = prepared.values()?;
            let first = values.first().map_or(&[][..], Vec::as_slice);
            let schema = prepared.schema_with(session, first).await?;
            Ok::<_, DataFusionError>((values, schema))
        };
        let (values, schema) = made.await.map_err(|error| status::of(&error))?;
        let done = match prepared.kind {
            Kind::Query => None,
            Kind::Definition | Kind::Update | Kind::Act => Some(update(session, &prepared).await?),
        };
        Ok(Arc::new(Self {
            prepared,
            values,
            schema,
            done,
            canceled: session.closed.child_token(),
            begun: Mutex::default(),
            plan: Mutex::default(),
            awaited,
            was_read: AtomicBool::new(false),
            is_read: Arc::default(),
        }))
    }

    pub(in crate::flight) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Ends it, whoever reads it.
    pub(in crate::flight) fn cancel(&self) {
        self.canceled.cancel();
        self.begun.lock().take();
    }

    /// Whether a client that polls has begun it, and nobody reads it.
    pub(in crate::flight) fn has_begun(&self) -> bool {
        self.begun.lock().is_some()
    }

    /// Whether a client reads it at this moment.
    pub(in crate::flight) fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Relaxed)
    }

    /// How much of it is done, from 0 to 1, if that can be known.
    pub(in crate::flight) fn progress(&self) -> Option<f64> {
        let plan = match &self.awaited {
            Some(job) => job.plan(),
            None => self.plan.lock().clone(),
        };
        plan.as_ref().and_then(progress::fraction)
    }

    /// Begins to run it, if it has not begun, and waits for rows, or for so long. Says whether
    /// there is something to read.
    pub(in crate::flight) async fn begin(
        self: &Arc<Self>,
        session: &Arc<Session>,
    ) -> Result<bool, Status> {
        let waiting = self.begun.lock().as_ref().map(|begun| begun.has_rows.clone());
        let mut has_rows = match waiting {
            Some(has_rows) => has_rows,
            None if self.was_read.load(Ordering::Relaxed) => return Ok(true),
            None => self.begin_now(session).await?,
        };
        let came = tokio::time::timeout(POLL_LIMIT, has_rows.wait_for(|has_rows| *has_rows)).await;
        Ok(came.is_ok())
    }

    async fn begin_now(
        self: &Arc<Self>,
        session: &Arc<Session>,
    ) -> Result<watch::Receiver<bool>, Status> {
        let slot = session.slot()?;
        let mut rows = self.rows(session).await.map_err(|error| status::of(&error))?;
        let (came, has_rows) = watch::channel(false);
        let mut waiting = RecordBatchReceiverStream::builder(rows.schema(), BATCHES_WAITING_MAX);
        let sender = waiting.tx();
        waiting.spawn(async move {
            while let Some(batch) = rows.next().await {
                let is_last = batch.is_err();
                if sender.send(batch).await.is_err() || is_last {
                    break;
                }
                came.send_replace(true);
            }
            came.send_replace(true);
            Ok(())
        });
        let begun = Begun { rows: waiting.build(), has_rows: has_rows.clone(), slot };
        *self.begun.lock() = Some(begun);
        Ok(has_rows)
    }

    /// Its rows, as Flight sends them. Dropping the stream ends the query; `when_read` is called after
    /// the last row.
    pub(in crate::flight) async fn read(
        self: &Arc<Self>,
        session: &Arc<Session>,
        when_read: impl FnOnce() + Send + 'static,
    ) -> Result<Messages, Status> {
        self.was_read.store(true, Ordering::Relaxed);
        let begun = self.begun.lock().take();
        let (rows, slot) = match begun {
            Some(begun) => (begun.rows, Some(begun.slot)),
            None => {
                // What has run already needs none.
                let slot = self.done.is_none().then(|| session.slot()).transpose()?;
                let rows = self.rows(session).await.map_err(|error| status::of(&error))?;
                (rows, slot)
            }
        };
        let schema = rows.schema();
        let most = session.limits.result_bytes_max;
        let rows = within(rows, most).map_err(|error| FlightError::ExternalError(Box::new(error)));
        let encoded = encode(schema, rows);
        let rows = Rows {
            messages: encoded.map_err(status::of_flight).boxed(),
            is_read: Arc::clone(&self.is_read),
            session: Arc::clone(session),
            when_read: Some(Box::new(when_read)),
            _slot: slot,
        };
        self.is_read.store(true, Ordering::Relaxed);
        let limit = session.limits.read_timeout;
        let over = Status::deadline_exceeded(format!(
            "nothing of this result was read for {} s, so its query was ended (--read-timeout of \
             the server)",
            limit.as_secs()
        ));
        Ok(deliver(rows.boxed(), self.canceled.clone(), Patience { limit, over }))
    }

    /// The rows of its execution, or of one execution after the other if several rows of values are
    /// bound.
    async fn rows(self: &Arc<Self>, session: &Arc<Session>) -> Result<SendableRecordBatchStream> {
        if let Some(done) = self.done.clone() {
            let rows = stream::iter(done).map(Ok);
            return Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows)));
        }
        if let [values] = self.values.as_slice() {
            return self.rows_with(session, values).await;
        }
        let (query, session, values) =
            (Arc::clone(self), Arc::clone(session), Arc::clone(&self.values));
        let one = move |at: usize| {
            let (query, session, values) =
                (Arc::clone(&query), Arc::clone(&session), Arc::clone(&values));
            async move { query.rows_with(&session, &values[at]).await }
        };
        let rows = stream::iter(0..self.values.len()).then(one).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(self.schema()), rows)))
    }

    async fn rows_with(
        &self,
        session: &Arc<Session>,
        values: &[ScalarValue],
    ) -> Result<SendableRecordBatchStream> {
        let execution = on_jobs::execution(session, &self.prepared, values).await?;
        let Execution { plan, context } = execution;
        *self.plan.lock() = Some(Arc::clone(&plan));
        let rows = session.slots.threads().rows(plan.schema(), || execute_stream(plan, context))?;
        Ok(conforming(rows, self.schema()))
    }
}

/// Rows as clients were told that they are: they compare, down to what may be null.
pub(in crate::flight) fn conforming(
    rows: SendableRecordBatchStream,
    schema: &SchemaRef,
) -> SendableRecordBatchStream {
    if rows.schema() == *schema {
        return rows;
    }
    let told = Arc::clone(schema);
    let rows = rows.map(move |batch| {
        let columns = batch?.columns().to_vec();
        RecordBatch::try_new(Arc::clone(&told), columns)
            .map_err(|error| internal_datafusion_err!("rows are not as they were planned: {error}"))
    });
    Box::pin(RecordBatchStreamAdapter::new(Arc::clone(schema), rows))
}

/// For how long a poll waits for rows.
const POLL_LIMIT: Duration = Duration::from_millis(500);

/// Rows, until they are more bytes than a client may have.
fn within(
    rows: SendableRecordBatchStream,
    most: Option<u64>,
) -> impl Stream<Item = Result<RecordBatch>> + Send {
    let mut bytes = 0;
    rows.map(move |batch| {
        let batch = batch?;
        bytes += weight::bytes(&batch) as u64;
        match most.filter(|most| bytes > *most) {
            Some(most) => Err(DataFusionError::ResourcesExhausted(format!(
                "the result has more than {most} bytes, the most that this server sends; ask for \
                 less, or write it with COPY"
            ))),
            None => Ok(batch),
        }
    })
}

/// Rows that are read, until they are dropped.
struct Rows {
    messages: Messages,
    is_read: Arc<AtomicBool>,
    session: Arc<Session>,
    when_read: Option<Box<dyn FnOnce() + Send>>,
    _slot: Option<Slot>,
}

impl Stream for Rows {
    type Item = Result<FlightData, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.messages.poll_next_unpin(context);
        if matches!(next, Poll::Ready(None))
            && let Some(when_read) = self.when_read.take()
        {
            when_read();
        }
        next
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.is_read.store(false, Ordering::Relaxed);
        self.session.touch();
    }
}

/// Runs an update with each row of values; gives back what it says.
async fn update(session: &Arc<Session>, prepared: &Prepared) -> Result<Vec<RecordBatch>, Status> {
    let _slot = session.slot()?;
    let work = async {
        let mut said = vec![];
        for values in prepared.values()?.iter() {
            let execution = on_jobs::execution(session, prepared, values).await?;
            let Execution { plan, context } = execution;
            let write = async { execute_stream(plan, context)?.try_collect::<Vec<_>>().await };
            said.extend(session.slots.threads().run(write).await?);
        }
        Ok::<_, DataFusionError>(said)
    };
    tokio::select! {
        () = session.closed.cancelled() => Err(Status::cancelled("the session has ended")),
        said = work => said.map_err(|error| prepared.status(&error)),
    }
}

/// The same; gives back how many rows it changed in all.
pub(in crate::flight) async fn count_changed(
    session: &Arc<Session>,
    prepared: &Prepared,
) -> Result<i64, Status> {
    let said = update(session, prepared).await?;
    let changed: u64 = said.iter().map(changed).sum();
    Ok(i64::try_from(changed).unwrap_or(i64::MAX))
}
