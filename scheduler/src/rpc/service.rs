//! The scheduler's side: who attends, and what they have.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use parking_lot::RwLock;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::Answers;
use super::generated::cluster_server::Cluster;
use super::messages::{
    ClusterDescription, DescribeRequest, FromWorker, PROTOCOL, RunRequest, RunUpdate, ToWorker,
    Welcome, Worker, from_worker, to_worker,
};

/// Told when a worker's line breaks: its process is gone, or unreachable.
pub type OnLost = Arc<dyn Fn(String) + Send + Sync>;

/// The workers that attend.
#[derive(Clone, Default)]
pub struct Attendance {
    workers: Arc<RwLock<BTreeMap<String, Worker>>>,
    on_lost: Arc<RwLock<Option<OnLost>>>,
}

impl Attendance {
    /// Nobody yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `on_lost` with the id of each worker whose line breaks from now on.
    pub fn on_lost(&self, on_lost: OnLost) {
        *self.on_lost.write() = Some(on_lost);
    }

    /// Who attends, in the order of their ids.
    pub fn workers(&self) -> Vec<Worker> {
        self.workers.read().values().cloned().collect()
    }

    /// Whether a worker attends.
    pub fn has(&self, id: &str) -> bool {
        self.workers.read().contains_key(id)
    }

    fn hear(&self, id: &str, message: FromWorker) {
        match message.say {
            Some(from_worker::Say::Draining(_)) => {
                if let Some(worker) = self.workers.write().get_mut(id) {
                    worker.draining = true;
                }
            }
            Some(from_worker::Say::Hello(_)) | None => {}
        }
    }

    fn leave(&self, id: &str) {
        if self.workers.write().remove(id).is_some()
            && let Some(on_lost) = self.on_lost.read().as_ref()
        {
            on_lost(id.to_owned());
        }
    }
}

impl fmt::Debug for Attendance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attendance").field("workers", &self.workers).finish_non_exhaustive()
    }
}

/// Takes a worker off the list when its line ends, however it ends.
struct Attending {
    attendance: Attendance,
    id: String,
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.attendance.leave(&self.id);
    }
}

/// Runs plans.
#[tonic::async_trait]
pub trait Jobs: Send + Sync + 'static {
    /// Runs a plan until its rows are there, it failed, or the answer is dropped.
    ///
    /// # Errors
    /// If the plan cannot be read.
    async fn run(&self, request: RunRequest) -> Result<Answers<RunUpdate>, Status>;
}

/// Answers workers and clients.
#[derive(Clone)]
pub struct ClusterService {
    attendance: Attendance,
    jobs: Arc<dyn Jobs>,
}

impl ClusterService {
    /// Keeps `attendance` and gives plans to `jobs`.
    pub fn new(attendance: Attendance, jobs: Arc<dyn Jobs>) -> Self {
        Self { attendance, jobs }
    }
}

impl fmt::Debug for ClusterService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterService").finish_non_exhaustive()
    }
}

/// Refuses peers of another protocol.
fn check_protocol(who: &str, protocol: u32, version: &str) -> Result<(), Status> {
    if protocol == PROTOCOL {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "{who} speaks protocol {protocol} (forebay {version}), this scheduler {PROTOCOL} (forebay \
         {}); run the same version on all machines",
        env!("CARGO_PKG_VERSION")
    )))
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<ClusterDescription>, Status> {
        Ok(Response::new(ClusterDescription { workers: self.attendance.workers() }))
    }

    type RunStream = Answers<RunUpdate>;

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<Self::RunStream>, Status> {
        let request = request.into_inner();
        check_protocol("this client", request.protocol, &request.version)?;
        Ok(Response::new(self.jobs.run(request).await?))
    }

    type AttendStream = Answers<ToWorker>;

    async fn attend(
        &self,
        request: Request<Streaming<FromWorker>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let mut messages = request.into_inner();
        let first = messages.message().await?.and_then(|message| message.say);
        let Some(from_worker::Say::Hello(hello)) = first else {
            return Err(Status::invalid_argument("a worker's first message says hello"));
        };
        let who = format!("worker {}", hello.worker.id);
        check_protocol(&who, hello.protocol, &hello.version)?;
        let id = hello.worker.id.clone();
        let attendance = self.attendance.clone();
        attendance.workers.write().insert(id.clone(), hello.worker);
        let attending = Attending { attendance: attendance.clone(), id: id.clone() };
        let (out, answers) = mpsc::channel(64);
        let welcome = Welcome { version: env!("CARGO_PKG_VERSION").to_owned() };
        out.send(Ok(ToWorker { say: Some(to_worker::Say::Welcome(welcome)) })).await.ok();
        // Part of the answer: it ends, and the worker is off the list, with the connection.
        let listen = async move {
            let (_attending, _out) = (attending, out);
            while let Ok(Some(message)) = messages.message().await {
                attendance.hear(&id, message);
            }
        };
        Ok(Response::new(Box::pin(ReceiverStream::new(answers).take_until(Box::pin(listen)))))
    }
}
