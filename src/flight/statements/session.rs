//! In what the statements of one client are planned and run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{LogicalPlan, SetVariable, Statement};
use forebay_engine::write::WriteId;
use forebay_planner::ForebayConfig;
use forebay_planner::sql::StatementText;
use forebay_planner::sql::execute::execute_plan;
use forebay_scheduler::GivenId;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use uuid::Uuid;

use crate::ForebayContext;
use crate::flight::access::rights::{Roots, check_plan, confine};
use crate::flight::access::users::Identity;
use crate::flight::jobs::registry::Jobs;
use crate::flight::jobs::table::JobResult;
use crate::flight::limits::slots::{Share, Slot};
use crate::flight::limits::{Limits, options};
use crate::flight::opaque::Opaque;

/// Who a client is, its options and temporary models, and what it may take.
pub(in crate::flight) struct Session {
    pub(in crate::flight) id: Uuid,
    pub(in crate::flight) who: Identity,
    pub(in crate::flight) context: Opaque<ForebayContext>,
    pub(in crate::flight) roots: Roots,
    pub(in crate::flight) limits: Limits,
    /// Canceled when the session ends, and with it all that runs for it.
    pub(in crate::flight) closed: CancellationToken,
    /// Queries that it may run.
    pub(in crate::flight) slots: Share,
    /// Those of the server that run without a session of a client.
    pub(in crate::flight) jobs: Arc<Jobs>,
    used: Mutex<Instant>,
}

impl Session {
    /// A session of this client, with what its rights leave of the functions in `context`.
    ///
    /// # Errors
    /// None that a user could cause.
    pub(in crate::flight) fn new(
        who: Identity,
        context: ForebayContext,
        roots: Roots,
        limits: Limits,
        slots: Share,
        jobs: Arc<Jobs>,
    ) -> Result<Self> {
        confine(context.session(), &who, &roots)?;
        let job_result = JobResult::new(Arc::clone(&jobs), who.clone());
        context.session().register_udtf(JobResult::NAME, Arc::new(job_result));
        Ok(Self {
            id: Uuid::new_v4(),
            who,
            context: Opaque::new(context),
            roots,
            slots,
            limits,
            jobs,
            closed: CancellationToken::new(),
            used: Mutex::new(Instant::now()),
        })
    }

    /// A session for the job of this id, which outlives this one: with the same options and temporary
    /// models, as they are now. What it writes it commits once, however often it runs.
    ///
    /// # Errors
    /// None that a user could cause.
    pub(in crate::flight) fn detached(&self, job: &str, statement: &str) -> Result<Self> {
        let session = self.for_job(write_id(job, statement))?;
        let state = session.context.session().state_ref();
        state.write().config_mut().set_extension(Arc::new(GivenId::new(job)));
        Ok(session)
    }

    /// A session for a job that was submitted with these options, and runs once more.
    ///
    /// # Errors
    /// None that a user could cause.
    pub(in crate::flight) fn resumed(
        &self,
        write_id: &str,
        options: &[(String, String)],
    ) -> Result<Self> {
        let session = self.for_job(WriteId(write_id.to_owned()))?;
        let state = session.context.session().state_ref();
        for (key, value) in options {
            // One that there is no more, or that has no such value any more, is as the session has it.
            state.write().config_mut().options_mut().set(key, value).ok();
        }
        Ok(session)
    }

    fn for_job(&self, write_id: WriteId) -> Result<Self> {
        let context = self.context.new_session()?;
        let state = context.session().state_ref();
        state.write().config_mut().set_extension(Arc::new(write_id));
        let (who, roots, jobs) = (self.who.clone(), self.roots.clone(), Arc::clone(&self.jobs));
        Self::new(who, context, roots, self.limits, self.slots.for_another(), jobs)
    }

    /// Its options.
    pub(in crate::flight) fn options(&self) -> ConfigOptions {
        ConfigOptions::clone(self.context.session().copied_config().options())
    }

    /// Its options under `forebay.`.
    pub(in crate::flight) fn forebay(&self) -> ForebayConfig {
        self.options().extensions.get::<ForebayConfig>().cloned().unwrap_or_default()
    }

    /// Lets its next plans be such that each part of them gives what it would give in the whole: operators tell
    /// each other nothing of the rows of an execution, and files are not as many as tasks.
    ///
    /// # Errors
    /// If there are no such options.
    pub(in crate::flight) fn plan_in_parts(&self) -> Result<()> {
        let state = self.context.session().state_ref();
        for (key, value) in [
            ("datafusion.optimizer.enable_dynamic_filter_pushdown", "false"),
            ("datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery", "false"),
            ("forebay.resumable", "true"),
        ] {
            state.write().config_mut().options_mut().set(key, value)?;
        }
        Ok(())
    }

    /// Under which id a Delta table takes what it writes once.
    pub(in crate::flight) fn write_id(&self) -> Option<String> {
        let config = self.context.session().copied_config();
        config.get_extension::<WriteId>().map(|id| id.0.clone())
    }

    /// The right to run a query for as long as it is held.
    pub(in crate::flight) fn slot(&self) -> Result<Slot, Status> {
        self.slots.take()
    }

    /// Begins the time anew after which it ends unused.
    pub(in crate::flight) fn touch(&self) {
        *self.used.lock() = Instant::now();
    }

    /// Whether nothing runs, and nothing was asked for so long.
    pub(in crate::flight) fn is_idle(&self, time: Duration) -> bool {
        self.slots.is_free() && self.used.lock().elapsed() >= time
    }

    pub(in crate::flight) fn last_used(&self) -> Instant {
        *self.used.lock()
    }

    /// Sets an option, as `SET` would.
    pub(in crate::flight) async fn set(
        &self,
        key: &str,
        value: &str,
    ) -> Result<(), DataFusionError> {
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

/// Ids of jobs are those of one process alone, and others may write to the same table.
fn write_id(job: &str, statement: &str) -> WriteId {
    let digest = hex::encode(Sha256::digest(statement));
    WriteId(format!("{job}-{}", &digest[..16]))
}
