//! Takes tasks from the scheduler, runs them, says how they ended, and that this worker lives.
//!
//! Ballista's own server for this opens a port of its own, which cannot be encrypted; this one is
//! a service among others on the worker's port, and answers by the connection that the worker has
//! to its scheduler.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use backon::{ConstantBuilder, Retryable};
use ballista_core::error::BallistaError;
use ballista_core::serde::protobuf::executor_grpc_server::ExecutorGrpc;
use ballista_core::serde::protobuf::{
    CancelTasksParams, CancelTasksResult, ExecutorStatus, FailedTask, HeartBeatParams,
    LaunchMultiTaskParams, LaunchMultiTaskResult, LaunchTaskParams, LaunchTaskResult,
    MultiTaskDefinition, OperatorMetricsSet, RemoveJobDataParams, RemoveJobDataResult,
    ShuffleWritePartition, StopExecutorParams, StopExecutorResult, SuccessfulTask, TaskStatus,
    UpdateTaskStatusParams, executor_status, task_status,
};
use ballista_core::serde::scheduler::from_proto::get_task_definition_vec;
use ballista_core::serde::scheduler::{TaskDefinition, TaskKey};
use ballista_executor::execution_engine::ExecutionEngine;
use ballista_executor::executor::Executor;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use forebay_engine::InferenceExec;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::{Instrument, Span};

use crate::ballista::session;
use crate::block::BlockStore;
use crate::no_panic::no_panic;
use crate::protocol::messages::{self, TaskName};
use crate::protocol::schedulers::Schedulers;
use crate::worker::account::Account;
use crate::worker::engine::TaskEngine;

/// Ends of tasks that wait to be reported.
const REPORTS_MAX: usize = 65_536;

/// The pauses before the scheduler is told again what it did not hear, as often as it takes.
const REPORT_AGAIN: ConstantBuilder =
    ConstantBuilder::new().with_delay(Duration::from_secs(1)).without_max_times();

/// How often a worker says that it lives; the broken line says sooner that it does not.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Threads for tasks alone: what answers others must not wait for them. Those that feed an
/// accelerator have threads of their own: with all cores busy it must not wait either.
#[derive(Debug)]
pub(crate) struct TaskThreads {
    plain: Threads,
    accelerated: Threads,
}

impl TaskThreads {
    /// As many as there are cores, and as many as there are accelerators.
    pub(crate) fn start(inventory: &messages::Inventory) -> Result<Self> {
        Ok(Self {
            plain: Threads::start("task", inventory.cpus as usize)?,
            accelerated: Threads::start("accelerated", inventory.accelerators.len())?,
        })
    }
}

/// Threads that end when it is dropped, wherever that is.
#[derive(Debug)]
struct Threads {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl Threads {
    fn start(name: &str, number: usize) -> Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.enable_all().thread_name(name).worker_threads(number.max(1));
        let runtime = builder.build().map_err(|error| {
            exec_datafusion_err!("no threads for tasks could be started: {error}")
        })?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Waits for nobody: a task may be in the middle of a batch.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whether a model of this plan runs on an accelerator.
fn is_accelerated(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let inference = plan.downcast_ref::<InferenceExec>();
    inference.is_some_and(|inference| inference.placement().is_accelerated())
        || plan.children().into_iter().any(is_accelerated)
}

/// What the scheduler may ask of a worker.
#[derive(Clone)]
pub(crate) struct TaskService {
    executor: Arc<Executor>,
    engine: Arc<TaskEngine>,
    store: Arc<BlockStore>,
    account: Arc<Account>,
    plain: Handle,
    accelerated: Handle,
    reports: mpsc::Sender<TaskStatus>,
    stop: mpsc::Sender<String>,
}

impl TaskService {
    /// Runs tasks on `threads`. Their ends come out of the answer, to be reported; `stop` is told
    /// if the scheduler wants no more of this worker.
    pub(crate) fn new(
        executor: Arc<Executor>,
        engine: Arc<TaskEngine>,
        store: Arc<BlockStore>,
        account: Arc<Account>,
        threads: &TaskThreads,
        stop: mpsc::Sender<String>,
    ) -> (Self, mpsc::Receiver<TaskStatus>) {
        let (reports, ends) = mpsc::channel(REPORTS_MAX);
        let (plain, accelerated) =
            (threads.plain.handle.clone(), threads.accelerated.handle.clone());
        (Self { executor, engine, store, account, plain, accelerated, reports, stop }, ends)
    }

    /// Where ends of tasks go that are to be reported again.
    pub(crate) fn reports(&self) -> mpsc::Sender<TaskStatus> {
        self.reports.clone()
    }

    /// A task has ended so.
    async fn ended(&self, report: TaskStatus) {
        self.account.ends(&report);
        // If nobody reports any more, nobody waits for it.
        self.reports.send(report).await.ok();
    }

    fn decode(&self, tasks: MultiTaskDefinition) -> Result<Vec<TaskDefinition>> {
        let functions = &self.executor.function_registry;
        let stores = self.executor.produce_runtime(&self.executor.produce_config())?;
        let tasks = get_task_definition_vec(
            tasks,
            Arc::clone(&self.executor.runtime_producer),
            self.executor.produce_config(),
            functions.scalar_functions.clone(),
            functions.aggregate_functions.clone(),
            functions.window_functions.clone(),
            functions.higher_order_functions.clone(),
            session::codec(stores),
        );
        tasks.map_err(BallistaError::into_datafusion)
    }

    /// Reports tasks that cannot be read, with the reason.
    async fn refuse(&self, tasks: MultiTaskDefinition, error: &DataFusionError) {
        let problem = format!(
            "worker {} cannot read the plan of stage {}: {}; all processes of a cluster need \
             the same version and the same functions",
            self.executor.metadata.id,
            tasks.stage_id,
            error.strip_backtrace()
        );
        for task in tasks.task_ids {
            let ended = Err(BallistaError::General(problem.clone()));
            let report = TaskStatus {
                task_id: task.task_id,
                job_id: tasks.job_id.clone(),
                stage_id: tasks.stage_id,
                stage_attempt_num: tasks.stage_attempt_num,
                launch_time: tasks.launch_time,
                status: Some(self.status(ended)),
                ..TaskStatus::default()
            };
            self.ended(report).await;
        }
    }

    fn start(&self, task: TaskDefinition) {
        let service = self.clone();
        let threads = if is_accelerated(&task.plan) { &self.accelerated } else { &self.plain };
        let span = self.span(&task);
        let canceled = self.account.begins(TaskName {
            job: task.job_id.to_string(),
            stage: task.stage_id as u32,
            task: task.task_id as u32,
        });
        let run = async move {
            let ended = service.run(task, canceled).await;
            service.ended(ended).await;
        };
        threads.spawn(run.instrument(span));
    }

    /// What everything belongs to that a task says. Of the highest level, so that warnings have it.
    fn span(&self, task: &TaskDefinition) -> Span {
        tracing::error_span!(
            "task",
            job = %task.job_id,
            stage = task.stage_id,
            task = task.task_id,
            attempt = task.task_attempt_num,
            worker = %self.executor.metadata.id,
        )
    }

    async fn run(&self, task: TaskDefinition, canceled: Option<CancellationToken>) -> TaskStatus {
        let name = format!(
            "{}/{}.{}/{}.{}",
            task.job_id, task.stage_id, task.stage_attempt_num, task.task_id, task.task_attempt_num
        );
        tracing::info!("Execute task");
        let (stage_attempt_num, launch_time) = (task.stage_attempt_num as u32, task.launch_time);
        let key =
            TaskKey { job_id: task.job_id.clone(), stage_id: task.stage_id, task_id: task.task_id };
        let start_exec_time = now_ms();
        let ended = match canceled {
            Some(canceled) => self.execute(task, key.clone(), &name, canceled).await,
            None => Ok((Err(BallistaError::Cancelled), vec![])),
        };
        let (ended, metrics) = ended.unwrap_or_else(|error| (Err(error.into()), vec![]));
        tracing::info!("Finished task");
        TaskStatus {
            task_id: key.task_id as u32,
            job_id: key.job_id.into(),
            stage_id: key.stage_id as u32,
            stage_attempt_num,
            launch_time,
            start_exec_time,
            end_exec_time: now_ms(),
            metrics,
            status: Some(self.status(ended)),
        }
    }

    /// How a task ended that could be started, and what was measured.
    async fn execute(
        &self,
        task: TaskDefinition,
        key: TaskKey,
        name: &str,
        canceled: CancellationToken,
    ) -> Result<Ended> {
        // The scheduler waits for the end of each task: a panic must not take it along.
        let stage = no_panic(|| {
            self.engine.create_query_stage_exec(
                task.job_id,
                task.stage_id,
                task.task_id,
                task.global_output_partition_ids,
                task.plan,
                &self.executor.work_dir,
                &task.session_config,
            )
        })?;
        let runtime = self.executor.produce_runtime(&task.session_config)?;
        let functions = task.function_registry;
        let context = TaskContext::new(
            Some(name.to_owned()),
            task.session_id,
            task.session_config,
            functions.scalar_functions.clone(),
            functions.higher_order_functions.clone(),
            functions.aggregate_functions.clone(),
            functions.window_functions.clone(),
            runtime,
        );
        let context = Arc::new(context);
        let run = self.executor.execute_query_stage(key.clone(), Arc::clone(&stage), context);
        let mut run = pin!(run);
        let ended = tokio::select! {
            // The task is known to be stopped by once it has been polled.
            biased;
            ended = &mut run => ended,
            () = canceled.cancelled() => {
                let stopped = self.executor.cancel_task(key.job_id, key.stage_id, key.task_id).await;
                stopped.map_err(BallistaError::into_datafusion)?;
                run.await
            }
        };
        let metrics = stage.collect_plan_metrics().into_iter();
        let metrics: Result<Vec<OperatorMetricsSet>, BallistaError> =
            metrics.map(TryInto::try_into).collect();
        Ok((ended, metrics.unwrap_or_default()))
    }

    fn status(
        &self,
        ended: Result<Vec<ShuffleWritePartition>, BallistaError>,
    ) -> task_status::Status {
        match ended {
            Ok(partitions) => task_status::Status::Successful(SuccessfulTask {
                executor_id: self.executor.metadata.id.clone(),
                partitions,
                ..SuccessfulTask::default()
            }),
            Err(error) => {
                tracing::info!("failed: {error}");
                task_status::Status::Failed(FailedTask::from(error))
            }
        }
    }
}

type Ended = (Result<Vec<ShuffleWritePartition>, BallistaError>, Vec<OperatorMetricsSet>);

impl fmt::Debug for TaskService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskService").finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl ExecutorGrpc for TaskService {
    async fn launch_task(
        &self,
        _: Request<LaunchTaskParams>,
    ) -> Result<Response<LaunchTaskResult>, Status> {
        Err(Status::unimplemented("tasks are launched several at a time"))
    }

    async fn launch_multi_task(
        &self,
        request: Request<LaunchMultiTaskParams>,
    ) -> Result<Response<LaunchMultiTaskResult>, Status> {
        for tasks in request.into_inner().multi_tasks {
            // Their plan is the largest part of them, and is not needed to say that they failed.
            let told = MultiTaskDefinition {
                task_ids: tasks.task_ids.clone(),
                job_id: tasks.job_id.clone(),
                stage_id: tasks.stage_id,
                stage_attempt_num: tasks.stage_attempt_num,
                launch_time: tasks.launch_time,
                ..MultiTaskDefinition::default()
            };
            match no_panic(|| self.decode(tasks)) {
                Ok(tasks) => tasks.into_iter().for_each(|task| self.start(task)),
                Err(error) => self.refuse(told, &error).await,
            }
        }
        Ok(Response::new(LaunchMultiTaskResult { failed_jobs: vec![] }))
    }

    async fn stop_executor(
        &self,
        request: Request<StopExecutorParams>,
    ) -> Result<Response<StopExecutorResult>, Status> {
        let request = request.into_inner();
        if request.executor_id == self.executor.metadata.id {
            self.stop.try_send(request.reason).ok();
        }
        Ok(Response::new(StopExecutorResult {}))
    }

    async fn cancel_tasks(
        &self,
        request: Request<CancelTasksParams>,
    ) -> Result<Response<CancelTasksResult>, Status> {
        for info in request.into_inner().task_infos {
            let (job, stage, task) = (info.job_id, info.stage_id, info.task_id);
            self.account.cancels(TaskName { job, stage, task });
        }
        Ok(Response::new(CancelTasksResult { cancelled: true }))
    }

    async fn remove_job_data(
        &self,
        request: Request<RemoveJobDataParams>,
    ) -> Result<Response<RemoveJobDataResult>, Status> {
        let request = request.into_inner();
        match request.remove_stage_ids.as_slice() {
            [] => self.store.remove_job(&request.job_id),
            stages => self.store.remove_stages(&request.job_id, stages),
        }
        Ok(Response::new(RemoveJobDataResult {}))
    }
}

/// Tells the scheduler how tasks ended, many at a time.
pub(crate) async fn report(
    schedulers: Arc<Schedulers>,
    executor_id: String,
    mut ends: mpsc::Receiver<TaskStatus>,
    account: Arc<Account>,
) {
    let mut task_status = vec![];
    while ends.recv_many(&mut task_status, REPORTS_MAX).await > 0 {
        let executor_id = executor_id.clone();
        let params =
            UpdateTaskStatusParams { executor_id, task_status: std::mem::take(&mut task_status) };
        let tell = || {
            let (schedulers, params) = (Arc::clone(&schedulers), params.clone());
            let account = Arc::clone(&account);
            async move {
                // One that does not know this worker would not listen.
                account.until_attached().await;
                session::scheduler(schedulers.channel()).update_task_status(params).await
            }
        };
        // It would wait for these tasks for ever. If it is gone, so is the line: this ends too, or its
        // successor is told.
        let told = tell.retry(REPORT_AGAIN).notify(|status, _| {
            tracing::warn!(
                "the scheduler did not hear how tasks ended: {status}; it is told again"
            );
        });
        told.await.ok();
    }
}

/// Tells the scheduler that this worker lives.
pub(crate) async fn live(
    schedulers: Arc<Schedulers>,
    executor: Arc<Executor>,
    account: Arc<Account>,
) {
    let mut ticks = tokio::time::interval(HEARTBEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        account.until_attached().await;
        let active = executor_status::Status::Active(String::new());
        let params = HeartBeatParams {
            executor_id: executor.metadata.id.clone(),
            metrics: vec![],
            status: Some(ExecutorStatus { status: Some(active) }),
            metadata: Some(executor.metadata.clone()),
        };
        let mut scheduler = session::scheduler(schedulers.channel());
        if let Err(status) = scheduler.heart_beat_from_executor(params).await {
            tracing::warn!("the scheduler did not hear that this worker lives: {status}");
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
