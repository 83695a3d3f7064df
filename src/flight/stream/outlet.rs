//! Where a stream's rows wait, and who takes them.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::compute::{BatchCoalescer, concat_batches};
use arrow::datatypes::SchemaRef;
use datafusion::execution::SendableRecordBatchStream;
use forebay_engine::weight;
use futures::StreamExt;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc};
use tonic::Status;
use uuid::Uuid;

use super::definition::{Definition, Mode};
use super::rounds::Rounds;
use super::window::Window;
use crate::flight::status;

/// Batches that wait for the readers of shards, beside those of the exchanges.
const BATCHES_WAITING_MAX: usize = 2;

/// Bytes of rows that are sorted by length together.
const WINDOW_BYTES_MAX: usize = 256 << 20;

type Receiver = Arc<Mutex<mpsc::Receiver<RecordBatch>>>;

/// What readers take from.
#[derive(Debug)]
pub(super) enum Outlet {
    /// Whoever asks first.
    Shards(Receiver),
    /// Each reader all of it.
    Shared(Arc<Window>),
    /// Each reader its own part of each round.
    Coordinated(Vec<Receiver>),
}

/// What the query writes to.
#[derive(Debug)]
pub(super) enum Inlet {
    Shards(mpsc::Sender<RecordBatch>),
    Shared(Arc<Window>),
    Coordinated(Vec<mpsc::Sender<RecordBatch>>),
}

/// Both ends for a stream.
pub(super) fn both_ends(definition: &Definition) -> (Inlet, Outlet) {
    let channel = |batches| {
        let (sender, receiver) = mpsc::channel(batches);
        (sender, Arc::new(Mutex::new(receiver)))
    };
    match definition.mode {
        Mode::Shards => {
            let (sender, receiver) = channel(BATCHES_WAITING_MAX);
            (Inlet::Shards(sender), Outlet::Shards(receiver))
        }
        Mode::Shared => {
            let window = Arc::new(Window::default());
            (Inlet::Shared(Arc::clone(&window)), Outlet::Shared(window))
        }
        Mode::Coordinated => {
            let readers = definition.readers.unwrap_or(1);
            let (senders, receivers) = (0..readers).map(|_| channel(1)).unzip();
            (Inlet::Coordinated(senders), Outlet::Coordinated(receivers))
        }
    }
}

/// One reader's end of a stream. Dropped, nobody waits for it any more.
#[derive(Debug)]
pub(super) enum Reader {
    Shard(Receiver),
    Shared(Arc<Window>, Uuid),
    Coordinated(OwnedMutexGuard<mpsc::Receiver<RecordBatch>>),
}

impl Outlet {
    /// A reader; `None` if that one is there already.
    pub(super) fn reader(&self, reader: Option<u32>) -> Option<Reader> {
        match self {
            Self::Shards(receiver) => Some(Reader::Shard(Arc::clone(receiver))),
            Self::Shared(window) => Some(Reader::Shared(Arc::clone(window), window.enter())),
            Self::Coordinated(receivers) => {
                let receiver = receivers.get(reader? as usize)?;
                Some(Reader::Coordinated(Arc::clone(receiver).try_lock_owned().ok()?))
            }
        }
    }
}

impl Reader {
    /// The next batch; `None` when there are no more. Nothing is lost if the wait is given up.
    pub(super) async fn next(&mut self) -> Option<RecordBatch> {
        match self {
            Self::Shard(receiver) => receiver.lock().await.recv().await,
            Self::Shared(window, id) => window.next(*id).await,
            Self::Coordinated(receiver) => receiver.recv().await,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Self::Shared(window, id) = self {
            window.leave(*id);
        }
    }
}

/// How rows are cut, and how long a round waits for the last of its readers.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) name: String,
    pub(super) batch_rows: Option<usize>,
    pub(super) rounds: Option<Rounds>,
    pub(super) patience: Duration,
}

impl Inlet {
    /// Writes all rows.
    ///
    /// # Errors
    /// Those of the query, and readers that do not come.
    pub(super) async fn write(
        &self,
        rows: SendableRecordBatchStream,
        cut: &Cut,
    ) -> Result<(), Status> {
        match (self, cut.rounds) {
            (Self::Coordinated(senders), Some(rounds)) => {
                write_rounds(senders, rows, rounds, cut).await
            }
            _ => self.write_batches(rows, cut.batch_rows).await,
        }
    }

    async fn write_batches(
        &self,
        mut rows: SendableRecordBatchStream,
        batch_rows: Option<usize>,
    ) -> Result<(), Status> {
        let mut coalescer = batch_rows.map(|count| BatchCoalescer::new(rows.schema(), count));
        while let Some(batch) = rows.next().await {
            let batch = batch.map_err(|error| status::of(&error))?;
            match &mut coalescer {
                None => self.send(batch).await,
                Some(coalescer) => {
                    coalescer.push_batch(batch).map_err(of_arrow)?;
                    while let Some(batch) = coalescer.next_completed_batch() {
                        self.send(batch).await;
                    }
                }
            }
        }
        if let Some(mut coalescer) = coalescer {
            coalescer.finish_buffered_batch().map_err(of_arrow)?;
            while let Some(batch) = coalescer.next_completed_batch() {
                self.send(batch).await;
            }
        }
        Ok(())
    }

    async fn send(&self, batch: RecordBatch) {
        if batch.num_rows() == 0 {
            return;
        }
        match self {
            // Its other end is the stream's, which outlives this one.
            Self::Shards(sender) => drop(sender.send(batch).await),
            Self::Shared(window) => window.push(batch).await,
            Self::Coordinated(_) => {}
        }
    }
}

/// However what writes comes to its end, readers learn of it.
impl Drop for Inlet {
    fn drop(&mut self) {
        if let Self::Shared(window) = self {
            window.end();
        }
    }
}

fn of_arrow(error: arrow::error::ArrowError) -> Status {
    Status::internal(error.to_string())
}

async fn write_rounds(
    senders: &[mpsc::Sender<RecordBatch>],
    mut rows: SendableRecordBatchStream,
    rounds: Rounds,
    cut: &Cut,
) -> Result<(), Status> {
    let mut window = Gathered::new(rows.schema());
    while let Some(batch) = rows.next().await {
        let mut batch = batch.map_err(|error| status::of(&error))?;
        while batch.num_rows() > 0 {
            let count = batch.num_rows().min(rounds.window_rows() - window.rows);
            window.add(batch.slice(0, count));
            batch = batch.slice(count, batch.num_rows() - count);
            if window.rows == rounds.window_rows() || window.bytes >= WINDOW_BYTES_MAX {
                send_rounds(senders, &window.take()?, rounds, cut).await?;
            }
        }
    }
    send_rounds(senders, &window.take()?, rounds, cut).await
}

async fn send_rounds(
    senders: &[mpsc::Sender<RecordBatch>],
    window: &RecordBatch,
    rounds: Rounds,
    cut: &Cut,
) -> Result<(), Status> {
    for round in rounds.of(window).map_err(|error| status::of(&error))? {
        for (reader, (sender, batch)) in senders.iter().zip(round).enumerate() {
            let sent = tokio::time::timeout(cut.patience, sender.send(batch)).await;
            if sent.is_err() {
                return Err(Status::deadline_exceeded(format!(
                    "stream '{}': reader {reader} has asked for nothing for {} s, and the others \
                     wait for it",
                    cut.name,
                    cut.patience.as_secs()
                )));
            }
        }
    }
    Ok(())
}

/// Rows that become one batch.
struct Gathered {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

impl Gathered {
    fn new(schema: SchemaRef) -> Self {
        Self { schema, batches: vec![], rows: 0, bytes: 0 }
    }

    fn add(&mut self, batch: RecordBatch) {
        self.rows += batch.num_rows();
        self.bytes += weight::bytes(&batch);
        self.batches.push(batch);
    }

    fn take(&mut self) -> Result<RecordBatch, Status> {
        let batches = std::mem::take(&mut self.batches);
        (self.rows, self.bytes) = (0, 0);
        concat_batches(&self.schema, &batches).map_err(of_arrow)
    }
}
