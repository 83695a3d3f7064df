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
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;

/// Of this process, whose cores all of its servers share. If there are more users than this, some share.
static ALL: [Mutex<Option<Runtime>>; 16] = [const { Mutex::new(None) }; 16];

/// DataFusion walks plans by recursion.
const STACK_BYTES: usize = 32 << 20;

/// Batches on their way to the threads that encode them.
const BATCHES_WAITING_MAX: usize = 1;

/// Those of one user.
#[derive(Debug)]
pub(super) struct Threads {
    at: usize,
}

impl Threads {
    /// Others than those of the users before, as long as there are any.
    pub(super) fn next() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self { at: NEXT.fetch_add(1, Ordering::Relaxed) % ALL.len() }
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
    /// If there can be no threads; what `begin` fails with is an error of the rows.
    pub(super) fn rows(
        &self,
        schema: SchemaRef,
        begin: impl FnOnce() -> Result<SendableRecordBatchStream> + Send + 'static,
    ) -> Result<SendableRecordBatchStream> {
        let mut rows = RecordBatchReceiverStream::builder(schema, BATCHES_WAITING_MAX);
        let reader = rows.tx();
        let send = async move {
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
    /// If there can be no threads, if it panics, and what it fails with.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut running = JoinSet::new();
        running.spawn_on(work, &self.handle()?);
        match running.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(broken)) => Err(exec_datafusion_err!("the statement broke off: {broken}")),
            None => Err(exec_datafusion_err!("the statement did not begin")),
        }
    }
}
