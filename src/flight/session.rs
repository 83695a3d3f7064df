//! In what the statements of one client are planned and run.

use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::{LogicalPlan, SetVariable, Statement};
use forebay_planner::sql::StatementText;
use forebay_planner::sql::execute::execute_plan;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use uuid::Uuid;

use super::limits::Limits;
use super::opaque::Opaque;
use super::options;
use super::rights::{Roots, check_plan};
use super::slots::{Share, Slot};
use super::users::Identity;
use crate::ForebayContext;

/// Who a client is, its options and temporary models, and what it may take.
pub(super) struct Session {
    pub(super) id: Uuid,
    pub(super) who: Identity,
    pub(super) context: Opaque<ForebayContext>,
    pub(super) roots: Roots,
    pub(super) limits: Limits,
    /// Canceled when the session ends, and with it all that runs for it.
    pub(super) closed: CancellationToken,
    /// Queries that it may run.
    pub(super) slots: Share,
    used: Mutex<Instant>,
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
            used: Mutex::new(Instant::now()),
        }
    }

    /// The right to run a query for as long as it is held.
    pub(super) fn slot(&self) -> Result<Slot, Status> {
        self.slots.take()
    }

    /// Begins the time anew after which it ends unused.
    pub(super) fn touch(&self) {
        *self.used.lock() = Instant::now();
    }

    /// Whether nothing runs, and nothing was asked for so long.
    pub(super) fn is_idle(&self, time: Duration) -> bool {
        self.slots.is_free() && self.used.lock().elapsed() >= time
    }

    pub(super) fn last_used(&self) -> Instant {
        *self.used.lock()
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
