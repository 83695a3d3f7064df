//! Wakes Ballista's event loop, which has no call for it: it is told of a task that does not exist, by a worker
//! that does not either, and looks at the jobs.

use std::collections::BTreeSet;

use ballista_core::JobId;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpc;
use ballista_core::serde::protobuf::{TaskStatus, UpdateTaskStatusParams, UpdateTaskStatusResult};
use ballista_core::serde::scheduler::{
    ExecutorMetadata, ExecutorOperatingSystemSpecification, ExecutorSpecification,
};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use super::Ballista;
use crate::coordinator::registry::Registry;

/// Jobs that wait to be looked at.
pub(crate) const WAKES_MAX: usize = 4096;

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

/// Makes it look at jobs, for as long as any can be sent.
pub(crate) async fn forward(
    scheduler: Ballista,
    registry: Registry,
    mut woken: mpsc::Receiver<JobId>,
) {
    let mut jobs = vec![];
    while woken.recv_many(&mut jobs, WAKES_MAX).await > 0 {
        let ids: BTreeSet<String> = jobs
            .drain(..)
            .map(|job| job.to_string())
            .filter(|job| registry.wants_a_look(job))
            .collect();
        if ids.is_empty() {
            continue;
        }
        if let Err(error) = look(&scheduler, ids).await {
            tracing::warn!("the event loop does not listen: {error}");
        }
    }
}

/// Makes it look at jobs, and then at which tasks can be started.
pub(crate) async fn look(
    scheduler: &Ballista,
    jobs: BTreeSet<String>,
) -> Result<Response<UpdateTaskStatusResult>, Status> {
    let nobody = |job_id| TaskStatus { job_id, task_id: u32::MAX, ..TaskStatus::default() };
    let task_status = jobs.into_iter().map(nobody).collect();
    let params = UpdateTaskStatusParams { executor_id: WAKER.to_owned(), task_status };
    SchedulerGrpc::update_task_status(scheduler, Request::new(params)).await
}
