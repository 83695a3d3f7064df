//! What a scheduler does for a fleet of 1,000 workers of 8 slots, over sockets and in real time. The scheduler is
//! the program, in a process of its own; workers are fakes in this one: each has a port, a control stream and
//! heartbeats as a worker has, takes tasks, and says at once that they ended and gave no rows. Only the
//! scheduler's CPU time is of interest.
//!
//! - idle: what heartbeats and watching cost
//! - lost: a tenth of the workers, at once, while all slots run tasks that do not end
//! - tasks: 100 jobs of 1,000 tasks each; memory per task is what the process grew by to its peak
//!
//! `cargo bench --bench fleet`; with `-- 100` so many workers. `benches/scale.rs` has the same in virtual time.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints its results, and one that cannot run should say why at once"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use ballista_core::serde::protobuf::executor_grpc_server::{ExecutorGrpc, ExecutorGrpcServer};
use ballista_core::serde::protobuf::executor_resource::Resource;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{
    CancelTasksParams, CancelTasksResult, ExecutorOperatingSystemSpecification,
    ExecutorRegistration, ExecutorResource, ExecutorSpecification, ExecutorStatus, HeartBeatParams,
    LaunchMultiTaskParams, LaunchMultiTaskResult, LaunchTaskParams, LaunchTaskResult,
    RegisterExecutorParams, RemoveJobDataParams, RemoveJobDataResult, StopExecutorParams,
    StopExecutorResult, SuccessfulTask, TaskStatus, UpdateTaskStatusParams, executor_status,
    task_status,
};
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionConfig;
use forebay::ForebayContext;
use forebay_scheduler::protocol::control_stream::{ControlStream, Handler, to_scheduler};
use forebay_scheduler::protocol::messages::{Hello, Inventory, Worker, to_worker};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

const WORKERS: usize = 1000;
const SLOTS: u32 = 8;
const JOBS: usize = 100;
const TASKS_PER_JOB: usize = 1000;
/// More than a worker has slots.
const ENDS_MAX: usize = 64;
/// One in so many workers is lost at once.
const LOST: usize = 10;
const IDLE_FOR: Duration = Duration::from_secs(10);
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A scheduler that uses less than this in [`LOOK_EVERY`] has nothing to do but to hear heartbeats.
const QUIET: Duration = Duration::from_millis(60);
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() {
    let given: Option<usize> = std::env::args().skip(1).find_map(|word| word.parse().ok());
    measure(given.unwrap_or(WORKERS)).await;
}

async fn measure(workers: usize) {
    let scheduler = Scheduler::start();
    let (hold, held) = watch::channel(true);
    let started = Arc::new(AtomicUsize::new(0));
    let mut fleet = vec![];
    for number in 0..workers {
        fleet.push(Fake::start(number, &scheduler.address, held.clone(), &started).await);
    }
    settle(&scheduler).await;
    let (idle, memory) = (scheduler.cpu(), scheduler.memory());
    sleep(IDLE_FOR).await;
    let idle = (scheduler.cpu() - idle).as_secs_f64() / IDLE_FOR.as_secs_f64();

    let before = scheduler.cpu();
    let jobs: Vec<_> =
        (0..JOBS).map(|_| SpawnedTask::spawn(job(scheduler.address.clone()))).collect();
    let slots = workers * SLOTS as usize;
    while started.load(Ordering::Relaxed) < slots.min(JOBS * TASKS_PER_JOB) {
        sleep(LOOK_EVERY).await;
    }
    settle(&scheduler).await;
    let (losing, begun) = (scheduler.cpu(), Instant::now());
    drop(fleet.split_off(workers - workers / LOST));
    settle(&scheduler).await;
    let (lost, for_s) = ((scheduler.cpu() - losing).as_secs_f64(), begun.elapsed().as_secs_f64());
    // What it would have used without a loss.
    let lost = (lost - idle * for_s).max(0.0);

    hold.send_replace(false);
    for job in jobs {
        assert_eq!(job.await.unwrap(), 0, "a job whose tasks give no rows");
    }
    let took = (scheduler.cpu() - before).as_secs_f64();
    let tasks = started.load(Ordering::Relaxed);
    println!(
        "{{\"name\": \"scheduler over sockets, {workers} workers of {SLOTS} slots, {JOBS} jobs\", \"tasks\": {tasks}, \
         \"cpu_ms_per_task\": {:.3}, \"cpu_idle\": {idle:.3}, \"workers_lost\": {}, \"cpu_s_of_the_loss\": {lost:.2}, \
         \"bytes_per_task\": {}}}",
        1000.0 * took / tasks as f64,
        workers / LOST,
        (scheduler.peak_memory() - memory) / tasks as u64,
    );
}

/// A query of many tasks. Gives its rows.
async fn job(scheduler: String) -> usize {
    let config = SessionConfig::new().with_target_partitions(TASKS_PER_JOB);
    let session = ForebayContext::builder().with_config(config).connect(&scheduler).await.unwrap();
    let part = |at: usize| {
        let ids = Int64Array::from_iter_values([at as i64]);
        vec![RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).unwrap()]
    };
    let parts: Vec<_> = (0..TASKS_PER_JOB).map(part).collect();
    let table = MemTable::try_new(parts[0][0].schema(), parts).unwrap();
    session.session().register_table("t", Arc::new(table)).unwrap();
    // Of outputs that nobody knows yet, all slots' are to have room.
    let budget = format!("SET forebay.edge_budget = {}", 1_u64 << 50);
    session.sql(&budget).await.unwrap().collect().await.unwrap();
    let rows = session.sql("SELECT id FROM t WHERE id >= 0").await.unwrap();
    rows.collect().await.unwrap().iter().map(RecordBatch::num_rows).sum()
}

/// Waits until nothing happens.
async fn settle(scheduler: &Scheduler) {
    loop {
        let before = scheduler.cpu();
        sleep(LOOK_EVERY).await;
        if scheduler.cpu() - before < QUIET {
            return;
        }
    }
}

/// The program, as a scheduler.
struct Scheduler {
    child: Child,
    address: String,
}

impl Scheduler {
    fn start() -> Self {
        let free = "127.0.0.1:0";
        let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["serve", "--bind", free, "--flight-sql", free, "--catalog"])
            .arg(std::env::temp_dir().join(format!("forebay-fleet-{}", std::process::id())))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_whitespace().last().unwrap().to_owned();
        Self { child, address }
    }

    /// CPU time of all of its threads.
    fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let behind_name = stat.rsplit_once(") ").unwrap().1;
        let fields = behind_name.split(' ').skip(11).take(2);
        // In hundredths of seconds on Linux, whatever the machine.
        Duration::from_millis(10 * fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
    }

    fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    fn peak_memory(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A worker that does nothing; gone when it is dropped.
struct Fake {
    _control: ControlStream,
    _tasks: [SpawnedTask<()>; 3],
}

impl Fake {
    async fn start(
        number: usize,
        scheduler: &str,
        held: watch::Receiver<bool>,
        started: &Arc<AtomicUsize>,
    ) -> Self {
        let id = format!("fake-{number:04}");
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = port.local_addr().unwrap();
        let (ends, ended) = mpsc::channel(ENDS_MAX);
        let tasks = Tasks { ends, started: Arc::clone(started) };
        let served = Server::builder()
            .add_service(ExecutorGrpcServer::new(tasks).max_decoding_message_size(1 << 30))
            .serve_with_incoming(TcpIncoming::from(port));
        let served = SpawnedTask::spawn(async move { served.await.unwrap() });
        let channel = Endpoint::from_shared(format!("http://{scheduler}")).unwrap();
        let channel = channel.connect().await.unwrap();
        let worker = Worker {
            id: id.clone(),
            address: address.to_string(),
            inventory: Inventory { cpus: SLOTS, memory: 16 << 30, ..Inventory::default() },
            ..Worker::default()
        };
        let (hello, lines) = (Hello::new(worker), to_scheduler());
        let control = ControlStream::open(channel.clone(), hello, lines, Deaf).await.unwrap();
        let vcores = ExecutorResource { resource: Some(Resource::Vcores(SLOTS)) };
        let registration = ExecutorRegistration {
            id: id.clone(),
            host: Some(address.ip().to_string()),
            port: u32::from(address.port()),
            grpc_port: u32::from(address.port()),
            specification: Some(ExecutorSpecification { resources: vec![vcores] }),
            os_info: Some(ExecutorOperatingSystemSpecification::default()),
            ballista_protocol_version: ballista_core::BALLISTA_PROTOCOL_VERSION,
        };
        let mut client = SchedulerGrpcClient::new(channel);
        let metadata = Some(registration.clone());
        client.register_executor(RegisterExecutorParams { metadata }).await.unwrap();
        let live = SpawnedTask::spawn(live(client.clone(), id.clone(), registration));
        let report = SpawnedTask::spawn(report(client, id, ended, held));
        Self { _control: control, _tasks: [served, live, report] }
    }
}

async fn live(
    mut scheduler: SchedulerGrpcClient<Channel>,
    executor_id: String,
    registration: ExecutorRegistration,
) {
    loop {
        let active = executor_status::Status::Active(String::new());
        let beat = HeartBeatParams {
            executor_id: executor_id.clone(),
            metrics: vec![],
            status: Some(ExecutorStatus { status: Some(active) }),
            metadata: Some(registration.clone()),
        };
        scheduler.heart_beat_from_executor(beat).await.ok();
        sleep(HEARTBEAT).await;
    }
}

/// Says that tasks ended, once they may.
async fn report(
    mut scheduler: SchedulerGrpcClient<Channel>,
    executor_id: String,
    mut ends: mpsc::Receiver<TaskStatus>,
    mut held: watch::Receiver<bool>,
) {
    let mut task_status = vec![];
    while ends.recv_many(&mut task_status, ENDS_MAX).await > 0 {
        if held.wait_for(|held| !held).await.is_err() {
            return;
        }
        for status in &mut task_status {
            status.status = Some(task_status::Status::Successful(SuccessfulTask {
                executor_id: executor_id.clone(),
                ..SuccessfulTask::default()
            }));
        }
        let executor_id = executor_id.clone();
        let task_status = std::mem::take(&mut task_status);
        scheduler
            .update_task_status(UpdateTaskStatusParams { executor_id, task_status })
            .await
            .ok();
    }
}

/// Takes tasks.
struct Tasks {
    ends: mpsc::Sender<TaskStatus>,
    started: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl ExecutorGrpc for Tasks {
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
            for task in &tasks.task_ids {
                self.started.fetch_add(1, Ordering::Relaxed);
                let end = TaskStatus {
                    task_id: task.task_id,
                    job_id: tasks.job_id.clone(),
                    stage_id: tasks.stage_id,
                    stage_attempt_num: tasks.stage_attempt_num,
                    launch_time: tasks.launch_time,
                    ..TaskStatus::default()
                };
                self.ends.send(end).await.ok();
            }
        }
        Ok(Response::new(LaunchMultiTaskResult { failed_jobs: vec![] }))
    }

    async fn stop_executor(
        &self,
        _: Request<StopExecutorParams>,
    ) -> Result<Response<StopExecutorResult>, Status> {
        Ok(Response::new(StopExecutorResult {}))
    }

    async fn cancel_tasks(
        &self,
        _: Request<CancelTasksParams>,
    ) -> Result<Response<CancelTasksResult>, Status> {
        Ok(Response::new(CancelTasksResult { cancelled: true }))
    }

    async fn remove_job_data(
        &self,
        _: Request<RemoveJobDataParams>,
    ) -> Result<Response<RemoveJobDataResult>, Status> {
        Ok(Response::new(RemoveJobDataResult {}))
    }
}

/// Does nothing that the scheduler says: a fake has no blocks.
struct Deaf;

#[tonic::async_trait]
impl Handler for Deaf {
    async fn handle(&self, _: to_worker::Say) {}
}
