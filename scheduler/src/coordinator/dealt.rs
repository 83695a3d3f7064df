//! What tasks are told that began before all was there that they read.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use crate::coordinator::registry::Registry;
use crate::graph::StageId;
use crate::protocol::messages::{DealtAnswer, DealtRequest};

/// For how long a task waits for an answer, should there be no news.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

impl Registry {
    /// What a task that began early reads next, once there is something, or after a while.
    ///
    /// # Errors
    /// If there is no such task that runs.
    pub(crate) async fn next_dealt(&self, request: &DealtRequest) -> Result<DealtAnswer, Status> {
        let name = &request.task;
        let over = || {
            let (stage, task, job) = (name.stage, name.task, &name.job);
            Status::failed_precondition(format!(
                "task {task} of stage {stage} of job {job} is over"
            ))
        };
        // One that is being restored is not there yet.
        let no_job = || Status::not_found(format!("there is no job {}", name.job));
        let job = self.get(&name.job).ok_or_else(no_job)?;
        let news = Arc::clone(&job.lock().dealt);
        let task = StageId(name.stage).task(name.task);
        let mut is_patient = true;
        loop {
            let mut has_news = pin!(news.notified());
            // Before it is looked, so that nothing is missed.
            has_news.as_mut().enable();
            let addresses = self.addresses();
            {
                let job = job.lock();
                let dealt = job.graph.dealt_since(task, request.partition, request.told);
                let dealt = dealt.ok_or_else(over)?;
                if dealt.is_all || dealt.told > request.told || !is_patient {
                    let segments = job.segments(&dealt.inputs, request.partition, &addresses);
                    let (told, is_all) = (dealt.told, dealt.is_all);
                    return Ok(DealtAnswer { segments, told, is_all });
                }
            }
            is_patient = tokio::time::timeout(ANSWER_WITHIN, has_news).await.is_ok();
        }
    }
}
