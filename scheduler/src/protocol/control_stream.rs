//! The worker's side of its control stream to the scheduler: open as long as it lives.

use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::ClusterClient;
use super::messages::{Draining, FromWorker, Hello, ToWorker, Welcome, from_worker, to_worker};

/// Messages that may wait for the scheduler.
const MESSAGES_MAX: usize = 65_536;

/// Where a worker says things to the scheduler. Clones say them over the same line.
#[derive(Clone, Debug)]
pub struct ToScheduler(Arc<Mutex<mpsc::Sender<FromWorker>>>);

impl ToScheduler {
    /// Says something. The scheduler learns what it misses from the task's end, or asks again.
    pub fn say(&self, say: from_worker::Say) {
        match self.0.lock().try_send(FromWorker { say: Some(say) }) {
            Ok(()) => {}
            // The line is broken: the worker ends, or says all again that matters.
            Err(TrySendError::Closed(_)) => tracing::debug!("there is no scheduler to hear this"),
            Err(error) => tracing::warn!("the scheduler does not hear: {error}"),
        }
    }

    /// What will be said from now on, for another line.
    pub fn renewed(&self) -> mpsc::Receiver<FromWorker> {
        let (out, messages) = mpsc::channel(MESSAGES_MAX);
        *self.0.lock() = out;
        messages
    }
}

/// What a worker will say, and where.
pub fn to_scheduler() -> (ToScheduler, mpsc::Receiver<FromWorker>) {
    let (out, messages) = mpsc::channel(MESSAGES_MAX);
    (ToScheduler(Arc::new(Mutex::new(out))), messages)
}

/// What a worker does when the scheduler says something.
#[tonic::async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Does it; what the scheduler says next waits.
    async fn handle(&self, say: to_worker::Say);
}

/// A control stream to the scheduler, as long as it is held.
#[derive(Debug)]
pub struct ControlStream {
    to_scheduler: ToScheduler,
    welcome: Welcome,
    /// Ends when the scheduler hangs up, with what it said then.
    listening: SpawnedTask<String>,
    /// What that was, once it has.
    why_closed: Option<String>,
}

impl ControlStream {
    /// Where this worker says things.
    pub fn to_scheduler(&self) -> ToScheduler {
        self.to_scheduler.clone()
    }

    /// Tells the scheduler who is there and waits to be welcome. `handler` gets what the scheduler
    /// says from then on, in order.
    ///
    /// # Errors
    /// If the scheduler cannot be reached or refuses this worker; the status says why.
    pub async fn open(
        channel: Channel,
        hello: Hello,
        (to_scheduler, messages): (ToScheduler, mpsc::Receiver<FromWorker>),
        handler: impl Handler,
    ) -> Result<Self, Status> {
        let hello = FromWorker { say: Some(from_worker::Say::Hello(hello)) };
        let messages = stream::iter([hello]).chain(ReceiverStream::new(messages));
        let mut answers = ClusterClient::new(channel).attend(messages).await?.into_inner();
        let welcome = match answers.message().await?.and_then(|message| message.say) {
            Some(to_worker::Say::Welcome(welcome)) => welcome,
            _ => return Err(Status::aborted("the scheduler hung up")),
        };
        let listening = SpawnedTask::spawn(listen(answers, handler));
        Ok(Self { to_scheduler, welcome, listening, why_closed: None })
    }

    /// What the scheduler said of itself.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Says that this worker takes no more tasks.
    pub fn drain(&self) {
        self.to_scheduler.say(from_worker::Say::Draining(Draining {}));
    }

    /// Waits until the scheduler hangs up; returns why, however often it is asked.
    pub async fn closed(&mut self) -> String {
        if let Some(why) = &self.why_closed {
            return why.clone();
        }
        let why = (&mut self.listening).await.unwrap_or_else(|error| error.to_string());
        self.why_closed.insert(why).clone()
    }
}

async fn listen(mut answers: Streaming<ToWorker>, handler: impl Handler) -> String {
    loop {
        match answers.message().await {
            Ok(Some(ToWorker { say: Some(say) })) => handler.handle(say).await,
            Ok(Some(ToWorker { say: None })) => {}
            Ok(None) => return "hung up".to_owned(),
            Err(status) => return format!("hung up: {}", status.message()),
        }
    }
}
