//! What Ballista sees of a job: our graph behind its trait.
//!
//! Ballista keeps no state of ours: of its own structures it gets the job's status and an empty
//! list of stages. What it asks for goes into the graph; what must happen then goes out as its
//! events.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::error::Result;
use ballista_core::serde::protobuf::job_status::Status as JobState;
use ballista_core::serde::protobuf::{
    FailedJob, JobStatus, RunningJob as RunningState, SuccessfulJob, TaskStatus,
};
use ballista_core::serde::scheduler::{ExecutorMetadata, PartitionLocation};
use ballista_scheduler::scheduler_server::event::QueryStageSchedulerEvent;
use ballista_scheduler::scheduler_server::timestamp_millis;
use ballista_scheduler::state::execution_graph::{
    ExecutionGraph, ExecutionGraphBox, RunningTaskInfo,
};
use ballista_scheduler::state::execution_stage::{ExecutionStage, RunningStage};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use forebay_engine::{ErrorKind, RemoteError};
use parking_lot::Mutex;

use crate::coordinator::job::RunningJob;
use crate::coordinator::registry::Registry;
use crate::graph::{Event, JobStatus as GraphStatus, TaskId, TaskState, WorkerId};

/// Our graph as Ballista's.
#[derive(Clone)]
pub(crate) struct ForebayGraph {
    job: Arc<Mutex<RunningJob>>,
    registry: Registry,
    id: JobId,
    name: String,
    session: String,
    scheduler: String,
    config: Arc<SessionConfig>,
    plan: Arc<dyn ExecutionPlan>,
    status: JobStatus,
    queued_at: u64,
    started_at: u64,
    ended_at: u64,
    /// None: Ballista must not touch them.
    stages: HashMap<usize, ExecutionStage>,
}

impl fmt::Debug for ForebayGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForebayGraph").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ForebayGraph {
    /// In place of the graph that Ballista made of the same plan.
    pub(crate) fn new(
        job: Arc<Mutex<RunningJob>>,
        registry: Registry,
        stock: &dyn ExecutionGraph,
    ) -> Self {
        Self {
            job,
            registry,
            id: stock.job_id().clone(),
            name: stock.job_name().to_owned(),
            session: stock.session_id().to_owned(),
            scheduler: stock.scheduler_id().unwrap_or_default().to_owned(),
            config: stock.session_config(),
            plan: stock.physical_plan(),
            status: stock.status().clone(),
            queued_at: queued_at(stock.status()),
            started_at: stock.start_time(),
            ended_at: 0,
            stages: HashMap::new(),
        }
    }

    fn apply(&self, event: Event) {
        self.registry.apply(&self.job, event);
    }

    /// The job's end, told once.
    fn end(&mut self) -> Option<QueryStageSchedulerEvent> {
        let (status, failure) = {
            let mut job = self.job.lock();
            let is_over = *job.graph.status() != GraphStatus::Running;
            if !is_over || std::mem::replace(&mut job.end_is_told, true) {
                return None;
            }
            (job.graph.status().clone(), job.failure())
        };
        let (job_id, queued_at) = (self.id.clone(), self.queued_at);
        self.ended_at = timestamp_millis();
        if status == GraphStatus::Finished {
            self.succeeded();
            let completed_at = self.ended_at;
            return Some(QueryStageSchedulerEvent::JobFinished { job_id, queued_at, completed_at });
        }
        Some(QueryStageSchedulerEvent::JobRunningFailed {
            job_id,
            fail_message: failure.map_or_else(String::new, |error| error.message),
            queued_at,
            failed_at: self.ended_at,
        })
    }

    fn succeeded(&mut self) {
        self.set_status(JobState::Successful(SuccessfulJob {
            // The result's blocks are asked of the registry.
            partition_location: vec![],
            queued_at: self.queued_at,
            started_at: self.started_at,
            ended_at: self.ended_at,
        }));
    }

    fn set_status(&mut self, status: JobState) {
        self.status = JobStatus {
            job_id: self.id.to_string(),
            job_name: self.name.clone(),
            status: Some(status),
        };
    }

    fn infos(&self, tasks: impl Iterator<Item = (TaskId, WorkerId)>) -> Vec<RunningTaskInfo> {
        let info = |(task, worker): (TaskId, WorkerId)| RunningTaskInfo {
            task_id: task.index as usize,
            job_id: self.id.clone(),
            stage_id: task.stage.0 as usize,
            executor_id: worker.as_str().to_owned(),
        };
        tasks.map(info).collect()
    }
}

/// Milliseconds since 1970 at which the scheduler had a job.
pub(crate) fn queued_at(status: &JobStatus) -> u64 {
    match &status.status {
        Some(JobState::Running(RunningState { queued_at, .. })) => *queued_at,
        _ => 0,
    }
}

impl ExecutionGraph for ForebayGraph {
    fn job_id(&self) -> &JobId {
        &self.id
    }

    fn job_name(&self) -> &str {
        &self.name
    }

    fn session_id(&self) -> &str {
        &self.session
    }

    fn scheduler_id(&self) -> Option<&str> {
        Some(&self.scheduler)
    }

    fn session_config(&self) -> Arc<SessionConfig> {
        Arc::clone(&self.config)
    }

    fn status(&self) -> &JobStatus {
        &self.status
    }

    fn logical_plan(&self) -> Option<&str> {
        None
    }

    fn physical_plan(&self) -> Arc<dyn ExecutionPlan> {
        Arc::clone(&self.plan)
    }

    fn start_time(&self) -> u64 {
        self.started_at
    }

    fn end_time(&self) -> u64 {
        self.ended_at
    }

    fn completed_stages(&self) -> usize {
        let job = self.job.lock();
        job.graph.stage_rows().filter(|stage| stage.is_done()).count()
    }

    fn is_successful(&self) -> bool {
        matches!(self.status.status, Some(JobState::Successful(_)))
    }

    fn revive(&mut self) -> bool {
        false
    }

    fn update_task_status(
        &mut self,
        _: &ExecutorMetadata,
        _: Vec<TaskStatus>,
        _: usize,
        _: usize,
    ) -> Result<Vec<QueryStageSchedulerEvent>> {
        // A look: what workers report has reached the graph already (`workers`).
        Ok(self.end().into_iter().collect())
    }

    fn running_stages(&self) -> Vec<usize> {
        vec![]
    }

    fn running_tasks(&self) -> Vec<RunningTaskInfo> {
        let job = self.job.lock();
        let running = job.graph.task_rows().filter(|task| *task.state == TaskState::Running);
        self.infos(running.map(|task| (task.id, task.worker.clone())))
    }

    fn available_tasks(&self) -> usize {
        0
    }

    fn fetch_running_stage(&mut self, _: &[usize]) -> Option<&mut RunningStage> {
        None
    }

    fn update_status(&mut self, status: JobStatus) {
        self.status = status;
    }

    fn output_locations(&self) -> Vec<PartitionLocation> {
        vec![]
    }

    fn reset_stages_on_lost_executor(
        &mut self,
        executor_id: &str,
    ) -> Result<(HashSet<usize>, Vec<RunningTaskInfo>)> {
        self.apply(Event::WorkerLost { worker: WorkerId::new(executor_id) });
        // The registry has told the workers already; an end that this leads to comes when it is woken.
        Ok((HashSet::new(), vec![]))
    }

    fn resolve_stage(&mut self, _: usize) -> Result<bool> {
        Ok(false)
    }

    fn succeed_stage(&mut self, _: usize) -> bool {
        false
    }

    fn fail_stage(&mut self, _: usize, _: String) -> bool {
        false
    }

    fn rollback_running_stage(
        &mut self,
        _: usize,
        _: HashSet<String>,
    ) -> Result<Vec<RunningTaskInfo>> {
        Ok(vec![])
    }

    fn rollback_resolved_stage(&mut self, _: usize) -> Result<bool> {
        Ok(false)
    }

    fn rerun_successful_stage(&mut self, _: usize) -> bool {
        false
    }

    fn fail_job(&mut self, error: String) {
        let stopped = RemoteError::new(ErrorKind::Unavailable, error.clone());
        self.apply(Event::Canceled(stopped));
        let mut job = self.job.lock();
        job.end_is_told = true;
        let error = job.failure().map_or(error, |failure| failure.message);
        drop(job);
        self.ended_at = timestamp_millis();
        self.set_status(JobState::Failed(FailedJob {
            error,
            queued_at: self.queued_at,
            started_at: self.started_at,
            ended_at: self.ended_at,
        }));
    }

    fn succeed_job(&mut self) -> Result<()> {
        Ok(())
    }

    fn stages(&self) -> &HashMap<usize, ExecutionStage> {
        &self.stages
    }

    fn intermediate_stage_ids(&self) -> Vec<u32> {
        let job = self.job.lock();
        let stages = job.graph.stage_rows().count() as u32;
        (0..stages.saturating_sub(1)).collect()
    }

    fn task_vcores(&self, _: usize, _: usize) -> Option<u32> {
        Some(0)
    }

    fn stage_count(&self) -> usize {
        self.job.lock().graph.stage_rows().count()
    }

    fn cloned(&self) -> ExecutionGraphBox {
        Box::new(self.clone())
    }
}
