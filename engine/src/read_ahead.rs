//! Reads that go on while nobody asks for them.

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, internal_datafusion_err};
use futures::{Stream, StreamExt};

/// What `reads` give, in their order. So many of them run at a time, each as a task of its own, which ends when the
/// stream is dropped.
///
/// With [`StreamExt::buffered`] alone they stand still while what they gave before is worked on. What has come of
/// them until then fills the window of its connection, where others read what the work may be waiting for; and their
/// time runs out.
///
/// # Errors
/// Those of the reads.
pub fn read_ahead<T, F>(
    reads: impl Stream<Item = F> + Send,
    at_once: usize,
) -> impl Stream<Item = Result<T>> + Send
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let begun = reads.map(|read| {
        let task = SpawnedTask::spawn(read);
        async {
            let done = task.join_unwind().await;
            done.map_err(|error| internal_datafusion_err!("reading ahead: {error}"))?
        }
    });
    begun.buffered(at_once)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::{TryStreamExt, stream};
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn the_next_ones_are_read_without_being_asked_for_and_no_more_than_may_be() {
        let (told, mut read) = mpsc::channel(8);
        let reads = stream::iter(0..5).map(move |number| {
            let told = told.clone();
            async move {
                tokio::task::yield_now().await;
                told.send(number).await.unwrap();
                Ok(number)
            }
        });
        let mut ahead = std::pin::pin!(read_ahead(reads, 3));
        assert_eq!(ahead.try_next().await.unwrap(), Some(0));
        // Nobody polls the stream meanwhile.
        let mut seen = vec![];
        for _ in 0..3 {
            let next = tokio::time::timeout(Duration::from_secs(60), read.recv()).await;
            seen.push(next.expect("it goes on").unwrap());
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
        assert!(read.try_recv().is_err(), "three at a time");
        assert_eq!(ahead.try_collect::<Vec<_>>().await.unwrap(), [1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn reads_end_with_their_stream() {
        let (told, mut read) = mpsc::channel::<()>(1);
        let reads = stream::iter(0..2).map(move |number| {
            let told = told.clone();
            async move {
                if number == 1 {
                    let _kept = told;
                    std::future::pending::<()>().await;
                }
                Ok(number)
            }
        });
        let mut ahead = Box::pin(read_ahead(reads, 2));
        assert_eq!(ahead.try_next().await.unwrap(), Some(0));
        drop(ahead);
        let ended = tokio::time::timeout(Duration::from_secs(60), read.recv()).await;
        assert_eq!(ended.expect("its future is dropped"), None);
    }
}
