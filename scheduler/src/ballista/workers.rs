//! What workers tell the scheduler in Ballista's terms.
//!
//! How a task ended goes to its job's graph at once, whether or not Ballista still follows the job: it lets go of
//! one that is canceled while tasks of it still end, and what these hold would count as held for ever. Its event
//! loop is then made to look. That a worker is there, lives and stops is told to Ballista as it is. Its clients'
//! calls are not answered: plans come by our own service.

use std::collections::BTreeSet;

use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpc;
use ballista_core::serde::protobuf::task_status::Status as Ended;
use ballista_core::serde::protobuf::{
    CancelJobParams, CancelJobResult, CleanJobDataParams, CleanJobDataResult,
    CreateUpdateSessionParams, CreateUpdateSessionResult, ExecuteQueryParams, ExecuteQueryResult,
    ExecutorStoppedParams, ExecutorStoppedResult, GetJobMetricsParams, GetJobMetricsResult,
    GetJobStatusParams, GetJobStatusResult, HeartBeatParams, HeartBeatResult, PollWorkParams,
    PollWorkResult, RegisterExecutorParams, RegisterExecutorResult, RemoveSessionParams,
    RemoveSessionResult, TaskStatus, UpdateTaskStatusParams, UpdateTaskStatusResult,
};
use tonic::{Request, Response, Status};

use crate::ballista::cluster_state::at_once;
use crate::ballista::{Ballista, status};
use crate::coordinator::job::RunningJob;
use crate::coordinator::registry::Registry;
use crate::graph::{Event, Failure, FailureKind, StageId, TaskId};

type Answer<T> = Result<Response<T>, Status>;

/// The service that workers call.
pub(crate) struct WorkerReports {
    pub(crate) scheduler: Ballista,
    pub(crate) registry: Registry,
}

#[tonic::async_trait]
impl SchedulerGrpc for WorkerReports {
    type ExecuteQueryPushStream = <Ballista as SchedulerGrpc>::ExecuteQueryPushStream;

    async fn update_task_status(
        &self,
        request: Request<UpdateTaskStatusParams>,
    ) -> Answer<UpdateTaskStatusResult> {
        let UpdateTaskStatusParams { executor_id, task_status } = request.into_inner();
        let mut jobs = BTreeSet::new();
        for report in task_status {
            let Some(job) = self.registry.get(&report.job_id) else { continue };
            jobs.insert(report.job_id.clone());
            let event = event(&mut job.lock(), &executor_id, report);
            if let Some(event) = event {
                self.registry.apply(&job, event);
            }
        }
        // Also if it has nothing to do for any of them: others may have waited for what is free now.
        self.registry.looks().ask(jobs);
        Ok(Response::new(UpdateTaskStatusResult { success: true }))
    }

    async fn register_executor(
        &self,
        request: Request<RegisterExecutorParams>,
    ) -> Answer<RegisterExecutorResult> {
        SchedulerGrpc::register_executor(&self.scheduler, request).await
    }

    async fn heart_beat_from_executor(
        &self,
        request: Request<HeartBeatParams>,
    ) -> Answer<HeartBeatResult> {
        at_once(SchedulerGrpc::heart_beat_from_executor(&self.scheduler, request)).await
    }

    async fn executor_stopped(
        &self,
        request: Request<ExecutorStoppedParams>,
    ) -> Answer<ExecutorStoppedResult> {
        SchedulerGrpc::executor_stopped(&self.scheduler, request).await
    }

    async fn poll_work(&self, _: Request<PollWorkParams>) -> Answer<PollWorkResult> {
        Err(not_here())
    }

    async fn create_update_session(
        &self,
        _: Request<CreateUpdateSessionParams>,
    ) -> Answer<CreateUpdateSessionResult> {
        Err(not_here())
    }

    async fn remove_session(&self, _: Request<RemoveSessionParams>) -> Answer<RemoveSessionResult> {
        Err(not_here())
    }

    async fn execute_query_push(
        &self,
        _: Request<ExecuteQueryParams>,
    ) -> Answer<Self::ExecuteQueryPushStream> {
        Err(not_here())
    }

    async fn execute_query(&self, _: Request<ExecuteQueryParams>) -> Answer<ExecuteQueryResult> {
        Err(not_here())
    }

    async fn get_job_status(&self, _: Request<GetJobStatusParams>) -> Answer<GetJobStatusResult> {
        Err(not_here())
    }

    async fn get_job_metrics(
        &self,
        _: Request<GetJobMetricsParams>,
    ) -> Answer<GetJobMetricsResult> {
        Err(not_here())
    }

    async fn cancel_job(&self, _: Request<CancelJobParams>) -> Answer<CancelJobResult> {
        Err(not_here())
    }

    async fn clean_job_data(&self, _: Request<CleanJobDataParams>) -> Answer<CleanJobDataResult> {
        Err(not_here())
    }
}

/// What a report is to the job's graph; a result's metrics are kept with the job. Nothing if the worker does
/// not have the task: after a restart ends are reported again, and others' are not its own to report.
fn event(job: &mut RunningJob, worker: &str, report: TaskStatus) -> Option<Event> {
    let task = StageId(report.stage_id).task(report.task_id);
    if !job.is_held_by(task, worker, "the end") {
        return None;
    }
    match report.status? {
        // Nothing reports that.
        Ended::Running(_) => None,
        Ended::Successful(success) => {
            let blocks = match status::from_records(&success.partitions) {
                Ok(blocks) => blocks,
                Err(problem) => {
                    let failure = Failure::new(FailureKind::Passing, problem);
                    return Some(failed(job, worker, task, failure));
                }
            };
            job.measured.entry(task.stage).or_default().add(report.metrics);
            Some(Event::TaskFinished { task, blocks })
        }
        Ended::Failed(reason) => {
            let unit_of = |stage, task| job.graph.unit_of(StageId(stage).task(task));
            Some(match status::failure(reason, unit_of) {
                Some(failure) => failed(job, worker, task, failure),
                None => Event::TaskEnded { task },
            })
        }
    }
}

fn failed(job: &RunningJob, worker: &str, task: TaskId, failure: Failure) -> Event {
    let Failure { kind, message } = &failure;
    tracing::info!(
        job = %job.id, stage = task.stage.0, task = task.index, worker,
        "failed ({kind:?}): {message}"
    );
    Event::TaskFailed { task, failure }
}

fn not_here() -> Status {
    Status::unimplemented(
        "this scheduler is Forebay's and takes no plans of Ballista's clients; connect with forebay shell \
         --connect HOST:PORT, or to the Flight SQL port of forebay serve",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ballista_core::JobId;
    use ballista_core::serde::protobuf::{ShuffleWritePartition, SuccessfulTask};
    use datafusion::prelude::SessionConfig;

    use super::*;
    use crate::graph::{
        BlockState, EdgeKind, EdgeSpec, Granularity, JobGraph, JobSpec, StageSpec, UnitState, Work,
        WorkerId,
    };
    use crate::protocol::location::FileId;
    use crate::protocol::membership::Membership;
    use crate::protocol::messages::{Sealed, TaskName, to_worker};
    use crate::resources::{Lease, Need};
    use crate::stages::StagedPlan;

    const STAGE: StageId = StageId(0);

    /// A job with two tasks on `w`, whose blocks the client reads.
    fn job(granularity: Granularity) -> RunningJob {
        let mut stage = StageSpec::new("s", Need::cpus(1000), 2);
        stage.replayable = true;
        let stages = vec![stage, StageSpec::client()];
        let kind = EdgeKind::Streaming(granularity);
        let edges = vec![EdgeSpec::new(STAGE, StageId(1), kind)];
        let graph = JobGraph::try_new(JobSpec { stages, edges, ..JobSpec::default() }).unwrap();
        let (config, plans) = (Arc::new(SessionConfig::new()), StagedPlan::default());
        let mut job = RunningJob::new(JobId::new("j"), String::new(), config, plans, graph);
        for unit in 0..2 {
            let (work, worker) = (Work::Unit(STAGE.unit(unit)), WorkerId::new("w"));
            job.graph.bind(work, &worker, Lease::default(), Default::default()).unwrap();
        }
        job
    }

    fn report(task: TaskId) -> TaskStatus {
        let success = SuccessfulTask { executor_id: "w".to_owned(), ..SuccessfulTask::default() };
        TaskStatus {
            job_id: "j".to_owned(),
            stage_id: task.stage.0,
            task_id: task.index,
            status: Some(Ended::Successful(success)),
            ..TaskStatus::default()
        }
    }

    #[test]
    fn the_end_of_a_task_is_its_workers_to_report_and_once() {
        let mut job = job(Granularity::Block);
        let unknown = [StageId(7).task(0), STAGE.task(7)];
        assert!(unknown.into_iter().all(|task| event(&mut job, "w", report(task)).is_none()));
        assert!(event(&mut job, "other", report(STAGE.task(0))).is_none());
        assert!(job.measured.is_empty());
        let ended = event(&mut job, "w", report(STAGE.task(0))).unwrap();
        job.apply(ended, Default::default());
        assert!(event(&mut job, "w", report(STAGE.task(0))).is_none());
        // One that was told to stop has an end, too.
        let why = forebay_engine::RemoteError::new(forebay_engine::ErrorKind::Canceled, "enough");
        job.apply(Event::Canceled(why), Default::default());
        let ended = event(&mut job, "w", report(STAGE.task(1))).unwrap();
        job.apply(ended, Default::default());
        assert!(event(&mut job, "w", report(STAGE.task(1))).is_none());
    }

    /// Blocks may be missing in it.
    #[test]
    fn a_task_whose_report_is_damaged_runs_again() {
        let mut job = job(Granularity::Block);
        let task = STAGE.task(0);
        let mut report = report(task);
        if let Some(Ended::Successful(success)) = &mut report.status {
            let record = ShuffleWritePartition { num_batches: 40, ..Default::default() };
            success.partitions = vec![record; 2];
        }
        let event = event(&mut job, "w", report).unwrap();
        let Event::TaskFailed { failure, .. } = &event else { panic!("{event:?}") };
        assert_eq!(failure.kind, FailureKind::Passing);
        assert!(failure.message.contains("report is damaged"), "{}", failure.message);
        job.apply(event, Default::default());
        assert_eq!(job.graph.unit_state(STAGE.unit(0)), UnitState::Pending);
        assert!(job.measured.is_empty());
    }

    fn sealed(task: u32, seq: u32) -> Sealed {
        let id = FileId { stage: 0, task, seq };
        Sealed { job: "j".to_owned(), id, bytes: 1, rows: 1, checksum: 1 }
    }

    #[test]
    fn blocks_are_sealed_by_the_worker_that_runs_their_task() {
        let registry = Registry::new(Membership::new());
        let job = registry.add(job(Granularity::Block));
        registry.sealed("other", &sealed(0, 0));
        registry.sealed("w", &sealed(7, 0));
        assert_eq!(job.lock().graph.block_rows().count(), 0);
        registry.sealed("w", &sealed(0, 0));
        let job = job.lock();
        let blocks: Vec<_> = job.graph.block_rows().map(|block| block.state).collect();
        assert_eq!(blocks, [BlockState::Sealed]);
    }

    #[test]
    fn what_a_task_was_given_that_is_to_stop_and_never_came_is_free() {
        let registry = Registry::new(Membership::new());
        let job = registry.add(job(Granularity::Block));
        assert!(job.lock().still_to_stop().is_empty());
        let why = forebay_engine::RemoteError::new(forebay_engine::ErrorKind::Canceled, "enough");
        registry.apply(&job, Event::Canceled(why));
        let name = |job: &str, task| TaskName { job: job.to_owned(), stage: 0, task };
        let again = || -> Vec<_> {
            let messages = job.lock().still_to_stop();
            messages.into_iter().map(|(worker, say)| (worker.to_string(), say)).collect()
        };
        let stop = |task| ("w".to_owned(), to_worker::Say::Cancel(name("j", task)));
        assert_eq!(again(), [stop(0), stop(1)]);
        job.lock().end_is_told = true;
        registry.looks().take();
        registry.absent("other", &name("j", 0));
        registry.absent("w", &name("other", 0));
        registry.absent("w", &name("j", 7));
        assert_eq!(again().len(), 2);
        assert!(registry.looks().is_empty());
        registry.absent("w", &name("j", 0));
        assert_eq!(again(), [stop(1)]);
        assert_eq!(job.lock().graph.slots().count(), 1);
        assert!(!registry.looks().is_empty(), "somebody may wait for it");
        registry.nothing_ends_on("w");
        assert!(again().is_empty() && job.lock().graph.slots().next().is_none());
    }

    #[test]
    fn a_client_that_reads_when_its_job_ends_holds_nothing() {
        let registry = Registry::new(Membership::new());
        let job = registry.add(job(Granularity::Block));
        registry.sealed("w", &sealed(0, 0));
        let mut job = job.lock();
        assert!(job.graph.bind_client(Default::default()).is_some());
        let why = forebay_engine::RemoteError::new(forebay_engine::ErrorKind::Canceled, "enough");
        job.apply(Event::Canceled(why), Default::default());
        for task in 0..2 {
            job.apply(Event::TaskEnded { task: STAGE.task(task) }, Default::default());
        }
        assert!(job.still_to_stop().is_empty() && !job.graph.drains());
        (job.is_forgotten, job.end_is_told) = (true, true);
        assert!(job.is_over());
    }

    /// Nothing is written down of it, and nobody looks.
    #[test]
    fn a_block_of_what_counts_as_a_whole_changes_nothing_before_the_end() {
        for (granularity, steps) in [(Granularity::Block, 1), (Granularity::Unit, 0)] {
            let registry = Registry::new(Membership::new());
            let job = registry.add(job(granularity));
            job.lock().graph.record_steps();
            registry.sealed("w", &sealed(0, 0));
            assert_eq!(job.lock().graph.take_steps().len(), steps, "{granularity:?}");
            assert_eq!(registry.looks().take().is_some(), steps > 0, "{granularity:?}");
        }
    }
}
