//! The way to the scheduler: at one address, or at one of several whose schedulers may have the same state in turn.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datafusion::common::{Result, exec_err};
use futures::future::select_ok;
use parking_lot::Mutex;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::ClusterClient;
use super::connection::{self, reach_scheduler};
use super::messages::DescribeRequest;
use super::tls::Tls;

/// How often it is looked whether the scheduler's machine is there, and for how long it is waited for: by workers,
/// and by sessions, which hold nothing that anybody waits for.
const OF_WORKERS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(8));
const OF_SESSIONS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(15));

/// For how long a scheduler is waited for that may be a successor: one that has been stopped takes calls and answers
/// none.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Within this time all of them have noticed that a scheduler is silent, and asked another one.
pub(crate) const NOTICED_WITHIN: Duration = Duration::from_secs(30);

/// Who looks for the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seeker {
    Worker,
    Session,
}

impl Seeker {
    fn watching(self, endpoint: Endpoint) -> Endpoint {
        let (every, limit) = match self {
            Self::Worker => OF_WORKERS,
            Self::Session => OF_SESSIONS,
        };
        let endpoint = endpoint.http2_keep_alive_interval(every).keep_alive_timeout(limit);
        endpoint.keep_alive_while_idle(true)
    }
}

/// Where the scheduler may be. The way to the one that answered last is used until another one is found.
#[derive(Debug)]
pub(crate) struct Schedulers {
    all: Vec<Way>,
    current: AtomicUsize,
}

#[derive(Debug)]
struct Way {
    /// `host:port`.
    address: String,
    channel: Channel,
}

impl Schedulers {
    /// Connects to the scheduler that answers at one of these addresses: `host:port`, with commas between them.
    ///
    /// # Errors
    /// If one is no address, nobody answers at any, or one of both does not believe the other.
    pub(crate) async fn reach(addresses: &str, tls: Option<&Tls>, seeker: Seeker) -> Result<Self> {
        let addresses: Vec<&str> = addresses.split(',').map(str::trim).collect();
        if addresses.contains(&"") {
            return exec_err!(
                "'{}' is not a list of HOST:PORT with commas between them",
                addresses.join(",")
            );
        }
        let endpoints = addresses
            .iter()
            .map(|address| Ok((*address, seeker.watching(connection::endpoint(address, tls)?))));
        let endpoints: Vec<_> = endpoints.collect::<Result<_>>()?;
        let tries = endpoints.iter().enumerate().map(|(at, (address, endpoint))| {
            let reached = reach_scheduler(endpoint.clone(), address, tls);
            Box::pin(async move { reached.await.map(|channel| (at, channel)) })
        });
        let (current, channel) = first(tries.collect()).await?;
        let way = |(at, (address, endpoint)): (usize, (&str, Endpoint))| Way {
            address: address.to_owned(),
            channel: if at == current { channel.clone() } else { endpoint.connect_lazy() },
        };
        let all = endpoints.into_iter().enumerate().map(way).collect();
        Ok(Self { all, current: AtomicUsize::new(current) })
    }

    /// Which one answered last.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Acquire) % self.all.len()
    }

    fn way(&self) -> &Way {
        &self.all[self.current()]
    }

    /// Whether there is more than one address.
    pub(crate) fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// To the one that answered last.
    pub(crate) fn channel(&self) -> Channel {
        self.way().channel.clone()
    }

    /// `host:port` of that.
    pub(crate) fn address(&self) -> &str {
        &self.way().address
    }

    /// Asks one after the other, beginning with the one that answered last: `turn` counts those that were asked. What
    /// answers is the scheduler from then on.
    ///
    /// # Errors
    /// What the one said whose turn it was, or that it did not answer in time.
    pub(crate) async fn ask<T, F>(
        &self,
        turn: usize,
        ask: impl FnOnce(Channel) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.ask_one((self.current() + turn) % self.all.len(), ask).await
    }

    async fn ask_one<T, F>(&self, at: usize, ask: impl FnOnce(Channel) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let way = &self.all[at];
        match tokio::time::timeout(ANSWER_LIMIT, ask(way.channel.clone())).await {
            Ok(answer) => {
                let answer = answer?;
                self.current.store(at, Ordering::Release);
                Ok(answer)
            }
            Err(_) => Err(Status::unavailable(format!(
                "the scheduler at {} does not answer",
                way.address
            ))),
        }
    }

    /// Finds the scheduler at another address than that of the one that did not answer, if there are others. Says
    /// whether there is one. Of many who look for it at a time one may have found it by now.
    pub(crate) async fn find_other(&self, than: usize) -> bool {
        for turn in 1..self.all.len() {
            if self.current() != than {
                return true;
            }
            let greet = |channel| async move {
                ClusterClient::new(channel).describe(DescribeRequest::new()).await
            };
            if self.ask_one((than + turn) % self.all.len(), greet).await.is_ok() {
                return true;
            }
        }
        self.current() != than
    }
}

/// The first one that answers.
async fn first<F>(tries: Vec<F>) -> Result<(usize, Channel)>
where
    F: Future<Output = Result<(usize, Channel)>> + Unpin,
{
    // All of them are told: the reason of the last one alone may be the least interesting.
    let problems = Mutex::new(vec![]);
    let tries = tries.into_iter().map(|one| {
        let problems = &problems;
        Box::pin(async move { one.await.map_err(|error| problems.lock().push(error)) })
    });
    if let Ok((found, _)) = select_ok(tries).await {
        return Ok(found);
    }
    let mut problems = problems.into_inner();
    match problems.pop() {
        Some(only) if problems.is_empty() => Err(only),
        last => {
            let all = problems.iter().chain(&last);
            let all: Vec<_> = all.map(|problem| problem.message().into_owned()).collect();
            exec_err!("{}", all.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::common::runtime::SpawnedTask;
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::transport::Server;

    use super::*;
    use crate::protocol::ClusterServer;
    use crate::protocol::membership::Membership;
    use crate::protocol::server::{ClusterService, NoJobs};

    /// A scheduler, for as long as the task is held.
    async fn serve(address: &str) -> (String, SpawnedTask<()>) {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = ClusterService::new(Membership::new(), Arc::new(NoJobs));
        let server = Server::builder()
            .add_service(ClusterServer::new(service))
            .serve_with_incoming(TcpListenerStream::new(listener));
        (address, SpawnedTask::spawn(async move { server.await.unwrap() }))
    }

    /// An address at which nobody listens.
    fn free() -> String {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        port.local_addr().unwrap().to_string()
    }

    async fn answers(schedulers: &Schedulers, turn: usize) -> bool {
        let greet = |channel| async move {
            ClusterClient::new(channel).describe(DescribeRequest::new()).await
        };
        schedulers.ask(turn, greet).await.is_ok()
    }

    #[tokio::test]
    async fn the_one_that_answers_is_found_and_later_the_other_one() {
        let (first, serving) = serve("127.0.0.1:0").await;
        // One that takes calls, and answers none.
        let hung = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (hung_at, second) = (hung.local_addr().unwrap().to_string(), free());
        let list = format!("{second}, {hung_at},{first}");
        let schedulers = Schedulers::reach(&list, None, Seeker::Session).await.unwrap();
        assert_eq!(schedulers.address(), first);
        assert!(answers(&schedulers, 0).await);
        drop(serving);
        let than = schedulers.current();
        assert!(!schedulers.find_other(than).await);
        assert_eq!(schedulers.address(), first);
        let (_, _serving) = serve(&second).await;
        for _ in 0..2 {
            // Also for whoever has asked the first one as well, and comes later.
            assert!(schedulers.find_other(than).await);
        }
        assert_eq!(schedulers.address(), second);
        assert!(answers(&schedulers, 0).await);
    }

    #[tokio::test]
    async fn where_nobody_answers_all_are_named() {
        let (one, other) = (free(), free());
        let list = format!("{one},{other}");
        let error = Schedulers::reach(&list, None, Seeker::Worker).await.unwrap_err().to_string();
        assert!(error.contains(&one) && error.contains(&other), "{error}");
        for wrong in ["", "a:1,,b:2", "a:1,"] {
            let error = Schedulers::reach(wrong, None, Seeker::Worker).await.unwrap_err();
            assert!(error.to_string().contains("is not a list of HOST:PORT"), "{error}");
        }
    }
}
