//! `forebay.stream`: the rows of one query, computed once, for many training clients.
//!
//! A reader asks for the flight `["forebay.stream", JSON]`. The first one makes the stream of that
//! name, those that follow join it, and each reads its part with `DoGet`. The idea is that of
//! tf.data service (Audibert et al., 2023).
//!
//! - `definition`: what readers say; `outlet`: who takes which rows; `shuffled`: in which order;
//!   `ahead`: what is made before it is read
//! - `window`: rows that all readers get; `rounds`: rows of similar length

mod ahead;
mod definition;
mod outlet;
mod rounds;
mod shuffled;
mod window;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_flight::error::FlightError;
use datafusion::common::plan_err;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::execute_stream;
use futures::TryStreamExt;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use tonic::Status;
use uuid::Uuid;

use super::access::users::Identity;
use super::protocol::delivery::{Messages, Patience, deliver};
use super::protocol::encode::encode;
use super::statements::plan::{Execution, Kind};
use super::statements::query::conforming;
use super::statements::session::Session;
use super::statements::statement::Prepared;
use super::status;
pub(super) use definition::Definition;
use outlet::{Cut, Inlet, Outlet, Reader, both_ends};
use rounds::Rounds;
use shuffled::{Windows, shuffled};

/// The first part of the path of such a flight.
pub(super) const PATH: &str = "forebay.stream";

/// Set before the last reader learns that there is nothing more.
type Ended = Arc<OnceLock<Result<(), Status>>>;

/// All streams, by who reads them, their name, and the epoch.
#[derive(Default)]
pub(super) struct Streams {
    open: Mutex<HashMap<Key, Arc<Stream>>>,
}

type Key = (String, String, u64);

impl Streams {
    /// The stream of this definition, if it was made already.
    ///
    /// # Errors
    /// If the one of this name is another one.
    pub(super) fn find(
        &self,
        who: &Identity,
        definition: &Definition,
    ) -> Result<Option<Arc<Stream>>, Status> {
        find(&self.open.lock(), who, definition)
    }

    /// Makes a stream, unless another reader did meanwhile.
    ///
    /// # Errors
    /// As [`Self::find`], and if there are too many.
    pub(super) fn add(&self, stream: Stream) -> Result<Arc<Stream>, Status> {
        let (who, definition) = (stream.session.who.clone(), stream.definition.clone());
        let mut open = self.open.lock();
        if let Some(found) = find(&open, &who, &definition)? {
            return Ok(found);
        }
        if let Some(most) = stream.session.slots.streams_max() {
            let owner = format!("'{}'", who.name);
            make_room(&mut open, most, &owner, |key| key.0 == who.name)?;
        }
        make_room(&mut open, stream.session.limits.queries_max, "this server", |_| true)?;
        tracing::info!("stream '{}' of '{}' is made", definition.name, who.name);
        let stream = Arc::new(stream);
        open.insert(key(&who, &definition), Arc::clone(&stream));
        Ok(stream)
    }

    pub(super) fn by_id(&self, id: Uuid, who: &Identity) -> Option<Arc<Stream>> {
        let open = self.open.lock();
        open.values().find(|stream| stream.id == id && stream.session.who == *who).cloned()
    }

    /// Ends a stream in all its epochs. Says whether there was one.
    pub(super) fn close(&self, who: &Identity, name: &str) -> bool {
        let is_it = |key: &Key| key.0 == who.name && key.1 == name;
        self.end(|key, _| is_it(key), "the stream was closed")
    }

    /// Ends streams that nobody has read for so long, and those of whom nobody knows.
    pub(super) fn sweep(&self, time: Duration, knows: impl Fn(&Identity) -> bool) {
        self.end(|_, stream| stream.is_idle(time), "nobody has read the stream for too long");
        self.end(|_, stream| !knows(&stream.session.who), "its user was removed or changed");
    }

    fn end(&self, which: impl Fn(&Key, &Stream) -> bool, why: &str) -> bool {
        let ended: Vec<_> = self.open.lock().extract_if(|key, stream| which(key, stream)).collect();
        for (_, stream) in &ended {
            stream.end(Status::cancelled(why));
        }
        !ended.is_empty()
    }
}

fn find(
    open: &HashMap<Key, Arc<Stream>>,
    who: &Identity,
    definition: &Definition,
) -> Result<Option<Arc<Stream>>, Status> {
    match open.get(&key(who, definition)) {
        Some(stream) if stream.definition != definition.common() => {
            Err(Status::already_exists(format!(
                "the stream '{}' is there already for epoch {}, with another definition; all \
                 readers give the same one",
                definition.name, definition.epoch
            )))
        }
        found => Ok(found.cloned()),
    }
}

/// Forgets a stream that is over if there are so many of these.
fn make_room(
    open: &mut HashMap<Key, Arc<Stream>>,
    most: usize,
    owner: &str,
    is_one: impl Fn(&Key) -> bool,
) -> Result<(), Status> {
    let these = || open.iter().filter(|(key, _)| is_one(key));
    if these().count() < most {
        return Ok(());
    }
    // Short epochs are many.
    let over = these().filter(|(_, stream)| stream.is_over());
    let oldest = over.min_by_key(|(_, stream)| stream.used()).map(|(key, _)| key.clone());
    let Some(oldest) = oldest else {
        return Err(Status::resource_exhausted(format!(
            "{owner} has {most} streams, as many as it may; close some"
        )));
    };
    open.remove(&oldest);
    Ok(())
}

fn key(who: &Identity, definition: &Definition) -> Key {
    (who.name.clone(), definition.name.clone(), definition.epoch)
}

/// One query, for many readers.
pub(super) struct Stream {
    pub(super) id: Uuid,
    definition: Definition,
    session: Arc<Session>,
    prepared: Arc<Prepared>,
    /// If rows are shuffled window by window.
    windows: Option<Arc<Windows>>,
    cut: Cut,
    outlet: Outlet,
    state: Mutex<State>,
    /// How it ended; nothing while it runs, or if what ran it broke off.
    ended: Ended,
}

struct State {
    /// Until it begins.
    inlet: Option<Inlet>,
    producing: Option<SpawnedTask<()>>,
    joined: u32,
    reading: u32,
    used: Instant,
}

impl Stream {
    /// Plans a stream; runs nothing.
    ///
    /// # Errors
    /// Those of the query, and of options.
    pub(super) async fn new(session: Session, definition: &Definition) -> Result<Self, Status> {
        for (option, value) in &definition.options {
            let set = session.set(option, value).await;
            set.map_err(|error| status::of_definition(&error))?;
        }
        let session = Arc::new(session);
        let prepared = Arc::new(Prepared::new(&session, &definition.query).await?);
        let rounds = check(definition, &prepared).map_err(|error| status::of(&error))?;
        let windows = match definition.seed().zip(definition.shuffle_window) {
            Some((seed, bytes)) => {
                let windows = Windows::new(&session, &prepared, seed, bytes).await;
                Some(Arc::new(windows.map_err(|error| status::of_definition(&error))?))
            }
            None => None,
        };
        let (inlet, outlet) = both_ends(definition);
        let cut = Cut {
            name: definition.name.clone(),
            batch_rows: definition.batch_rows,
            rounds,
            patience: session.limits.statement_timeout,
        };
        let state = State {
            inlet: Some(inlet),
            producing: None,
            joined: 0,
            reading: 0,
            used: Instant::now(),
        };
        Ok(Self {
            id: Uuid::new_v4(),
            definition: definition.common(),
            session,
            prepared,
            windows,
            cut,
            outlet,
            state: Mutex::new(state),
            ended: Arc::default(),
        })
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.prepared.schema
    }

    /// What one reader gets, as Flight sends it.
    ///
    /// # Errors
    /// If that reader is there already.
    pub(super) fn read(self: &Arc<Self>, reader: Option<u32>) -> Result<Messages, Status> {
        let name = &self.definition.name;
        let taken = || {
            let reader = reader.unwrap_or_default();
            let text = format!("stream '{name}': another connection is reader {reader} already");
            Status::already_exists(text)
        };
        let rows = self.outlet.reader(reader).ok_or_else(taken)?;
        self.join()?;
        let reading = Reading { stream: Arc::clone(self), rows };
        let batches = stream::try_unfold(reading, |mut reading| async move {
            let batch = reading.next().await?;
            Ok::<_, FlightError>(batch.map(|batch| (batch, reading)))
        });
        let schema = Arc::clone(self.schema());
        let messages = encode(schema, batches).map_err(status::of_flight).boxed();
        let limit = self.session.limits.session_timeout;
        let over = Status::deadline_exceeded(format!(
            "stream '{name}': this reader has taken nothing for {} s (--session-timeout of the \
             server)",
            limit.as_secs()
        ));
        Ok(deliver(messages, self.session.closed.clone(), Patience { limit, over }))
    }

    /// Counts a reader, and begins when there are enough.
    fn join(self: &Arc<Self>) -> Result<(), Status> {
        let mut state = self.state.lock();
        let is_enough = state.joined + 1 >= self.definition.readers.unwrap_or(1);
        if is_enough && state.inlet.is_some() {
            let slot = self.session.slot()?;
            state.producing = state.inlet.take().map(|inlet| {
                let (session, prepared) = (Arc::clone(&self.session), Arc::clone(&self.prepared));
                let (seed, windows) = (self.definition.seed(), self.windows.clone());
                let cut = self.cut.clone();
                let ended = Arc::clone(&self.ended);
                // It does not hold the stream, whose end is to end it.
                SpawnedTask::spawn(async move {
                    let _slot = slot;
                    let rows = rows(&session, &prepared, seed, windows).await;
                    let written = match rows.map_err(|error| status::of(&error)) {
                        Ok(rows) => inlet.write(rows, &cut).await,
                        Err(status) => Err(status),
                    };
                    ended.set(written).ok();
                    // Behind the line above: whoever waits looks there.
                    drop(inlet);
                })
            });
        }
        state.joined += 1;
        state.reading += 1;
        Ok(())
    }

    /// Whether its query has ended, and nobody reads it.
    fn is_over(&self) -> bool {
        self.ended.get().is_some() && self.state.lock().reading == 0
    }

    fn used(&self) -> Instant {
        self.state.lock().used
    }

    fn is_idle(&self, time: Duration) -> bool {
        let state = self.state.lock();
        state.reading == 0 && state.used.elapsed() >= time
    }

    fn end(&self, why: Status) {
        self.ended.set(Err(why)).ok();
        let mut state = self.state.lock();
        // With them the other end of what readers wait at.
        state.producing.take();
        state.inlet.take();
    }
}

/// Whether a query can be streamed as it is asked for.
fn check(definition: &Definition, prepared: &Prepared) -> Result<Option<Rounds>> {
    let is_query = prepared.kind == Kind::Query && prepared.job_statement().is_none();
    if !is_query || !prepared.parameters.fields().is_empty() {
        return plan_err!("a stream reads a query without parameters");
    }
    let Some(length) = &definition.length else { return Ok(None) };
    let Ok(column) = prepared.schema.index_of(length) else {
        let names: Vec<_> = prepared.schema.fields().iter().map(|field| field.name()).collect();
        return plan_err!("length: the query has no column '{length}'; it has {names:?}");
    };
    Rounds::check(length, prepared.schema.field(column).data_type())?;
    Ok(Some(Rounds {
        column,
        readers: definition.readers.unwrap_or(1) as usize,
        batch_rows: definition.batch_rows.unwrap_or(1),
    }))
}

/// Runs the query.
async fn rows(
    session: &Arc<Session>,
    prepared: &Prepared,
    seed: Option<i64>,
    windows: Option<Arc<Windows>>,
) -> Result<SendableRecordBatchStream> {
    if let Some(windows) = windows {
        return Ok(conforming(windows.rows(session), &prepared.schema));
    }
    let change = move |session: &Session, rows| match seed {
        Some(seed) => shuffled(rows, session, seed),
        None => Ok(rows),
    };
    let Execution { plan, context } = prepared.execute_changed(session, &[], change).await?;
    let rows = session.slots.threads().rows(plan.schema(), || execute_stream(plan, context))?;
    Ok(conforming(rows, &prepared.schema))
}

/// A reader at work.
struct Reading {
    stream: Arc<Stream>,
    rows: Reader,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<RecordBatch>, FlightError> {
        match self.rows.next().await {
            Some(batch) => Ok(Some(batch)),
            None => match self.stream.ended.get() {
                Some(Ok(())) => Ok(None),
                Some(Err(status)) => Err(FlightError::Tonic(Box::new(status.clone()))),
                None => Err(FlightError::Tonic(Box::new(Status::internal(
                    "the query of this stream broke off; see the server's log",
                )))),
            },
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut state = self.stream.state.lock();
        state.reading -= 1;
        state.used = Instant::now();
    }
}
