//! Ballista asks for an id for each job that is submitted. Some jobs have one already.

use ballista_scheduler::scheduler_server::JobIdGenerator;

use crate::job_id::next_job_id;

tokio::task_local! {
    /// The id of the job that this task submits.
    static GIVEN: String;
}

/// Gives a job the id that it has, or else a new one.
pub(crate) struct JobIds;

#[tonic::async_trait]
impl JobIdGenerator for JobIds {
    async fn next_id(&self) -> String {
        GIVEN.try_with(Clone::clone).unwrap_or_else(|_| next_job_id())
    }
}

/// Submits a job that has this id already, unless that is empty.
pub(crate) async fn with_id<T>(id: &str, submit: impl Future<Output = T>) -> T {
    match id {
        "" => submit.await,
        id => GIVEN.scope(id.to_owned(), submit).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_keeps_the_id_that_it_has() {
        let given = with_id("0A", async { JobIds.next_id().await });
        assert_eq!(given.await, "0A");
        let first = with_id("", async { JobIds.next_id().await }).await;
        assert!(JobIds.next_id().await > first);
    }
}
