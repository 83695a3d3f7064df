//! The scheduler's process.

use std::net::SocketAddr;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::error::BallistaError;
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::protobuf::ExecutorStoppedParams;
use ballista_core::serde::protobuf::scheduler_grpc_server::{SchedulerGrpc, SchedulerGrpcServer};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::create_scheduler;
use ballista_scheduler::scheduler_server::SchedulerServer;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Request;
use tonic::transport::Server;

use super::jobs::BallistaJobs;
use super::session;
use crate::rpc::ClusterServer;
use crate::rpc::service::{Attendance, ClusterService};

pub(super) type Ballista = SchedulerServer<LogicalPlanNode, PhysicalPlanNode>;

/// Losses of workers that wait to be told to Ballista.
const LOSSES_MAX: usize = 1024;

/// Jobs without a client that wait to be cancelled.
const ABANDONED_MAX: usize = 65_536;

/// A scheduler that listens.
#[derive(Debug)]
pub struct Scheduler {
    address: SocketAddr,
    attendance: Attendance,
    _serving: Vec<SpawnedTask<()>>,
}

impl Scheduler {
    /// Starts a scheduler at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub async fn start(address: SocketAddr, runtime: Arc<RuntimeEnv>) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| exec_datafusion_err!("cannot listen on {address}: {error}"))?;
        let address = listener.local_addr()?;
        let config = Arc::new(config(address, Arc::clone(&runtime)));
        let cluster = BallistaCluster::new_from_config(&config).await.map_err(BallistaError::into_datafusion)?;
        let scheduler: Ballista = create_scheduler(cluster, config).await.map_err(BallistaError::into_datafusion)?;
        let attendance = Attendance::new();
        let (lost, losses) = mpsc::channel(LOSSES_MAX);
        attendance.on_lost(Arc::new(move |id| {
            if let Err(error) = lost.try_send(id) {
                log::warn!("a loss is noticed by its heartbeats only: {error}");
            }
        }));
        let (abandoned, orphans) = mpsc::channel(ABANDONED_MAX);
        let cancelling = SpawnedTask::spawn(cancel(scheduler.clone(), orphans));
        let jobs = Arc::new(BallistaJobs::new(scheduler.clone(), runtime, abandoned));
        let telling = SpawnedTask::spawn(tell_losses(scheduler.clone(), losses));
        let limit = session::MESSAGE_BYTES as usize;
        let server = Server::builder()
            .tcp_nodelay(true)
            .add_service(
                SchedulerGrpcServer::new(scheduler)
                    .max_decoding_message_size(limit)
                    .max_encoding_message_size(limit),
            )
            .add_service(
                ClusterServer::new(ClusterService::new(attendance.clone(), jobs))
                    .max_decoding_message_size(limit)
                    .max_encoding_message_size(limit),
            )
            .serve_with_incoming(TcpListenerStream::new(listener));
        let serving = SpawnedTask::spawn(async move {
            if let Err(error) = server.await {
                log::error!("the scheduler's port closed: {error}");
            }
        });
        Ok(Self { address, attendance, _serving: vec![serving, telling, cancelling] })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The workers that attend.
    pub fn attendance(&self) -> &Attendance {
        &self.attendance
    }
}

/// Ballista hears of a worker's end from its line, long before heartbeats are missed.
async fn tell_losses(scheduler: Ballista, mut losses: mpsc::Receiver<String>) {
    while let Some(executor_id) = losses.recv().await {
        let reason = "its line to the scheduler broke".to_owned();
        let params = ExecutorStoppedParams { executor_id, reason };
        if let Err(error) = scheduler.executor_stopped(Request::new(params)).await {
            log::warn!("a worker's loss: {error}");
        }
    }
}

async fn cancel(scheduler: Ballista, mut orphans: mpsc::Receiver<JobId>) {
    while let Some(job) = orphans.recv().await {
        if let Err(error) = scheduler.cancel_job(job).await {
            log::warn!("a job without a client: {error}");
        }
    }
}

fn config(address: SocketAddr, runtime: Arc<RuntimeEnv>) -> SchedulerConfig {
    SchedulerConfig {
        external_host: address.ip().to_string(),
        bind_host: address.ip().to_string(),
        bind_port: address.port(),
        scheduling_policy: TaskSchedulingPolicy::PushStaged,
        executor_timeout_seconds: 10,
        expire_dead_executor_interval_seconds: 1,
        no_executors_grace_period_seconds: 10,
        override_physical_codec: Some(session::physical_codec()),
        override_config_producer: Some(Arc::new(|| {
            session::config().with_ballista_adaptive_query_planner(false)
        })),
        override_session_builder: Some(Arc::new(move |config| {
            let state = session::decoding_state(Arc::clone(&runtime));
            Ok(datafusion::execution::session_state::SessionStateBuilder::new_from_existing(state)
                .with_config(config)
                .build())
        })),
        grpc_server_max_decoding_message_size: session::MESSAGE_BYTES,
        grpc_server_max_encoding_message_size: session::MESSAGE_BYTES,
        grpc_client_max_message_size: session::MESSAGE_BYTES,
        ..SchedulerConfig::default()
    }
}
