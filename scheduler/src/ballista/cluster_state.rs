//! Which workers there are, and what they are given to do.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::error::{BallistaError, Result};
use ballista_core::serde::protobuf::ExecutorHeartbeat;
use ballista_core::serde::scheduler::{ExecutorData, ExecutorMetadata};
use ballista_scheduler::cluster::memory::InMemoryClusterState;
use ballista_scheduler::cluster::{BoundTask, ClusterState, ClusterStateEventStream, ExecutorSlot};
use ballista_scheduler::config::TaskDistributionPolicy;
use ballista_scheduler::state::execution_graph::{ExecutionGraph, ExecutionGraphBox};
use ballista_scheduler::state::task_manager::JobInfoCache;
use forebay_engine::RemoteError;
use parking_lot::Mutex;

use crate::ballista::execution_graph::{ForebayGraph, queued_at};
use crate::ballista::plan_parts;
use crate::ballista::wake;
use crate::coordinator::book::Begun;
use crate::coordinator::fleet;
use crate::coordinator::job::{Addresses, RunningJob};
use crate::coordinator::registry::Registry;
use crate::graph::{Event, Failure, FailureKind, JobGraph};
use crate::no_panic::no_panic;
use crate::placement::{Fleet, Job, in_the_way, place};
use crate::stages::{self, StagedPlan};

/// Ballista's record of workers, and our binding of tasks to them.
pub(crate) struct ForebayClusterState {
    inner: InMemoryClusterState,
    registry: Registry,
    attending: Mutex<Attending>,
}

/// The workers as placement has them, and of what that was made.
#[derive(Default)]
struct Attending {
    fleet: Fleet,
    change: u64,
    addresses: Arc<Addresses>,
    alive: Option<HashSet<String>>,
}

impl ForebayClusterState {
    pub(crate) fn new(registry: Registry) -> Self {
        let inner = InMemoryClusterState::default();
        Self { inner, registry, attending: Mutex::default() }
    }

    /// The jobs that run, with our graph in place of Ballista's, and those that are over and hold something of
    /// workers until their tasks have ended: Ballista follows these no more.
    async fn running(&self, active: &HashMap<JobId, JobInfoCache>) -> Vec<Arc<Mutex<RunningJob>>> {
        let mut ids: Vec<&JobId> = active.keys().collect();
        ids.sort_by_key(|id| id.to_string());
        let mut jobs = vec![];
        for id in ids {
            match self.registry.get(id.as_ref()) {
                Some(job) => jobs.push(job),
                None => jobs.push(self.install(&active[id]).await),
            }
        }
        let drains = |job: &RunningJob| {
            !active.contains_key(&job.id)
                && !job.graph.is_running_job()
                && job.graph.slots().next().is_some()
        };
        jobs.extend(self.registry.live().into_iter().filter(|job| drains(&job.lock())));
        jobs
    }

    /// An error from here would only be logged, and the job would wait for ever: it becomes the
    /// job's own.
    async fn install(&self, job: &JobInfoCache) -> Arc<Mutex<RunningJob>> {
        let mut graph = job.execution_graph.write().await;
        let (mut running, problem) = cut(graph.as_ref());
        running.log_to(self.registry.log_of(running.id.as_ref()));
        running.write_cut();
        if self.registry.take_over(&mut running)
            && let Err(error) = self.registry.written().await
        {
            // Nothing of it starts: this process ends.
            tracing::error!(job = %running.id, "{error}");
        }
        let missing = {
            let attending = self.attending.lock();
            let workers = attending.fleet.workers();
            // The first worker may be on its way.
            fleet::missing(workers, &running.graph).filter(|_| !workers.is_empty())
        };
        tracing::info!(job = %running.id, "starts: {}", running.name);
        let running = self.put(&mut graph, running);
        let event = match problem.or(missing) {
            None => Event::Started,
            Some(error) => Event::Canceled(error),
        };
        self.registry.apply(&running, event);
        running
    }

    /// A job of which this was written down goes on from there.
    pub(crate) async fn restore(&self, job: &JobInfoCache, begun: Begun, queued_ms: u64) {
        let mut graph = job.execution_graph.write().await;
        // If it could not be cut, that was written down, too.
        let (running, _) = cut(graph.as_ref());
        let name = running.name.clone();
        let mut running = running.with_name(&name, queued_ms);
        let problem = running.replay(begun).err();
        running.log_to(self.registry.log_of(running.id.as_ref()));
        self.registry.take_over(&mut running);
        tracing::info!(job = %running.id, "goes on: {}", running.name);
        let running = self.put(&mut graph, running);
        match problem {
            Some(error) => self.registry.apply(&running, Event::Canceled(error)),
            None => self.registry.look_at(&running),
        }
    }

    /// Puts our graph of a job in place of Ballista's.
    fn put(&self, graph: &mut ExecutionGraphBox, running: RunningJob) -> Arc<Mutex<RunningJob>> {
        let running = self.registry.add(running);
        let (its, registry) = (Arc::clone(&running), self.registry.clone());
        *graph = Box::new(ForebayGraph::new(its, registry, graph.as_ref()));
        running
    }

    fn bind(&self, jobs: &[Arc<Mutex<RunningJob>>]) -> Vec<BoundTask> {
        let now = self.registry.now();
        let mut attending = self.attending.lock();
        let fleet = &mut attending.fleet;
        let mut guards: Vec<_> = jobs.iter().map(|job| job.lock()).collect();
        let mut views: Vec<Job<'_>> = guards
            .iter_mut()
            .map(|job| {
                let job = &mut **job;
                let (weight, admission) = (job.options.weight, job.options.admission);
                let (id, paper) = (job.id.as_ref(), &mut job.paper);
                Job { id, graph: &mut job.graph, weight, admission, paper }
            })
            .collect();
        let bindings = place(&mut views, fleet, now);
        let displaced = in_the_way(&views, fleet);
        drop(views);
        guards.iter_mut().for_each(|job| job.write_down());
        let addresses = self.registry.addresses();
        let mut bound = vec![];
        let mut failed = vec![];
        for binding in bindings {
            let devices = fleet::leased(fleet, &binding.worker, &binding.lease);
            match no_panic(|| guards[binding.job].task(&binding.bound, &devices, &addresses)) {
                Ok(task) => bound.push((binding.worker.as_str().to_owned(), task)),
                Err(error) => failed.push((binding, RemoteError::of(&error))),
            }
        }
        drop(guards);
        drop(attending);
        for (binding, error) in failed {
            let failure = Failure::new(FailureKind::Final(error.kind), error.message);
            let event = Event::TaskFailed { task: binding.bound.task, failure };
            self.registry.apply(&jobs[binding.job], event);
        }
        if let Some((job, task)) = displaced {
            self.registry.apply(&jobs[job], Event::Displaced { task });
        }
        bound
    }

    /// Brings the workers up to date that can be given tasks.
    fn attend(&self, alive: Option<HashSet<String>>) {
        let mut attending = self.attending.lock();
        let (change, addresses) = (self.registry.membership().changes(), self.registry.addresses());
        let is_same = change == attending.change
            && Arc::ptr_eq(&addresses, &attending.addresses)
            && alive == attending.alive;
        if is_same {
            return;
        }
        let workers = self.registry.membership().workers().into_iter();
        let usable = workers.filter(|worker| {
            let is_alive = alive.as_ref().is_none_or(|alive| alive.contains(&worker.id));
            addresses.contains_key(&worker.id) && (worker.draining || is_alive)
        });
        attending.fleet.attend(usable.map(|worker| fleet::worker_state(&worker)).collect());
        (attending.change, attending.addresses, attending.alive) = (change, addresses, alive);
    }
}

tokio::task_local! {
    /// Who asks gives a worker no tasks.
    static AT_ONCE: ();
}

/// Does something that asks for workers and gives them no tasks: with a slow disk, workers whose heartbeats waited for
/// it would count as lost.
pub(crate) async fn at_once<T>(asks: impl Future<Output = T>) -> T {
    AT_ONCE.scope((), asks).await
}

fn is_at_once() -> bool {
    AT_ONCE.try_with(|()| ()).is_ok()
}

/// The job that Ballista has planned, in stages of ours. If there are none, there is nothing of it, and a
/// reason.
fn cut(graph: &dyn ExecutionGraph) -> (RunningJob, Option<RemoteError>) {
    let config = graph.session_config();
    let options = config.options();
    let staged = no_panic(|| stages::cut(graph.job_id(), graph.physical_plan(), options));
    let made = staged.and_then(|staged| {
        staged.stages.iter().try_for_each(|stage| plan_parts::check_depth(&stage.plan))?;
        let made = JobGraph::try_new(staged.spec.clone())?;
        Ok((staged, made))
    });
    let (staged, made, problem) = match made {
        Ok((staged, made)) => (staged, made, None),
        Err(error) => (StagedPlan::default(), JobGraph::nothing(), Some(RemoteError::of(&error))),
    };
    let (id, session) = (graph.job_id().clone(), graph.session_id().to_owned());
    let running = RunningJob::new(id, session, Arc::clone(&config), staged, made)
        .with_name(graph.job_name(), queued_at(graph.status()));
    (running, problem)
}

impl fmt::Debug for ForebayClusterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForebayClusterState").finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl ClusterState for ForebayClusterState {
    async fn bind_schedulable_tasks(
        &self,
        _: TaskDistributionPolicy,
        active: Arc<HashMap<JobId, JobInfoCache>>,
        executors: Option<HashSet<String>>,
    ) -> Result<Vec<BoundTask>> {
        self.attend(executors);
        let jobs = self.running(&active).await;
        Ok(self.bind(&jobs))
    }

    /// What workers hold is told by the graphs. Of whoever reports ends of tasks this is asked first, so the event loop
    /// begins with a look.
    async fn unbind_tasks(&self, slots: Vec<ExecutorSlot>) -> Result<()> {
        if slots.iter().any(|(worker, _)| worker == wake::WAKER) {
            self.registry.looks().begin();
        }
        Ok(())
    }

    async fn register_executor(
        &self,
        metadata: ExecutorMetadata,
        spec: ExecutorData,
    ) -> Result<()> {
        let attends = self.registry.membership().workers().iter().any(|w| w.id == metadata.id);
        if !attends {
            return Err(BallistaError::General(format!(
                "executor {} is not a forebay worker",
                metadata.id
            )));
        }
        self.registry.add_worker(&metadata);
        self.inner.register_executor(metadata, spec).await
    }

    async fn save_executor_metadata(&self, metadata: ExecutorMetadata) -> Result<()> {
        self.inner.save_executor_metadata(metadata).await
    }

    /// Asked when tasks that were bound go to a worker, each batch of them in a task of its own: so if the disk is too
    /// far behind for that, it is waited for here, and the event loop goes on meanwhile. Those who ask for another
    /// reason do not wait ([`at_once`]).
    async fn get_executor_metadata(&self, executor_id: &str) -> Result<ExecutorMetadata> {
        if executor_id == wake::WAKER {
            return Ok(wake::waker());
        }
        if !is_at_once() {
            let written = self.registry.nearly_written().await;
            written.map_err(|error| BallistaError::General(error.to_string()))?;
        }
        self.inner.get_executor_metadata(executor_id).await
    }

    async fn registered_executor_metadata(&self) -> Vec<ExecutorMetadata> {
        self.inner.registered_executor_metadata().await
    }

    async fn save_executor_heartbeat(&self, heartbeat: ExecutorHeartbeat) -> Result<()> {
        self.inner.save_executor_heartbeat(heartbeat).await
    }

    async fn remove_executor(&self, executor_id: &str) -> Result<()> {
        let why = "this worker was not heard of for too long, and counts as lost";
        self.registry.membership().dismiss(executor_id, why);
        self.registry.nothing_ends_on(executor_id);
        self.inner.remove_executor(executor_id).await
    }

    /// Whoever was not heard of is told to stop. After a pause that may be this scheduler, and workers work for its
    /// successor.
    fn executor_heartbeats(&self) -> HashMap<String, ExecutorHeartbeat> {
        if !self.registry.membership().has_a_say() {
            return HashMap::new();
        }
        self.inner.executor_heartbeats()
    }

    fn get_executor_heartbeat(&self, executor_id: &str) -> Option<ExecutorHeartbeat> {
        if executor_id == wake::WAKER {
            return Some(ExecutorHeartbeat::default());
        }
        self.inner.get_executor_heartbeat(executor_id)
    }

    async fn cluster_state_events(&self) -> Result<ClusterStateEventStream> {
        self.inner.cluster_state_events().await
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionConfig;
    use forebay_engine::ErrorKind;

    use super::*;
    use crate::graph::{JobSpec, Millis, StageId, StageSpec, Work, WorkerId};
    use crate::placement::WorkerState;
    use crate::protocol::membership::Membership;
    use crate::resources::{Lease, Need, WHOLE};

    #[tokio::test]
    async fn what_a_job_holds_is_taken_until_its_tasks_have_ended() {
        let registry = Registry::new(Membership::new());
        let state = ForebayClusterState::new(registry.clone());
        let (worker, unit) = (WorkerId::new("w"), StageId(0).unit(0));
        let stages = vec![StageSpec::new("s", Need::cpus(WHOLE), 1)];
        let graph = JobGraph::try_new(JobSpec { stages, ..JobSpec::default() }).unwrap();
        let (config, plans) = (Arc::new(SessionConfig::new()), StagedPlan::default());
        let mut job = RunningJob::new(JobId::new("j"), String::new(), config, plans, graph);
        let bound = job.graph.bind(Work::Unit(unit), &worker, Lease::default(), Millis(0)).unwrap();
        let job = registry.add(job);
        let workers = vec![WorkerState::new(worker.clone(), 2 * WHOLE, 0)];
        state.attending.lock().fleet.attend(workers);
        // Of what is over Ballista has no job.
        let taken = async || {
            let jobs = state.running(&HashMap::new()).await;
            state.bind(&jobs);
            state.attending.lock().fleet.worker(&worker).unwrap().used_cpus_milli
        };
        let why = RemoteError::new(ErrorKind::Canceled, "nobody wants it");
        registry.apply(&job, Event::Canceled(why));
        assert_eq!(taken().await, WHOLE, "its task has not ended");
        assert_eq!(taken().await, WHOLE);
        registry.apply(&job, Event::TaskEnded { task: bound.task });
        assert_eq!(taken().await, 0);
    }
}
