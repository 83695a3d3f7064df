//! The threads on which queries run: those of one user do not wait for another's.
//!
//! ```text
//!  user a ──▶ ▯▯ threads 0 ──▶ rows ──┐
//!  user b ──▶ ▯▯ threads 1 ──▶ rows ──┴──▶ the threads that answer everyone
//! ```
//! A function that takes a minute for one batch cannot be interrupted, and while it computes nothing else
//! runs on its thread. Whose function it is, is therefore whose thread it is; who has the cores is the
//! operating system's business, which shares them. Started when they are first needed, and kept: what is
//! shared between queries, such as connections to stores, lives on the threads that opened it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// Of this process, whose cores all of its servers share. If there are more users than this, some share.
static ALL: [Mutex<Option<Runtime>>; 16] = [const { Mutex::new(None) }; 16];

/// DataFusion walks plans by recursion.
const STACK_BYTES: usize = 32 << 20;

/// Batches on their way to the threads that encode them.
const BATCHES_WAITING_MAX: usize = 1;

/// What one user may have begun that has not ended. What is cancelled behind a function that computes is there
/// until that is done, and gives back its slot at once; far more than that is nobody's work.
const BEGUN_MAX: usize = 1000;

/// Those of one user.
#[derive(Debug)]
pub(in crate::flight) struct Threads {
    at: usize,
    begun: Arc<Semaphore>,
}

impl Threads {
    /// Others than those of the users before, as long as there are any.
    pub(in crate::flight) fn next() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let at = NEXT.fetch_add(1, Ordering::Relaxed) % ALL.len();
        Self { at, begun: Arc::new(Semaphore::new(BEGUN_MAX)) }
    }

    /// The right to begin something, until that has ended.
    fn begin(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.begun).try_acquire_owned().map_err(|_| {
            DataFusionError::ResourcesExhausted(format!(
                "{BEGUN_MAX} queries of this user have begun and not ended: a function computes, and those \
                 that were cancelled wait for it; try again later"
            ))
        })
    }

    fn handle(&self) -> Result<Handle> {
        let mut runtime = ALL[self.at].lock();
        if let Some(runtime) = &*runtime {
            return Ok(runtime.handle().clone());
        }
        let mut threads = Builder::new_multi_thread();
        let threads = threads.enable_all().thread_stack_size(STACK_BYTES).thread_name("queries");
        let started = threads.build();
        let started =
            started.map_err(|e| exec_datafusion_err!("threads to run queries on: {e}"))?;
        Ok(runtime.insert(started).handle().clone())
    }

    /// The rows of a query, of which nothing runs on the thread that reads them. It ends when they are
    /// dropped.
    ///
    /// # Errors
    /// If there can be no threads, or too much has begun; what `begin` fails with is an error of the rows.
    pub(in crate::flight) fn rows(
        &self,
        schema: SchemaRef,
        begin: impl FnOnce() -> Result<SendableRecordBatchStream> + Send + 'static,
    ) -> Result<SendableRecordBatchStream> {
        let mut rows = RecordBatchReceiverStream::builder(schema, BATCHES_WAITING_MAX);
        let reader = rows.tx();
        let begun = self.begin()?;
        let send = async move {
            let _begun = begun;
            let mut made = begin()?;
            while let Some(batch) = made.next().await {
                let is_last = batch.is_err();
                if reader.send(batch).await.is_err() || is_last {
                    break;
                }
            }
            Ok(())
        };
        rows.spawn_on(send, &self.handle()?);
        Ok(rows.build())
    }

    /// Something that is done for a user and for nobody else. It ends when nobody waits for it any more.
    ///
    /// # Errors
    /// If there can be no threads, if too much has begun, if it panics, and what it fails with.
    pub(in crate::flight) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (mut running, begun) = (JoinSet::new(), self.begin()?);
        let work = async move {
            let _begun = begun;
            work.await
        };
        running.spawn_on(work, &self.handle()?);
        match running.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(broken)) => Err(exec_datafusion_err!("the statement broke off: {broken}")),
            None => Err(exec_datafusion_err!("the statement did not begin")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn what_is_cancelled_counts_until_it_has_ended() {
        let threads = Threads { begun: Arc::new(Semaphore::new(1)), ..Threads::next() };
        let (end, ended) = mpsc::sync_channel::<()>(1);
        let (begin, begun) = tokio::sync::oneshot::channel();
        // As a function that computes: nothing can interrupt it.
        let computes = threads.run(async move {
            begin.send(()).ok();
            ended.recv().ok();
            Ok(())
        });
        tokio::select! {
            _ = computes => panic!("it ended by itself"),
            _ = begun => {}
        }
        let refused = threads.run(async { Ok(()) }).await.unwrap_err();
        assert!(matches!(refused, DataFusionError::ResourcesExhausted(_)), "{refused}");
        end.send(()).unwrap();
        let _free = threads.begun.acquire().await.unwrap();
    }
}
