//! Wakes Ballista's event loop, which has no call for it: it is told of a task that does not exist, by a worker
//! that does not either, and looks at the jobs.

use std::collections::BTreeSet;
use std::time::Duration;

use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpc;
use ballista_core::serde::protobuf::{TaskStatus, UpdateTaskStatusParams, UpdateTaskStatusResult};
use ballista_core::serde::scheduler::{
    ExecutorMetadata, ExecutorOperatingSystemSpecification, ExecutorSpecification,
};
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use super::Ballista;
use crate::coordinator::looks::Looks;
use crate::coordinator::registry::Registry;

/// The event loop should have begun with a look by then.
const SLOW: Duration = Duration::from_secs(30);

/// In whose name the event loop is woken. It listens to workers only, and of those that attend, each may be one
/// that it does not know yet or no longer.
pub(crate) const WAKER: &str = "forebay:waker";

/// The worker in whose name it is woken.
pub(crate) fn waker() -> ExecutorMetadata {
    ExecutorMetadata {
        id: WAKER.to_owned(),
        host: String::new(),
        port: 0,
        grpc_port: 0,
        specification: ExecutorSpecification::default(),
        os_info: ExecutorOperatingSystemSpecification::default(),
    }
}

/// Makes it look at what is asked for, one look after the other.
pub(crate) async fn forward(scheduler: Ballista, registry: Registry) {
    loop {
        let mut jobs = registry.looks().next().await;
        jobs.retain(|job| registry.wants_a_look(job));
        match look(&scheduler, jobs).await {
            Ok(_) => until_begun(registry.looks()).await,
            Err(error) => tracing::warn!("the event loop does not listen: {error}"),
        }
    }
}

/// Its queue is the event loop's own business, but somebody should hear of it if it stands still.
async fn until_begun(looks: &Looks) {
    while timeout(SLOW, looks.begun()).await.is_err() {
        tracing::warn!("the event loop has not looked at jobs for {} s", SLOW.as_secs());
    }
}

/// Makes it look at jobs, and then at which tasks can be started.
async fn look(
    scheduler: &Ballista,
    jobs: BTreeSet<String>,
) -> Result<Response<UpdateTaskStatusResult>, Status> {
    let nobody = |job_id| TaskStatus { job_id, task_id: u32::MAX, ..TaskStatus::default() };
    let task_status = jobs.into_iter().map(nobody).collect();
    let params = UpdateTaskStatusParams { executor_id: WAKER.to_owned(), task_status };
    SchedulerGrpc::update_task_status(scheduler, Request::new(params)).await
}
