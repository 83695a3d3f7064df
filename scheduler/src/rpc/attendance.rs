//! The worker's side of its line to the scheduler.

use datafusion::common::runtime::SpawnedTask;
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::ClusterClient;
use super::messages::{
    Draining, FromWorker, Hello, PROTOCOL, ToWorker, Worker, from_worker, to_worker,
};

/// A line to the scheduler, as long as it is held.
#[derive(Debug)]
pub struct Line {
    out: mpsc::Sender<FromWorker>,
    /// Ends when the scheduler hangs up.
    listening: SpawnedTask<()>,
}

impl Line {
    /// Tells the scheduler who is there and waits to be welcome.
    ///
    /// # Errors
    /// If the scheduler cannot be reached or refuses this worker; the status says why.
    pub async fn open(channel: Channel, worker: Worker) -> Result<Self, Status> {
        let (out, messages) = mpsc::channel(64);
        let hello = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            worker,
        };
        let say = |say| FromWorker { say: Some(say) };
        let closed = |_| Status::aborted("the line was closed");
        out.send(say(from_worker::Say::Hello(hello))).await.map_err(closed)?;
        let mut client = ClusterClient::new(channel);
        let mut answers = client.attend(ReceiverStream::new(messages)).await?.into_inner();
        match answers.message().await?.and_then(|message| message.say) {
            Some(to_worker::Say::Welcome(_)) => {}
            None => return Err(Status::aborted("the scheduler hung up")),
        }
        Ok(Self { out, listening: SpawnedTask::spawn(listen(answers)) })
    }

    /// Says that this worker takes no more tasks.
    pub async fn drain(&self) {
        let say = Some(from_worker::Say::Draining(Draining {}));
        self.out.send(FromWorker { say }).await.ok();
    }

    /// Waits until the scheduler hangs up.
    pub async fn closed(&mut self) {
        (&mut self.listening).await.ok();
    }
}

async fn listen(mut answers: Streaming<ToWorker>) {
    while let Some(Ok(message)) = answers.next().await {
        match message.say {
            Some(to_worker::Say::Welcome(_)) | None => {}
        }
    }
}
