//! The rows of a job, read by its client while it runs.
//!
//! The client asks what to read next, reads it, and says so: what it has read is deleted, what it
//! could not have is made again. A slow client holds back the tasks that write for it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::TaskContext;
use forebay_engine::{ErrorKind, RemoteError};
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tonic::Streaming;

use crate::block::{BlockError, BlockReaderExec};
use crate::client::cluster::Cluster;
use crate::protocol::location::BlockLocation;
use crate::protocol::messages::run_update::News;
use crate::protocol::messages::{
    Accepted, LostBlock, Progress, ReadAnswer, ReadDone, ReadRequest, RunRequest, RunUpdate,
};

/// What is known of a job, while it runs and after.
#[derive(Debug, Default)]
pub(crate) struct Run {
    job: OnceLock<String>,
    progress: Mutex<Option<Progress>>,
}

impl Run {
    /// The job's id, once the scheduler has it.
    pub(crate) fn job(&self) -> Option<&str> {
        self.job.get().map(String::as_str)
    }

    /// How far the job is, or came.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.progress.lock().clone()
    }
}

/// A job whose rows go to `rows`.
pub(crate) struct Reading {
    pub(crate) cluster: Cluster,
    pub(crate) run: Arc<Run>,
    pub(crate) schema: SchemaRef,
    pub(crate) request: RunRequest,
    pub(crate) context: Arc<TaskContext>,
    pub(crate) rows: mpsc::Sender<Result<RecordBatch>>,
}

/// How a job ended, as the scheduler says it.
type Verdict = oneshot::Receiver<Result<()>>;

/// Nobody wants the rows any more.
struct Unwanted;

impl Reading {
    /// Runs the job, and reads until its end. Dropping the future cancels the job.
    pub(crate) async fn read_to_end(mut self) -> Result<()> {
        let request = std::mem::take(&mut self.request);
        let owner = request.owner.clone();
        let mut updates = self.cluster.run(request).await?;
        let Accepted { job, patience_ms, state } = self.accepted(&mut updates).await?;
        self.run.job.set(job.clone()).ok();
        let (judge, mut verdict) = oneshot::channel();
        let patience = Duration::from_millis(patience_ms);
        let (cluster, run) = (self.cluster.clone(), Arc::clone(&self.run));
        let watched = Watched { cluster, job: job.clone(), owner, state, patience, run };
        let _watching = SpawnedTask::spawn(watched.watch(updates, judge));
        let mut read = Read::default();
        let mut done = None;
        loop {
            let request = ReadRequest::new(job.clone(), done.take());
            let answer = tokio::select! {
                // A job that failed before it was planned has nothing to read, ever.
                verdict = &mut verdict => return self.judged(verdict),
                answer = self.cluster.read(request, patience) => answer,
            };
            let answer = match answer {
                Ok(answer) if !answer.is_over => answer,
                // The verdict says more than a broken connection.
                _ => return self.judgment(verdict).await,
            };
            read.confirmed(answer.counts);
            let Ok(lost) = self.deliver(&answer, &mut read).await else { return Ok(()) };
            done = Some(ReadDone { task: answer.task, lost: lost? });
        }
    }

    async fn accepted(&self, updates: &mut Streaming<RunUpdate>) -> Result<Accepted> {
        match updates.message().await.map_err(|status| self.cluster.failed(&status))? {
            Some(RunUpdate { news: Some(News::Accepted(accepted)) }) => Ok(accepted),
            _ => Err(self.cluster.stopped()),
        }
    }

    async fn judgment(&self, verdict: Verdict) -> Result<()> {
        self.judged(verdict.await)
    }

    fn judged(&self, verdict: Result<Result<()>, oneshot::error::RecvError>) -> Result<()> {
        verdict.unwrap_or_else(|_| Err(self.cluster.stopped()))
    }

    /// Reads blocks that have not been read yet. Says which one could not be had, if one could not.
    async fn deliver(
        &self,
        answer: &ReadAnswer,
        read: &mut Read,
    ) -> Result<Result<Option<LostBlock>>, Unwanted> {
        let first = match read.blocks_of(answer) {
            Ok(first) => first,
            Err(error) => return Ok(Err(error)),
        };
        let blocks = answer.blocks[first..].to_vec();
        let reader = BlockReaderExec::new(0, Arc::clone(&self.schema), vec![blocks]);
        let mut batches = match reader.read(0, &self.context, Arc::clone(self.cluster.peers())) {
            Ok(batches) => batches,
            Err(error) => return Ok(Err(error)),
        };
        let mut rows = 0;
        while let Some(batch) = batches.next().await {
            match batch {
                Ok(batch) => {
                    rows += batch.num_rows() as u64;
                    self.rows.send(Ok(batch)).await.map_err(|_| Unwanted)?;
                }
                Err(error) => {
                    let Some(lost) = BlockError::find(&error) else { return Ok(Err(error)) };
                    let Some(whole) = whole_blocks(&answer.blocks, first, rows) else {
                        return Ok(Err(error));
                    };
                    tracing::info!("{lost}; waiting for it to be made again");
                    read.keep(answer, whole);
                    let (id, problem) = (lost.id, lost.problem.clone());
                    return Ok(Ok(Some(LostBlock { id, problem })));
                }
            }
        }
        read.keep(answer, answer.blocks.len());
        Ok(Ok(None))
    }
}

/// What has been read of units that may come again, and must not be read twice.
#[derive(Debug, Default)]
struct Read {
    units: HashMap<u32, Vec<Rows>>,
    /// The unit that was read last, if all of it was.
    last: Option<u32>,
    /// Units of which all was read, and that come again.
    whole: HashSet<u32>,
}

/// The rows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rows {
    count: u64,
    checksum: u32,
}

impl Rows {
    fn of(block: &BlockLocation) -> Self {
        Self { count: block.rows, checksum: block.checksum }
    }
}

impl Read {
    /// Whether the unit that was read last counts as read.
    fn confirmed(&mut self, counts: bool) {
        let Some(unit) = self.last.take() else { return };
        if counts {
            self.units.remove(&unit);
            self.whole.remove(&unit);
        } else {
            self.whole.insert(unit);
        }
    }

    /// How many of the blocks have been read.
    ///
    /// # Errors
    /// If they are not the same blocks any more.
    fn blocks_of(&self, answer: &ReadAnswer) -> Result<usize> {
        if self.whole.contains(&answer.unit) {
            return Ok(answer.blocks.len());
        }
        let before = self.units.get(&answer.unit).map_or(&[][..], Vec::as_slice);
        let now = answer.blocks.get(..before.len()).unwrap_or_default();
        if now.iter().map(Rows::of).eq(before.iter().copied()) {
            Ok(before.len())
        } else {
            Err(RemoteError::new(
                ErrorKind::Unavailable,
                "a part of the rows was lost after other rows of the same task had been read, and \
                 the task gave other rows when it ran again; run the query again",
            )
            .into())
        }
    }

    /// The first `count` blocks have been read.
    fn keep(&mut self, answer: &ReadAnswer, count: usize) {
        let blocks = answer.blocks[..count].iter().map(Rows::of).collect();
        self.units.insert(answer.unit, blocks);
        self.last = (count == answer.blocks.len()).then_some(answer.unit);
    }
}

/// How many of the blocks have been read, if `rows` rows of those from `first` on have been. None
/// if that ends within a block: blocks come whole.
fn whole_blocks(blocks: &[BlockLocation], first: usize, rows: u64) -> Option<usize> {
    let mut left = rows;
    for (at, block) in blocks.iter().enumerate().skip(first) {
        if left == 0 {
            return Some(at);
        }
        left = left.checked_sub(block.rows)?;
    }
    (left == 0).then_some(blocks.len())
}

/// A job on its way, to be found again if its scheduler has a successor.
struct Watched {
    cluster: Cluster,
    job: String,
    owner: String,
    /// What its scheduler has, and a successor must have.
    state: String,
    /// For how long a successor is waited for.
    patience: Duration,
    run: Arc<Run>,
}

impl Watched {
    /// Listens to what schedulers say of it, until its end.
    async fn watch(self, mut updates: Streaming<RunUpdate>, judge: oneshot::Sender<Result<()>>) {
        let verdict = loop {
            let broken = match self.listen(&mut updates).await {
                Ok(verdict) => break verdict,
                Err(broken) if self.patience.is_zero() => break Err(broken),
                Err(broken) => broken,
            };
            tracing::warn!("{broken}; job {} waits for its successor", self.job);
            let known = RunRequest {
                job: self.job.clone(),
                owner: self.owner.clone(),
                state: self.state.clone(),
                ..RunRequest::default()
            };
            match self.cluster.find_again(known, self.patience).await {
                Ok(found) => updates = found,
                Err(error) => break Err(error),
            }
        };
        judge.send(verdict).ok();
    }

    /// How the job ended. An error if the line did before.
    async fn listen(&self, updates: &mut Streaming<RunUpdate>) -> Result<Result<()>> {
        loop {
            match updates.message().await {
                Ok(Some(RunUpdate { news: Some(News::Finished(_)) })) => return Ok(Ok(())),
                Ok(Some(RunUpdate { news: Some(News::Failed(failed)) })) => {
                    return Ok(Err(RemoteError::from(failed).into()));
                }
                Ok(Some(RunUpdate { news: Some(News::Progress(progress)) })) => {
                    *self.run.progress.lock() = Some(progress);
                }
                Ok(Some(_)) => {}
                Ok(None) => return Err(self.cluster.stopped()),
                Err(status) => return Err(self.cluster.failed(&status)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_count_as_read_when_all_of_their_rows_are() {
        let block = |rows| BlockLocation { rows, ..BlockLocation::default() };
        let blocks = [block(2), block(3), block(0), block(4)];
        let found = [0, 2, 5, 9, 1, 6, 10].map(|rows| whole_blocks(&blocks, 0, rows));
        assert_eq!(found, [Some(0), Some(1), Some(2), Some(4), None, None, None]);
        assert_eq!(whole_blocks(&blocks, 1, 3), Some(2));
    }

    fn answer(unit: u32, checksums: &[u32]) -> ReadAnswer {
        let block =
            |checksum: &u32| BlockLocation { checksum: *checksum, ..BlockLocation::default() };
        let blocks = checksums.iter().map(block).collect();
        ReadAnswer { unit, blocks, ..ReadAnswer::default() }
    }

    #[test]
    fn nothing_is_read_twice() {
        let mut read = Read::default();
        read.keep(&answer(0, &[7, 8, 9]), 2);
        read.confirmed(true);
        assert_eq!(read.blocks_of(&answer(1, &[7])).unwrap(), 0, "another unit");
        assert_eq!(read.blocks_of(&answer(0, &[7, 8, 1, 2])).unwrap(), 2);
        for other in [&[7][..], &[7, 1, 9], &[]] {
            let error = read.blocks_of(&answer(0, other)).unwrap_err().to_string();
            assert!(error.contains("gave other rows when it ran again"), "{error}");
        }
    }

    #[test]
    fn all_of_a_unit_is_read_once_whatever_becomes_of_it() {
        let mut read = Read::default();
        let unit = answer(0, &[7, 8]);
        read.keep(&unit, 2);
        // A worker was lost before the scheduler heard of it.
        read.confirmed(false);
        let again = answer(0, &[1, 2, 3]);
        assert_eq!(read.blocks_of(&again).unwrap(), 3);
        read.keep(&again, 3);
        read.confirmed(true);
        assert_eq!(read.blocks_of(&unit).unwrap(), 0, "forgotten");
    }
}
