//! Messages on their way to a client: until the last one, until it wants no more, or until it has
//! taken none for too long.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use arrow_flight::FlightData;
use datafusion::common::runtime::SpawnedTask;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// What a client reads.
pub(in crate::flight) type Messages = BoxStream<'static, Result<FlightData, Status>>;

/// The pause before an end is tried again that found the messages in use.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// For how long a client may take nothing, and what it is told when it comes back later.
pub(in crate::flight) struct Patience {
    pub(in crate::flight) limit: Duration,
    pub(in crate::flight) over: Status,
}

/// These messages. When their query is canceled, or when the client has not asked for the next one
/// for too long, they are dropped with all that makes them, and the client learns why if it comes
/// back.
///
/// A client that does not read does not poll either, so somebody else must end what it holds.
pub(in crate::flight) fn deliver(
    messages: Messages,
    canceled: CancellationToken,
    patience: Patience,
) -> Messages {
    let state = State { messages, waits_for_client: Some(Instant::now()), waker: None };
    let state = Arc::new(Mutex::new(state));
    let watching = SpawnedTask::spawn(watch(Arc::clone(&state), canceled, patience));
    Delivery { state, _watching: watching }.boxed()
}

struct Delivery {
    state: Arc<Mutex<State>>,
    _watching: SpawnedTask<()>,
}

struct State {
    messages: Messages,
    /// Since when it is the client that nothing goes on without.
    waits_for_client: Option<Instant>,
    waker: Option<Waker>,
}

impl Stream for Delivery {
    type Item = Result<FlightData, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.state.lock();
        state.waits_for_client = None;
        let next = state.messages.poll_next_unpin(context);
        match &next {
            Poll::Pending => state.waker = Some(context.waker().clone()),
            Poll::Ready(Some(Ok(_))) => state.waits_for_client = Some(Instant::now()),
            // With them all that they hold.
            Poll::Ready(None | Some(Err(_))) => state.messages = stream::empty().boxed(),
        }
        next
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // Whoever watches is not gone yet.
        self.state.lock().messages = stream::empty().boxed();
    }
}

async fn watch(state: Arc<Mutex<State>>, canceled: CancellationToken, patience: Patience) {
    let why = tokio::select! {
        () = canceled.cancelled() => Status::cancelled("the query was canceled"),
        () = waited_for(&state, patience.limit) => patience.over,
    };
    // What is in use computes: no thread waits for that.
    let waker = loop {
        if let Some(mut state) = state.try_lock() {
            state.messages = stream::iter([Err(why)]).boxed();
            break state.waker.take();
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Ends when the client has been waited for for so long.
async fn waited_for(state: &Mutex<State>, limit: Duration) {
    loop {
        let since = state.try_lock().and_then(|state| state.waits_for_client);
        let since = since.unwrap_or_else(Instant::now);
        if since.elapsed() >= limit {
            return;
        }
        tokio::time::sleep_until(since + limit).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::sync::oneshot;
    use tonic::Code;

    use super::*;

    fn patience(limit: Duration) -> Patience {
        Patience { limit, over: Status::deadline_exceeded("too late") }
    }

    /// Messages without end, and what tells when they are dropped.
    fn endless() -> (Messages, oneshot::Receiver<()>) {
        let (held, dropped) = oneshot::channel();
        let messages = stream::unfold(held, |held| async move { Some((Ok(message()), held)) });
        (messages.boxed(), dropped)
    }

    fn message() -> FlightData {
        FlightData::default()
    }

    #[tokio::test]
    async fn what_nobody_takes_is_dropped_and_whoever_comes_back_is_told() {
        let (messages, dropped) = endless();
        let limit = Duration::from_millis(200);
        let mut messages = deliver(messages, CancellationToken::new(), patience(limit));
        let begun = Instant::now();
        messages.next().await.unwrap().unwrap();
        dropped.await.unwrap_err();
        assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());
        let error = messages.next().await.unwrap().unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert!(messages.next().await.is_none());
    }

    #[tokio::test]
    async fn a_slow_reader_and_a_slow_query_are_waited_for() {
        let limit = Duration::from_secs(4);
        let (messages, mut dropped) = endless();
        let mut slowly = deliver(messages, CancellationToken::new(), patience(limit));
        let slow = stream::once(async move {
            tokio::time::sleep(limit + limit / 4).await;
            Ok(message())
        });
        let mut slow = deliver(slow.boxed(), CancellationToken::new(), patience(limit));
        let waits = SpawnedTask::spawn(async move { slow.next().await });
        for _ in 0..5 {
            tokio::time::sleep(limit / 4).await;
            slowly.next().await.unwrap().unwrap();
        }
        assert!((&mut dropped).now_or_never().is_none());
        waits.await.unwrap().unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_canceled_query_ends_whether_it_is_read_or_not() {
        let canceled = CancellationToken::new();
        let (messages, dropped) = endless();
        let limit = Duration::from_secs(3600);
        let mut unread = deliver(messages, canceled.clone(), patience(limit));
        let waiting = stream::pending().boxed();
        let mut waiting = deliver(waiting, canceled.clone(), patience(limit));
        let waits = SpawnedTask::spawn(async move { waiting.next().await });
        tokio::task::yield_now().await;
        canceled.cancel();
        dropped.await.unwrap_err();
        for end in [unread.next().await, waits.await.unwrap()] {
            assert_eq!(end.unwrap().unwrap_err().code(), Code::Cancelled);
        }
    }
}
