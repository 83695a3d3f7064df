//! The way to the scheduler: a line that is made again when it breaks, if a successor may come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{ExecutorRegistration, RegisterExecutorParams, TaskStatus};
use tokio::sync::{Notify, mpsc};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::ballista::session;
use crate::block::BlockStore;
use crate::protocol::connection::said;
use crate::protocol::control_stream::{ControlStream, Handler};
use crate::protocol::messages::{self, Hello, Holds, Welcome, to_worker};
use crate::protocol::schedulers::Schedulers;
use crate::worker::account::Account;

/// The pause before a scheduler is called again that did not answer.
const CALL_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// How a worker reaches its scheduler, and what it says first.
pub(super) struct Way {
    pub(super) schedulers: Arc<Schedulers>,
    pub(super) description: messages::Worker,
    /// The same as Ballista has it.
    pub(super) registration: ExecutorRegistration,
    pub(super) handler: FromScheduler,
    /// Where ends of tasks go that are to be reported.
    pub(super) reports: mpsc::Sender<TaskStatus>,
}

impl Way {
    /// The scheduler as Ballista's.
    pub(super) fn scheduler(&self) -> SchedulerGrpcClient<Channel> {
        session::scheduler(self.schedulers.channel())
    }

    /// Where that may be.
    pub(super) fn schedulers(&self) -> Arc<Schedulers> {
        Arc::clone(&self.schedulers)
    }

    /// Tells the scheduler that this worker is there, which has not worked for any.
    ///
    /// # Errors
    /// If nobody answers, or the worker is refused.
    pub(super) async fn attach_first(&self) -> Result<ControlStream, Status> {
        let control = self.open(self.schedulers.channel(), &Welcome::default()).await?;
        self.register().await?;
        Ok(control)
    }

    /// Tells a scheduler that this worker is there, and what it has, if it has worked for another one before.
    async fn open(&self, channel: Channel, before: &Welcome) -> Result<ControlStream, Status> {
        let (running, ended) = self.handler.account.names();
        let jobs = self.handler.store.jobs();
        let holds = Holds { running, ended, jobs };
        let (term, state) = (before.term, before.state.clone());
        let hello = Hello { term, holds, state, ..Hello::new(self.description.clone()) };
        let to_scheduler = self.handler.account.to_scheduler().clone();
        let outbox = (to_scheduler.clone(), to_scheduler.renewed());
        ControlStream::open(channel, hello, outbox, self.handler.clone()).await
    }

    /// The scheduler has this worker as Ballista's, too, and hears what it has not heard.
    async fn register(&self) -> Result<(), Status> {
        let metadata = Some(self.registration.clone());
        self.scheduler().register_executor(RegisterExecutorParams { metadata }).await?;
        for end in self.handler.account.attached() {
            self.reports.send(end).await.ok();
        }
        Ok(())
    }

    /// The next one in turn that may be a successor of this scheduler, if it is.
    async fn attach(&self, turn: usize, before: &Welcome) -> Result<ControlStream, Status> {
        let open = |channel| async move {
            let control = self.open(channel, before).await?;
            follows(control.welcome(), before)?;
            Ok(control)
        };
        let control = self.schedulers.ask(turn, open).await?;
        self.register().await?;
        Ok(control)
    }

    /// The line broke: waits for a successor of this scheduler, as long as it wanted that.
    ///
    /// # Errors
    /// Why there is none: for people.
    pub(super) async fn attach_again(
        &self,
        before: &Welcome,
        why: &str,
    ) -> Result<ControlStream, String> {
        self.handler.account.detached();
        if before.term == 0 {
            return Err(why.to_owned());
        }
        let patience = Duration::from_millis(before.patience_ms);
        tracing::warn!("the scheduler {why}; tasks go on, and its successor is waited for");
        let since = Instant::now();
        let mut turn = 0;
        loop {
            tokio::time::sleep(CALL_AGAIN_AFTER).await;
            let problem = match self.attach(turn, before).await {
                Ok(control) => return Ok(control),
                Err(status) if is_final(&status, self.schedulers.are_several()) => {
                    return Err(said(&status));
                }
                Err(status) => said(&status),
            };
            turn += 1;
            if since.elapsed() >= patience {
                return Err(format!("{why}, and no successor came for {patience:?}: {problem}"));
            }
        }
    }
}

/// Whether a scheduler is a successor of another one, as it says itself: that need not be looked at there.
fn follows(welcome: &Welcome, before: &Welcome) -> Result<(), Status> {
    if welcome.state != before.state {
        let problem = messages::is_no_successor(&welcome.state, "the worker", &before.state);
        return Err(Status::not_found(problem));
    }
    if welcome.term <= before.term {
        return Err(Status::unavailable("it is of an earlier term"));
    }
    Ok(())
}

/// Whether somebody has answered who will not change their mind; who knows nothing of a worker may be another one's
/// scheduler, if there are `others` to ask.
fn is_final(status: &Status, others: bool) -> bool {
    let is_final = match status.code() {
        Code::Aborted | Code::FailedPrecondition | Code::InvalidArgument => true,
        Code::NotFound => !others,
        _ => false,
    };
    is_final && std::error::Error::source(status).is_none()
}

/// Does what the scheduler says.
#[derive(Clone)]
pub(super) struct FromScheduler {
    pub(super) account: Arc<Account>,
    pub(super) store: Arc<BlockStore>,
    pub(super) may_leave: Arc<Notify>,
}

#[tonic::async_trait]
impl Handler for FromScheduler {
    async fn handle(&self, say: to_worker::Say) {
        match say {
            to_worker::Say::Cancel(task) => self.account.cancels(task),
            to_worker::Say::Free(block) => self.store.remove(&block.job, block.id),
            to_worker::Say::Forget(job) => self.store.forget(&job),
            to_worker::Say::Leave(_) => self.may_leave.notify_one(),
            to_worker::Say::Welcome(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_of_others_keeps_no_worker_from_its_own() {
        let unknown = Status::not_found("this scheduler has no journal");
        assert!(is_final(&unknown, false) && !is_final(&unknown, true));
        for others in [false, true] {
            assert!(is_final(&Status::aborted("the worker counts as lost"), others));
            assert!(!is_final(&Status::unavailable("it is of an earlier term"), others));
        }
    }

    #[test]
    fn a_scheduler_of_another_state_is_no_successor_whatever_its_term() {
        let welcome = |state: &str, term| {
            let state = state.to_owned();
            Welcome { state, term, ..Welcome::default() }
        };
        let before = welcome("one", 3);
        assert!(follows(&welcome("one", 4), &before).is_ok());
        let earlier = follows(&welcome("one", 3), &before).unwrap_err();
        assert!(!is_final(&earlier, false), "a later one may come");
        for term in [2, 3, 400] {
            let other = follows(&welcome("other", term), &before).unwrap_err();
            assert!(is_final(&other, false) && !is_final(&other, true), "{other}");
            let said = other.message();
            assert!(said.contains("state other") && said.contains("state one"), "{said}");
        }
    }
}
