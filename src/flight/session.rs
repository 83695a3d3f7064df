//! What the server remembers of one client.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::{LogicalPlan, SetVariable, Statement};
use forebay_planner::sql::StatementText;
use forebay_planner::sql::execute::execute_plan;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use uuid::Uuid;

use super::Limits;
use super::opaque::Opaque;
use super::options;
use super::query::Query;
use super::rights::{Roots, check_plan};
use super::slots::{Share, Slot};
use super::statement::Prepared;
use super::users::Identity;
use crate::ForebayContext;

/// One client: who it is, its options and temporary models, its statements and queries.
pub(super) struct Session {
    pub(super) id: Uuid,
    pub(super) who: Identity,
    pub(super) context: Opaque<ForebayContext>,
    pub(super) roots: Roots,
    pub(super) limits: Limits,
    /// Ends its queries.
    pub(super) closed: CancellationToken,
    /// Queries that it may run.
    pub(super) slots: Share,
    state: Mutex<State>,
}

struct State {
    used: Instant,
    prepared: HashMap<Uuid, (Arc<Prepared>, Instant)>,
    queries: HashMap<Uuid, (Arc<Query>, Instant)>,
}

impl Session {
    pub(super) fn new(
        who: Identity,
        context: ForebayContext,
        roots: Roots,
        limits: Limits,
        slots: Share,
    ) -> Self {
        Self {
            id: Uuid::new_v4(),
            who,
            context: Opaque::new(context),
            roots,
            slots,
            limits,
            closed: CancellationToken::new(),
            state: Mutex::new(State {
                used: Instant::now(),
                prepared: HashMap::new(),
                queries: HashMap::new(),
            }),
        }
    }

    /// The right to run a query for as long as it is held.
    pub(super) fn slot(&self) -> Result<Slot, Status> {
        self.slots.take()
    }

    pub(super) fn touch(&self) {
        self.state.lock().used = Instant::now();
    }

    /// Whether nothing runs, and nothing was asked for so long.
    pub(super) fn is_idle(&self, time: Duration) -> bool {
        self.slots.is_free() && self.state.lock().used.elapsed() >= time
    }

    pub(super) fn last_used(&self) -> Instant {
        self.state.lock().used
    }

    /// Keeps a prepared statement under the name that is given back.
    pub(super) fn keep_prepared(&self, prepared: Prepared) -> Result<Uuid, Status> {
        let mut state = self.state.lock();
        if state.prepared.len() >= self.limits.statements_max {
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
        if state.queries.len() >= self.limits.statements_max {
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

    /// Those that are being read at this moment.
    pub(super) fn queries_read(&self) -> Vec<Arc<Query>> {
        let state = self.state.lock();
        let read = state.queries.values().filter(|(query, _)| query.is_read());
        read.map(|(query, _)| Arc::clone(query)).collect()
    }

    pub(super) fn forget_query(&self, id: Uuid) -> Option<Arc<Query>> {
        self.state.lock().queries.remove(&id).map(|(query, _)| query)
    }

    /// Drops what nobody has asked for since; what has begun and nobody reads holds a slot.
    pub(super) fn sweep(&self) {
        let Limits { statement_timeout, read_timeout, .. } = self.limits;
        let limit = |query: &Query| match query.has_begun() {
            true => statement_timeout.min(read_timeout),
            false => statement_timeout,
        };
        let mut state = self.state.lock();
        state.queries.retain(|_, (query, used)| query.is_read() || used.elapsed() < limit(query));
        state.prepared.retain(|_, (_, used)| used.elapsed() < statement_timeout);
    }

    /// Sets an option, as `SET` would.
    pub(super) async fn set(&self, key: &str, value: &str) -> Result<(), DataFusionError> {
        let set = SetVariable { variable: key.to_owned(), value: value.to_owned() };
        let plan = LogicalPlan::Statement(Statement::SetVariable(set));
        check_plan(&self.who, &plan)?;
        if self.limits.is_shared {
            options::check(&plan)?;
        }
        let text = StatementText(format!("SET {key}"));
        execute_plan(self.context.session(), plan, text).await.map(|_| ())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}
