//! The scheduler's side: what workers and clients are answered.

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::Answers;
use super::generated::cluster_server::Cluster;
use super::membership::Membership;
use super::messages::{
    self, Analysis, AnalyzeRequest, ClusterDescription, DealtAnswer, DealtRequest, DescribeRequest,
    FromWorker, Hello, ReadAnswer, ReadRequest, RunRequest, RunUpdate, TableRequest, TableRows,
    ToWorker, Welcome, from_worker,
};
use crate::journal::StateId;

/// Bytes of the id of a worker, which is written down.
const WORKER_ID_MAX: usize = 256;

/// What runs plans, and knows of those that ran.
#[tonic::async_trait]
pub trait Jobs: Send + Sync + 'static {
    /// Runs a plan until its rows are read, it failed, or the answer is dropped.
    ///
    /// # Errors
    /// If the plan cannot be read.
    async fn run(&self, request: RunRequest) -> Result<Answers<RunUpdate>, Status>;

    /// What the client of a job reads next, once there is something.
    ///
    /// # Errors
    /// If there is no such job, or none any more.
    async fn read(&self, request: ReadRequest) -> Result<ReadAnswer, Status>;

    /// What a task that began early reads next, once there is something.
    ///
    /// # Errors
    /// If it does not run.
    async fn dealt(&self, request: DealtRequest) -> Result<DealtAnswer, Status>;

    /// The rows of a system table.
    ///
    /// # Errors
    /// If there is no such table.
    async fn table(&self, request: TableRequest) -> Result<TableRows, Status>;

    /// What was measured of a job.
    ///
    /// # Errors
    /// If there is no such job, or no more.
    async fn analyze(&self, job: &str) -> Result<Analysis, Status>;
}

/// Answers workers and clients.
#[derive(Clone)]
pub struct ClusterService {
    membership: Membership,
    jobs: Arc<dyn Jobs>,
    tenure: Tenure,
}

/// Of whom the scheduler is the successor, and what is to be done should it be gone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tenure {
    /// The state of which it has the journal, if it has one.
    pub state: Option<StateId>,
    /// Greater than that of every scheduler before it that had the same journal; 0 if it has none.
    pub term: u64,
    /// For how many milliseconds workers and clients are to wait for a successor.
    pub patience_ms: u64,
}

impl Tenure {
    /// The id of the state, or nothing.
    pub(crate) fn state(self) -> String {
        self.state.map(|id| id.to_string()).unwrap_or_default()
    }

    fn welcome(self) -> Welcome {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let (term, patience_ms, state) = (self.term, self.patience_ms, self.state());
        Welcome { version, term, patience_ms, state }
    }

    /// Whether a worker that comes from another scheduler may attend here.
    fn check(self, hello: &Hello) -> Result<(), Status> {
        match hello.term {
            0 => Ok(()),
            _ if self.term == 0 => Err(Status::not_found(
                "this scheduler has no journal, and knows nothing of what the worker did before",
            )),
            _ if hello.state != self.state() => Err(Status::not_found(messages::is_no_successor(
                &self.state(),
                "the worker",
                &hello.state,
            ))),
            term if term == self.term => {
                Err(Status::aborted("the line broke, and the worker counts as lost"))
            }
            term if term > self.term => Err(Status::unavailable(format!(
                "this scheduler's term {} is over: there has been one of term {term}",
                self.term
            ))),
            _ => Ok(()),
        }
    }
}

impl ClusterService {
    /// Keeps `membership` and gives plans to `jobs`.
    pub fn new(membership: Membership, jobs: Arc<dyn Jobs>) -> Self {
        Self { membership, jobs, tenure: Tenure::default() }
    }

    /// The same of a scheduler with a journal.
    pub fn with_tenure(mut self, tenure: Tenure) -> Self {
        self.tenure = tenure;
        self
    }
}

impl fmt::Debug for ClusterService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterService").finish_non_exhaustive()
    }
}

/// Refuses peers of another protocol.
fn check_protocol(who: &str, protocol: u32, version: &str) -> Result<(), Status> {
    messages::check_protocol(who, protocol, version, "this scheduler")
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn describe(
        &self,
        request: Request<DescribeRequest>,
    ) -> Result<Response<ClusterDescription>, Status> {
        let request = request.into_inner();
        check_protocol("this client", request.protocol, &request.version)?;
        self.membership.confirm().await?;
        Ok(Response::new(ClusterDescription { workers: self.membership.workers() }))
    }

    type RunStream = Answers<RunUpdate>;

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<Self::RunStream>, Status> {
        let request = request.into_inner();
        check_protocol("this client", request.protocol, &request.version)?;
        self.membership.confirm().await?;
        Ok(Response::new(self.jobs.run(request).await?))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadAnswer>, Status> {
        let request = request.into_inner();
        check_protocol("this client", request.protocol, &request.version)?;
        self.membership.confirm().await?;
        Ok(Response::new(self.jobs.read(request).await?))
    }

    async fn dealt(&self, request: Request<DealtRequest>) -> Result<Response<DealtAnswer>, Status> {
        let request = request.into_inner();
        check_protocol("this worker", request.protocol, &request.version)?;
        self.membership.confirm().await?;
        Ok(Response::new(self.jobs.dealt(request).await?))
    }

    async fn table(&self, request: Request<TableRequest>) -> Result<Response<TableRows>, Status> {
        let request = request.into_inner();
        check_protocol("this client", request.protocol, &request.version)?;
        self.membership.confirm().await?;
        Ok(Response::new(self.jobs.table(request).await?))
    }

    async fn analyze(
        &self,
        request: Request<AnalyzeRequest>,
    ) -> Result<Response<Analysis>, Status> {
        let request = request.into_inner();
        check_protocol("this client", request.protocol, &request.version)?;
        self.membership.confirm().await?;
        Ok(Response::new(self.jobs.analyze(&request.job).await?))
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
        self.membership.confirm().await?;
        self.tenure.check(&hello)?;
        let id = &hello.worker.id;
        if id.is_empty() || id.len() > WORKER_ID_MAX {
            return Err(Status::invalid_argument(format!(
                "the id of a worker has {} bytes, expected 1 to {WORKER_ID_MAX}",
                id.len()
            )));
        }
        let holds = (hello.term > 0).then_some(hello.holds);
        let welcome = self.tenure.welcome();
        let (presence, answers) = self.membership.enter(hello.worker, holds, welcome);
        // Part of the answer: it ends, and the worker is off the list, with the connection.
        let listen = presence.listen(messages);
        Ok(Response::new(Box::pin(ReceiverStream::new(answers).take_until(Box::pin(listen)))))
    }
}

#[cfg(test)]
pub(crate) use tests::NoJobs;

#[cfg(test)]
mod tests {
    use datafusion::common::runtime::SpawnedTask;
    use parking_lot::RwLock;
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::transport::{Channel, Server};

    use super::*;
    use crate::protocol::control_stream::{ControlStream, Handler, to_scheduler};
    use crate::protocol::membership::News;
    use crate::protocol::messages::{Inventory, PROTOCOL, Worker, to_worker};
    use crate::protocol::{ClusterClient, ClusterServer};

    pub(crate) struct NoJobs;

    #[tonic::async_trait]
    impl Jobs for NoJobs {
        async fn run(&self, _: RunRequest) -> Result<Answers<RunUpdate>, Status> {
            Err(Status::unimplemented("no jobs"))
        }

        async fn read(&self, _: ReadRequest) -> Result<ReadAnswer, Status> {
            Err(Status::unimplemented("no jobs"))
        }

        async fn dealt(&self, _: DealtRequest) -> Result<DealtAnswer, Status> {
            Err(Status::unimplemented("no jobs"))
        }

        async fn table(&self, _: TableRequest) -> Result<TableRows, Status> {
            Err(Status::unimplemented("no jobs"))
        }

        async fn analyze(&self, _: &str) -> Result<Analysis, Status> {
            Err(Status::unimplemented("no jobs"))
        }
    }

    struct Deaf;

    #[tonic::async_trait]
    impl Handler for Deaf {
        async fn handle(&self, _: to_worker::Say) {}
    }

    /// A scheduler, for as long as the task is held.
    async fn serve(membership: &Membership) -> (Channel, SpawnedTask<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = ClusterService::new(membership.clone(), Arc::new(NoJobs));
        let server = Server::builder()
            .add_service(ClusterServer::new(service))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let serving = SpawnedTask::spawn(async move { server.await.unwrap() });
        let channel = Channel::from_shared(format!("http://{address}")).unwrap();
        (channel.connect().await.unwrap(), serving)
    }

    fn worker(id: &str) -> Worker {
        let inventory = Inventory { cpus: 1, memory: 1, ..Inventory::default() };
        Worker {
            id: id.to_owned(),
            address: String::new(),
            inventory,
            draining: false,
            busy_milli: 0,
        }
    }

    #[tokio::test]
    async fn a_worker_of_another_protocol_is_refused_and_both_are_named() {
        let membership = Membership::new();
        let (channel, _serving) = serve(&membership).await;
        let version = "9.9.9".to_owned();
        let hello = Hello { protocol: PROTOCOL + 1, version, ..Hello::new(worker("w")) };
        let hello = FromWorker { say: Some(from_worker::Say::Hello(hello)) };
        let refused = ClusterClient::new(channel).attend(futures::stream::iter([hello])).await;
        let message = refused.unwrap_err().message().to_owned();
        let both = [
            format!("protocol {} (forebay 9.9.9)", PROTOCOL + 1),
            format!("scheduler {PROTOCOL} ("),
        ];
        assert!(both.iter().all(|part| message.contains(part)), "{message}");
        assert!(message.contains(env!("CARGO_PKG_VERSION")), "{message}");
        assert_eq!(membership.workers(), []);
    }

    #[tokio::test]
    async fn workers_of_an_earlier_term_are_let_in_and_others_are_told_what_is_wrong() {
        let (state, other) = (StateId::new(), StateId::new());
        let refused_of = |own: u64, term: u64, of: StateId| {
            let hello = Hello { term, state: of.to_string(), ..Hello::new(worker("w")) };
            let tenure = Tenure { state: (own > 0).then_some(state), term: own, patience_ms: 1 };
            tenure
                .check(&hello)
                .err()
                .map(|status| format!("{:?} {}", status.code(), status.message()))
        };
        let refused = |own, term| refused_of(own, term, state);
        for (own, term) in [(0, 0), (3, 0), (3, 2)] {
            assert_eq!(refused(own, term), None);
        }
        for term in [2, 3, 4] {
            let refused = refused_of(3, term, other).unwrap();
            let both = [state, other].map(|id| id.to_string());
            assert!(refused.starts_with("NotFound"), "{refused}");
            assert!(both.iter().all(|id| refused.contains(id)), "{refused}");
        }
        assert_eq!(refused_of(3, 0, other), None, "it has worked for nobody");
        for (own, term, code, said) in [
            (0, 3, "NotFound", "has no journal"),
            (3, 3, "Aborted", "counts as lost"),
            (3, 4, "Unavailable", "there has been one of term 4"),
        ] {
            let refused = refused(own, term).unwrap();
            assert!(refused.starts_with(code) && refused.contains(said), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_line_that_has_been_replaced_takes_nobody_off_the_list() {
        let membership = Membership::new();
        let lost = Arc::new(RwLock::new(0));
        let counts = Arc::clone(&lost);
        membership.listen(Arc::new(move |news| {
            *counts.write() += u32::from(matches!(news, News::Lost(_)));
        }));
        let (channel, _serving) = serve(&membership).await;
        let open = || async {
            let hello = Hello::new(worker("w"));
            ControlStream::open(channel.clone(), hello, to_scheduler(), Deaf).await.unwrap()
        };
        let mut first = open().await;
        let mut second = open().await;
        first.closed().await;
        // What the end of it would have done is done when others have been answered.
        for _ in 0..10 {
            ClusterClient::new(channel.clone()).describe(DescribeRequest::new()).await.unwrap();
        }
        assert_eq!((membership.workers().len(), *lost.read()), (1, 0));
        membership.dismiss("w", "enough");
        assert_eq!(second.closed().await, "hung up: enough");
        let third = open().await;
        drop((first, second, third));
        while *lost.read() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(membership.workers(), []);
    }

    #[tokio::test]
    async fn a_worker_that_is_dismissed_is_told_why() {
        let membership = Membership::new();
        let (channel, _serving) = serve(&membership).await;
        let mut line = ControlStream::open(channel, Hello::new(worker("w")), to_scheduler(), Deaf)
            .await
            .unwrap();
        assert_eq!(membership.workers().len(), 1);
        membership.dismiss("w", "too late");
        assert_eq!(line.closed().await, "hung up: too late");
        assert_eq!(membership.workers(), []);
    }
}
