//! What the server remembers of one client.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tonic::Status;
use uuid::Uuid;

use crate::flight::limits::Limits;
use crate::flight::statements::query::Query;
use crate::flight::statements::session::Session;
use crate::flight::statements::statement::Prepared;

/// One client: its session, and the statements and queries that it refers to.
pub(super) struct Client {
    pub(super) session: Arc<Session>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    prepared: HashMap<Uuid, (Arc<Prepared>, Instant)>,
    queries: HashMap<Uuid, (Arc<Query>, Instant)>,
}

impl Client {
    pub(super) fn new(session: Session) -> Self {
        Self { session: Arc::new(session), state: Mutex::default() }
    }

    /// Keeps a prepared statement under the name that is given back.
    pub(super) fn keep_prepared(&self, prepared: Prepared) -> Result<Uuid, Status> {
        let mut state = self.state.lock();
        if state.prepared.len() >= self.session.limits.statements_max {
            return Err(Status::resource_exhausted(format!(
                "this client holds {} prepared statements, as many as it may; close some",
                state.prepared.len()
            )));
        }
        let id = Uuid::new_v4();
        state.prepared.insert(id, (Arc::new(prepared), Instant::now()));
        Ok(id)
    }

    pub(super) fn prepared(&self, handle: &[u8]) -> Result<Arc<Prepared>, Status> {
        let mut state = self.state.lock();
        let found = Uuid::from_slice(handle).ok().and_then(|id| state.prepared.get_mut(&id));
        let (prepared, used) = found.ok_or_else(|| {
            Status::not_found("there is no such prepared statement in this session, or no more")
        })?;
        *used = Instant::now();
        Ok(Arc::clone(prepared))
    }

    pub(super) fn close_prepared(&self, handle: &[u8]) {
        if let Ok(id) = Uuid::from_slice(handle) {
            self.state.lock().prepared.remove(&id);
        }
    }

    /// Keeps a query under the name that is given back. The oldest that nobody reads goes when there
    /// are too many.
    pub(super) fn keep_query(&self, query: Arc<Query>) -> Uuid {
        let mut state = self.state.lock();
        if state.queries.len() >= self.session.limits.statements_max {
            let waiting = state.queries.iter().filter(|(_, (query, _))| !query.is_read());
            let oldest = waiting.min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                state.queries.remove(&oldest);
            }
        }
        let id = Uuid::new_v4();
        state.queries.insert(id, (query, Instant::now()));
        id
    }

    pub(super) fn query(&self, id: Uuid) -> Option<Arc<Query>> {
        let mut state = self.state.lock();
        let (query, used) = state.queries.get_mut(&id)?;
        *used = Instant::now();
        Some(Arc::clone(query))
    }

    /// How much of the query is done that is being read at this moment, from 0 to 1: nothing if nobody
    /// knows, or if several are read or none.
    pub(super) fn progress(&self) -> Option<f64> {
        match self.queries_read().as_slice() {
            [query] => query.progress(),
            _ => None,
        }
    }

    fn queries_read(&self) -> Vec<Arc<Query>> {
        let state = self.state.lock();
        let read = state.queries.values().filter(|(query, _)| query.is_read());
        read.map(|(query, _)| Arc::clone(query)).collect()
    }

    pub(super) fn forget_query(&self, id: Uuid) -> Option<Arc<Query>> {
        self.state.lock().queries.remove(&id).map(|(query, _)| query)
    }

    /// Drops what nobody has asked for since; what has begun and nobody reads holds a slot.
    pub(super) fn sweep(&self) {
        let Limits { statement_timeout, read_timeout, .. } = self.session.limits;
        let limit = |query: &Query| {
            if query.has_begun() { statement_timeout.min(read_timeout) } else { statement_timeout }
        };
        let mut state = self.state.lock();
        state.queries.retain(|_, (query, used)| query.is_read() || used.elapsed() < limit(query));
        state.prepared.retain(|_, (_, used)| used.elapsed() < statement_timeout);
    }
}
