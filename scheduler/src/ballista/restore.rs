//! Jobs that were written down become Ballista's again.

use std::sync::Arc;
use std::time::Duration;

use ballista_core::JobId;
use ballista_core::serde::protobuf::JobStatus;
use ballista_core::serde::protobuf::job_status::Status as JobState;
use ballista_scheduler::state::task_manager::JobInfoCache;
use forebay_engine::{ErrorKind, RemoteError};
use tokio::sync::mpsc;

use super::cluster_state::ForebayClusterState;
use super::jobs::{BallistaJobs, Outcome, Unclaimed};
use super::plan_parts;
use crate::coordinator::book::FoundJob;
use crate::journal::JournalError;
use crate::no_panic::no_panic;

/// How often it is looked whether Ballista has planned a job.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// It plans within milliseconds.
const PLANNED_WITHIN: Duration = Duration::from_secs(60);

impl BallistaJobs {
    /// Takes up what an earlier scheduler wrote down. Before anybody can connect: a worker that reports what
    /// became of a task must find its job, and nothing starts before it is on the disk under which names.
    ///
    /// # Errors
    /// If nothing can be written down.
    pub(crate) async fn restore(
        &self,
        state: &ForebayClusterState,
        jobs: Vec<FoundJob>,
    ) -> Result<(), JournalError> {
        for job in jobs {
            let (id, owner) = (job.id.clone(), job.document.request.owner.clone());
            let outcome = match self.restore_one(state, job).await {
                Ok(states) => Outcome::Goes(states),
                Err(error) => {
                    tracing::error!(job = %id, "cannot be continued: {error}");
                    Outcome::Lost(error)
                }
            };
            self.unclaimed.lock().insert(id, Unclaimed { owner, outcome });
        }
        self.registry.written().await
    }

    async fn restore_one(
        &self,
        state: &ForebayClusterState,
        job: FoundJob,
    ) -> Result<mpsc::Receiver<JobStatus>, RemoteError> {
        let FoundJob { id, document, begun } = job;
        let session = Arc::new(self.session(&document.request));
        let plan =
            no_panic(|| plan_parts::decode(&document.request.plan, session.task_ctx().as_ref()));
        let plan = plan.map_err(|error| RemoteError::of(&error))?;
        let submitted = self.submit(&id, &document, session, plan).await;
        let mut states = submitted
            .map_err(|status| RemoteError::new(ErrorKind::Unavailable, status.message()))?;
        // One that waited for the first worker waits again.
        if let Some(begun) = begun {
            let job = JobId::new(&id);
            let planned = self.planned(&job, &mut states);
            let planned = tokio::time::timeout(PLANNED_WITHIN, planned).await;
            let planned = planned.unwrap_or_else(|_| Err("it was not planned again".to_owned()));
            let planned =
                planned.map_err(|problem| RemoteError::new(ErrorKind::Internal, problem))?;
            state.restore(&planned, begun, document.queued_ms).await;
        }
        Ok(states)
    }

    /// The job, once Ballista has made a graph of it.
    async fn planned(
        &self,
        id: &JobId,
        states: &mut mpsc::Receiver<JobStatus>,
    ) -> Result<JobInfoCache, String> {
        loop {
            if let Some(found) = self.scheduler.state.task_manager.get_running_job_cache().get(id) {
                return Ok(found.clone());
            }
            if let Ok(JobStatus { status: Some(JobState::Failed(failed)), .. }) = states.try_recv()
            {
                return Err(failed.error);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Clients that have not come back are gone, and so are their jobs.
    pub(crate) fn drop_unclaimed(&self) {
        let unclaimed = std::mem::take(&mut *self.unclaimed.lock());
        for id in unclaimed.into_keys() {
            tracing::info!(job = %id, "its client has not come back");
            let runs = self.registry.get(&id).is_none_or(|job| job.lock().graph.is_running_job());
            if runs && let Err(error) = self.abandoned.try_send(JobId::new(&id)) {
                tracing::warn!(job = %id, "it runs on: {error}");
            }
            self.registry.forget(&id);
        }
    }
}
