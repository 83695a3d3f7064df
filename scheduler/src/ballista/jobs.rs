//! Plans that clients send become Ballista's jobs, and end with the client's interest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::JobId;
use ballista_core::extension::SessionConfigHelperExt;
use ballista_core::serde::protobuf::job_status::Status as JobState;
use ballista_core::serde::protobuf::{JobStatus, KeyValuePair};
use ballista_scheduler::scheduler_server::timestamp_millis;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use forebay_engine::{ErrorKind, RemoteError};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::{IntervalStream, ReceiverStream};
use tonic::Status;

use crate::ballista::Ballista;
use crate::ballista::job_ids::with_id;
use crate::ballista::part_codec::PlanParts;
use crate::ballista::plan_parts;
use crate::coordinator::analysis;
use crate::coordinator::book::JobDocument;
use crate::coordinator::fleet::NO_WORKER;
use crate::coordinator::observe::Reached;
use crate::coordinator::registry::{Registry, Submitted};
use crate::gate::{Gate, Inside};
use crate::job_id::{is_job_id, next_job_id};
use crate::journal::JournalError;
use crate::owner::Owner;
use crate::protocol::Answers;
use crate::protocol::messages::run_update::News;
use crate::protocol::messages::{
    self, Accepted, Analysis, DealtAnswer, DealtRequest, Finished, ReadAnswer, ReadRequest,
    RunRequest, RunUpdate, TableRequest, TableRows,
};
use crate::protocol::server::{Jobs, Tenure};
use crate::tables::SystemTable;

/// Changes of a job's state that may wait to be sent.
const UPDATES_MAX: usize = 64;

/// How often it is looked how far a job is. Its client hears what is new.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Jobs of a scheduler.
pub(crate) struct BallistaJobs {
    pub(crate) scheduler: Ballista,
    pub(crate) registry: Registry,
    /// What sessions have in common.
    pub(crate) state: SessionState,
    /// Jobs whose client has gone.
    pub(crate) abandoned: mpsc::Sender<JobId>,
    /// How long a job waits for the first worker.
    pub(crate) patience: Duration,
    /// Closed when the scheduler ends.
    pub(crate) gate: Gate,
    /// What clients are told of a successor.
    pub(crate) tenure: Tenure,
    /// Jobs that were restored and whose clients have not come back yet.
    pub(crate) unclaimed: Arc<Mutex<BTreeMap<String, Unclaimed>>>,
}

/// A job that was written down, and whose client has not come back yet.
pub(crate) struct Unclaimed {
    pub(super) owner: String,
    pub(super) outcome: Outcome,
}

/// What became of it.
pub(super) enum Outcome {
    /// It runs, or has ended since it was written down: what Ballista says of it.
    Goes(mpsc::Receiver<JobStatus>),
    /// It could not be restored.
    Lost(RemoteError),
}

impl BallistaJobs {
    pub(super) fn session(&self, request: &RunRequest) -> SessionContext {
        let options: Vec<KeyValuePair> = request
            .options
            .iter()
            .map(|option| KeyValuePair {
                key: option.key.clone(),
                value: Some(option.value.clone()),
            })
            .collect();
        let config = self.state.config().clone().update_from_key_value_pair(&options);
        let config = config.with_extension(Arc::new(PlanParts::default()));
        let config = match request.owner.as_str() {
            "" => config,
            owner => config.with_extension(Arc::new(Owner::new(owner))),
        };
        let state = SessionStateBuilder::new_from_existing(self.state.clone())
            .with_config(config)
            .with_session_id(request.session.clone())
            .build();
        SessionContext::new_with_state(state)
    }

    /// Gives a plan to Ballista. What becomes of it is told in the answer.
    ///
    /// # Errors
    /// If Ballista takes no more.
    pub(super) async fn submit(
        &self,
        id: &str,
        document: &JobDocument,
        session: Arc<SessionContext>,
        plan: Arc<dyn ExecutionPlan>,
    ) -> Result<mpsc::Receiver<JobStatus>, Status> {
        let (subscriber, states) = mpsc::channel(UPDATES_MAX);
        let request = &document.request;
        let submitted =
            self.scheduler.submit_physical_plan(&request.name, session, plan, Some(subscriber));
        let submitted = with_id(id, submitted).await;
        let job = submitted.map_err(|error| Status::unavailable(error.to_string()))?;
        self.registry.submit(&job, waits(document));
        Ok(states)
    }

    /// The client of a job, which is forgotten with it.
    fn client(&self, id: &str, inside: Inside) -> ClientGuard {
        ClientGuard {
            job: JobId::new(id),
            is_over: false,
            registry: self.registry.clone(),
            abandoned: self.abandoned.clone(),
            _inside: inside,
        }
    }

    /// What the client of a job hears, for as long as it listens.
    fn updates(
        &self,
        mut guard: ClientGuard,
        states: mpsc::Receiver<JobStatus>,
    ) -> Answers<RunUpdate> {
        let id = guard.job.to_string();
        let (patience_ms, state) = (self.tenure.patience_ms, self.tenure.state());
        let accepted = News::Accepted(Accepted { job: id.clone(), patience_ms, state });
        let (registry, watched) = (self.registry.clone(), self.registry.clone());
        let unattended = unattended(self.registry.clone(), id.clone(), self.patience);
        let given_up = stream::once(unattended).map(|error| News::Failed(error.into()));
        let mut before = None;
        let ticks = IntervalStream::new(tokio::time::interval(PROGRESS_EVERY))
            .map(move |_| watched.progress(&id))
            .take_while(|progress| std::future::ready(*progress != Reached::End))
            .filter(move |progress| {
                let is_new = before.as_ref() != Some(progress);
                before = Some(progress.clone());
                std::future::ready(is_new)
            })
            .filter_map(|progress| std::future::ready(progress.update()));
        // Open for as long as the client wants to hear of it.
        let states = ReceiverStream::new(states).chain(stream::pending());
        let updates = states.flat_map(move |status| {
            let last = registry.reached(&status.job_id);
            let news = news(status, &registry);
            if news.is_some() {
                guard.ends();
            }
            let last = last.filter(|_| news.is_some()).map(News::Progress);
            stream::iter(last.into_iter().chain(news))
        });
        let news = stream::select(updates, given_up).map(|news| Ok(RunUpdate { news: Some(news) }));
        let first = stream::iter([Ok(RunUpdate { news: Some(accepted) })]);
        // A successor may say otherwise.
        let membership = self.registry.membership().clone();
        let confirmed = stream::select(news, ticks).then(move |update| {
            let membership = membership.clone();
            async move {
                membership.confirm().await?;
                update
            }
        });
        Box::pin(first.chain(confirmed))
    }

    /// The client of a job that was restored is here. Of another one's it is not told that it is there.
    fn found_again(
        &self,
        request: &RunRequest,
        inside: Inside,
    ) -> Result<Answers<RunUpdate>, Status> {
        let id = request.job.as_str();
        let state = self.tenure.state();
        if request.state != state {
            let problem = messages::is_no_successor(&state, "the query", &request.state);
            return Err(Status::aborted(problem));
        }
        let mut unclaimed = self.unclaimed.lock();
        if unclaimed.get(id).is_none_or(|job| job.owner != request.owner) {
            return Err(no_job(id));
        }
        let found = unclaimed.remove(id).ok_or_else(|| no_job(id))?;
        drop(unclaimed);
        match found.outcome {
            Outcome::Goes(states) => Ok(self.updates(self.client(id, inside), states)),
            Outcome::Lost(error) => {
                self.registry.forget(id);
                let accepted = Accepted { job: id.to_owned(), patience_ms: 0, state };
                let news = [News::Accepted(accepted), News::Failed(error.into())];
                let news = news.map(|news| Ok(RunUpdate { news: Some(news) }));
                Ok(Box::pin(stream::iter(news)))
            }
        }
    }
}

#[tonic::async_trait]
impl Jobs for BallistaJobs {
    async fn run(&self, request: RunRequest) -> Result<Answers<RunUpdate>, Status> {
        let inside = self.gate.enter().ok_or_else(|| {
            Status::unavailable("it is ending: it finishes what runs, and begins nothing more")
        })?;
        if request.is_known {
            return self.found_again(&request, inside);
        }
        let id = match request.job.as_str() {
            "" => next_job_id(),
            given if is_job_id(given) => given.to_owned(),
            given => {
                return Err(Status::invalid_argument(format!(
                    "'{given}' cannot be the id of a job; expected letters and digits"
                )));
            }
        };
        let session = Arc::new(self.session(&request));
        let plan = plan_parts::decode(&request.plan, session.task_ctx().as_ref())
            .map_err(|error| Status::invalid_argument(error.strip_backtrace()))?;
        let queued_ms = timestamp_millis();
        let document = JobDocument { request, queued_ms };
        // Before anything is waited for: two may come with one id.
        if !self.registry.reserve(&id, waits(&document)) {
            return Err(Status::already_exists(format!(
                "there is a job {id} already; take another id, or wait until its client is done with it"
            )));
        }
        let client = self.client(&id, inside);
        self.registry.begin(&id, &document).await.map_err(unwritten)?;
        let states = self.submit(&id, &document, session, plan).await?;
        Ok(self.updates(client, states))
    }

    async fn read(&self, request: ReadRequest) -> Result<ReadAnswer, Status> {
        let job = self.registry.planned(&request.job).await;
        let job = job.ok_or_else(|| no_job(&request.job))?;
        let counts = request.done.is_some_and(|done| self.registry.read_ended(&job, done));
        let answer = ReadAnswer { counts, ..self.registry.next_read(&job).await };
        // Rows that a successor did not know to be read would be read twice. If it cannot be written, this
        // scheduler ends, and the client asks the next one.
        let written = self.registry.written().await;
        written.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(answer)
    }

    async fn dealt(&self, request: DealtRequest) -> Result<DealtAnswer, Status> {
        let answer = self.registry.next_dealt(&request).await;
        // A successor that did not know of an output would count others from there on.
        let written = self.registry.written().await;
        written.map_err(|error| Status::unavailable(error.to_string()))?;
        answer
    }

    async fn table(&self, request: TableRequest) -> Result<TableRows, Status> {
        let Some(table) = SystemTable::named(&request.table) else {
            return Err(Status::not_found(format!("there is no table {}", request.table)));
        };
        let owner = Some(request.owner.as_str()).filter(|owner| !owner.is_empty());
        let rows = self.registry.table(table, owner);
        rows.map_err(|error| Status::internal(error.strip_backtrace()))
    }

    async fn analyze(&self, job: &str) -> Result<Analysis, Status> {
        let found = self.registry.get(job);
        let found = found.ok_or_else(|| no_job(job))?;
        let job = found.lock();
        Ok(analysis::of(&job, self.registry.now()))
    }
}

/// A job as it is known before it is planned.
fn waits(document: &JobDocument) -> Submitted {
    let JobDocument { request, queued_ms } = document;
    Submitted {
        name: request.name.clone(),
        session: request.session.clone(),
        owner: request.owner.clone(),
        queued_ms: *queued_ms,
    }
}

/// The journal's kind of error as a client is told.
fn unwritten(error: JournalError) -> Status {
    match error.kind() {
        ErrorKind::ResourceExhausted => Status::resource_exhausted(error.to_string()),
        ErrorKind::FailedPrecondition => Status::failed_precondition(error.to_string()),
        _ => Status::unavailable(error.to_string()),
    }
}

pub(super) fn no_job(id: &str) -> Status {
    Status::not_found(format!(
        "there is no job {id}: it never was one of this scheduler's, or ended too long ago"
    ))
}

/// Ends if no worker comes for so long. Ballista plans a job for workers only, and waits for them for
/// ever; once it is planned, the registry gives it up.
async fn unattended(registry: Registry, job: String, patience: Duration) -> RemoteError {
    let mut ticks = tokio::time::interval(PROGRESS_EVERY);
    let mut lonely_since = Instant::now();
    while registry.get(&job).is_none() {
        let now = ticks.tick().await;
        if registry.has_workers() {
            lonely_since = now;
        } else if now.duration_since(lonely_since) >= patience {
            let message = format!("{NO_WORKER}; none has come for {} s", patience.as_secs());
            return RemoteError::new(ErrorKind::Unavailable, message);
        }
    }
    std::future::pending().await
}

/// What a state says that a client has waited for.
fn news(status: JobStatus, registry: &Registry) -> Option<News> {
    match status.status? {
        JobState::Queued(_) | JobState::Running(_) => None,
        JobState::Failed(failed) => {
            let known = registry.get(&status.job_id).and_then(|job| job.lock().failure());
            // Ballista could not even make a graph of it.
            let error = known.unwrap_or(RemoteError::new(ErrorKind::Internal, failed.error));
            Some(News::Failed(error.into()))
        }
        JobState::Successful(_) => Some(News::Finished(Finished {})),
    }
}

/// A client that waits for a job, or reads its rows. When it does so no more, the job is cancelled
/// if it runs, and its blocks are dropped.
struct ClientGuard {
    job: JobId,
    is_over: bool,
    registry: Registry,
    abandoned: mpsc::Sender<JobId>,
    _inside: Inside,
}

impl ClientGuard {
    /// The job runs no more.
    fn ends(&mut self) {
        self.is_over = true;
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        if self.registry.is_ending() {
            return;
        }
        if !self.is_over
            && let Err(error) = self.abandoned.try_send(self.job.clone())
        {
            tracing::warn!(job = %self.job, "its client has gone, and it runs on: {error}");
        }
        self.registry.forget(self.job.as_ref());
    }
}
