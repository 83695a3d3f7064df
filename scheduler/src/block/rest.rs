//! What a task reads that began before all was there.

use std::sync::Arc;
use std::time::Duration;

use backon::{ConstantBuilder, Retryable};
use datafusion::common::Result;
use forebay_engine::{ErrorKind, RemoteError};
use futures::{Stream, stream};
use tonic::{Code, Status};

use crate::protocol::ClusterClient;
use crate::protocol::connection::said;
use crate::protocol::location::BlockLocation;
use crate::protocol::messages::{DealtAnswer, DealtRequest, TaskName};
use crate::protocol::schedulers::Schedulers;

/// The pauses before the scheduler is asked again that did not answer: for as long as the task runs, which ends with
/// the scheduler, or is told to.
const ASK_AGAIN: ConstantBuilder =
    ConstantBuilder::new().with_delay(Duration::from_secs(1)).without_max_times();

/// What is dealt out to a task after it was planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Rest {
    /// The task that reads.
    pub task: TaskName,
    /// Of how many outputs of the stage before it was told when it was planned.
    pub told: u32,
    /// For each partition of the plan, which one of what is dealt out it is.
    pub partitions: Vec<u32>,
}

/// The segments of a partition as they come to be, as many at a time as there are.
pub(super) fn coming(
    schedulers: Arc<Schedulers>,
    task: TaskName,
    partition: u32,
    told: u32,
) -> impl Stream<Item = Result<Vec<BlockLocation>>> {
    stream::try_unfold(Some(told), move |told| {
        let (schedulers, task) = (Arc::clone(&schedulers), task.clone());
        async move {
            let Some(told) = told else { return Ok(None) };
            let request = DealtRequest::new(task, partition, told);
            let DealtAnswer { segments, told, is_all } = ask(&schedulers, request).await?;
            Ok(Some((segments, (!is_all).then_some(told))))
        }
    })
}

async fn ask(schedulers: &Schedulers, request: DealtRequest) -> Result<DealtAnswer> {
    let ask = || async {
        let mut scheduler = ClusterClient::new(schedulers.channel());
        scheduler.dealt(request.clone()).await
    };
    let answer = ask.retry(ASK_AGAIN).when(|status| !is_final(status)).await;
    let answer = answer.map_err(|status| {
        let problem =
            format!("the scheduler tells nothing of what is dealt out: {}", said(&status));
        RemoteError::new(ErrorKind::Unavailable, problem)
    })?;
    Ok(answer.into_inner())
}

/// Whether it would be said again: by a scheduler that knows the task, and does not run it any more, or by one that does
/// not answer this process, or not this question.
fn is_final(status: &Status) -> bool {
    use Code::{
        FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated, Unimplemented,
    };
    let said = status.code();
    [FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated, Unimplemented]
        .contains(&said)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use datafusion::common::runtime::SpawnedTask;
    use futures::TryStreamExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::protocol::membership::Membership;
    use crate::protocol::messages::{
        Analysis, ReadAnswer, ReadRequest, RunRequest, RunUpdate, TableRequest, TableRows,
    };
    use crate::protocol::schedulers::Seeker;
    use crate::protocol::server::{ClusterService, Jobs};
    use crate::protocol::{Answers, ClusterServer, connection};

    /// Tells of four outputs, one at a time, each with a segment of so many rows as it is the how many-th: not before it
    /// has been asked twice. Of the task with the number 9 it knows that it is over, of number 8 it tells nobody.
    #[derive(Default)]
    struct Deals {
        asked: AtomicU32,
    }

    #[tonic::async_trait]
    impl Jobs for Deals {
        async fn dealt(&self, request: DealtRequest) -> Result<DealtAnswer, Status> {
            if request.task.task == 9 {
                return Err(Status::failed_precondition("it is over"));
            }
            if request.task.task == 8 {
                return Err(Status::permission_denied("who asks?"));
            }
            if self.asked.fetch_add(1, Ordering::Relaxed) == 0 {
                return Err(Status::not_found("it is being restored"));
            }
            let told = request.told + 1;
            let rows = u64::from(told + 10 * request.partition);
            let segments = vec![BlockLocation { rows, ..BlockLocation::default() }];
            Ok(DealtAnswer { segments, told, is_all: told == 4 })
        }

        async fn run(&self, _: RunRequest) -> Result<Answers<RunUpdate>, Status> {
            Err(Status::unimplemented("it deals"))
        }

        async fn read(&self, _: ReadRequest) -> Result<ReadAnswer, Status> {
            Err(Status::unimplemented("it deals"))
        }

        async fn table(&self, _: TableRequest) -> Result<TableRows, Status> {
            Err(Status::unimplemented("it deals"))
        }

        async fn analyze(&self, _: &str) -> Result<Analysis, Status> {
            Err(Status::unimplemented("it deals"))
        }
    }

    /// Rows of what comes, in the pieces in which it does.
    async fn come(task: u32) -> Result<Vec<Vec<u64>>> {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = port.local_addr().unwrap().to_string();
        let service = ClusterService::new(Membership::new(), Arc::new(Deals::default()));
        let service = ClusterServer::new(service);
        let routes = tonic::transport::Server::builder().add_service(service);
        let _serving = SpawnedTask::spawn(connection::serve(routes, port, None));
        let schedulers = Schedulers::reach(&address, None, Seeker::Worker).await?;
        let task = TaskName { job: "job".to_owned(), stage: 1, task };
        let pieces = coming(Arc::new(schedulers), task, 2, 1);
        let rows = |piece: Vec<BlockLocation>| piece.iter().map(|block| block.rows).collect();
        pieces.map_ok(rows).try_collect().await
    }

    #[tokio::test]
    async fn what_comes_is_asked_for_until_it_is_all() {
        assert_eq!(come(0).await.unwrap(), [[22], [23], [24]]);
    }

    #[tokio::test]
    async fn a_task_that_is_over_or_refused_asks_once() {
        for (task, why) in [(9, "it is over"), (8, "who asks?")] {
            let error = come(task).await.unwrap_err();
            assert_eq!(ErrorKind::of(&error), ErrorKind::Unavailable);
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
