//! One attempt at a partition: its rows become files in a folder of their own.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::sync::mpsc;

use super::partitions::Partitions;
use super::staging::{Staging, abandon};
use super::target::Target;
use super::views::as_stored;
use crate::delta::stats_of;
use crate::weight;

/// Files of one attempt that may be open: as many values of partition columns can come in turn.
const OPEN_FILES_MAX: usize = 64;

/// Batches that wait for a file's sink.
const BATCHES_WAITING_MAX: usize = 1;

/// Of larger batches the sink gets pieces of about so many bytes.
const PIECE_BYTES: u64 = 256 << 20;

/// Files that are being closed while the next one is written.
const CLOSING_FILES_MAX: usize = 1;

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// Below the folder that is written: by the values of partition columns.
    pub(super) folder: Path,
    /// Where it lies.
    pub(super) path: Path,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// What the log of a Delta table says of its rows.
    pub(super) stats: Option<String>,
}

/// Writes rows to files. If it is dropped before [`Attempt::finish`], it leaves none.
pub(super) struct Attempt {
    target: Arc<Target>,
    partitions: Option<Partitions>,
    context: Arc<TaskContext>,
    store: Arc<dyn ObjectStore>,
    folder: Path,
    is_local: bool,
    open: HashMap<Path, File>,
    closing: VecDeque<File>,
    written: Vec<Written>,
    begun: usize,
    is_finished: bool,
}

impl Attempt {
    /// # Errors
    /// If the staging folder cannot be seen from here.
    pub(super) async fn begin(
        target: Arc<Target>,
        staging: &Staging,
        context: Arc<TaskContext>,
    ) -> Result<Self> {
        let store = context.runtime_env().object_store(target.store())?;
        if !staging.is_leased(store.as_ref()).await? {
            return exec_err!(
                "'{}' cannot be written from here: its staging folder '{}' is not there. If this is another \
                 machine than the session's, mount the folder on both, write to an object store, or SET \
                 forebay.write_on_workers = false",
                target.name(),
                staging.folder()
            );
        }
        Ok(Self {
            partitions: target.partitions()?,
            folder: staging.attempt(),
            is_local: staging.is_local(),
            open: HashMap::new(),
            closing: VecDeque::new(),
            written: vec![],
            begun: 0,
            is_finished: false,
            target,
            context,
            store,
        })
    }

    pub(super) async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        match &self.partitions {
            None => self.write_to(Path::default(), batch).await,
            Some(partitions) => {
                for (folder, rows) in partitions.split(&batch)? {
                    self.write_to(folder, rows).await?;
                }
                Ok(())
            }
        }
    }

    async fn write_to(&mut self, folder: Path, rows: RecordBatch) -> Result<()> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        if !self.open.contains_key(&folder) {
            self.make_room().await?;
            let path = self.folder.clone().join(self.begun.to_string());
            self.begun += 1;
            let file = File::begin(&self.target, folder.clone(), path, &self.context)?;
            self.open.insert(folder.clone(), file);
        }
        let Some(file) = self.open.get_mut(&folder) else {
            return internal_err!("no file is open for '{folder}'");
        };
        file.write(rows).await?;
        // One file has all rows that there are.
        if file.weight >= self.target.file_bytes && !self.target.is_file() {
            self.close(&folder).await?;
        }
        Ok(())
    }

    /// Closes the largest file if too many are open.
    async fn make_room(&mut self) -> Result<()> {
        if self.open.len() < OPEN_FILES_MAX {
            return Ok(());
        }
        let largest = self.open.values().max_by_key(|file| (file.weight, &file.path));
        match largest.map(|file| file.folder.clone()) {
            Some(folder) => self.close(&folder).await,
            None => Ok(()),
        }
    }

    async fn close(&mut self, folder: &Path) -> Result<()> {
        let Some(mut file) = self.open.remove(folder) else { return Ok(()) };
        file.rows = None;
        self.closing.push_back(file);
        while self.closing.len() > CLOSING_FILES_MAX {
            self.end_closing().await?;
        }
        Ok(())
    }

    async fn end_closing(&mut self) -> Result<()> {
        let Some(mut file) = self.closing.pop_front() else { return Ok(()) };
        let rows = file.ended().await?;
        let meta = self.store.head(&file.path).await?;
        let stats = match &self.target.delta {
            Some(_) => {
                let columns = self.target.file_schema();
                Some(stats_of(self.store.as_ref(), &meta, &columns).await?)
            }
            None => None,
        };
        let File { folder, path, .. } = file;
        self.written.push(Written { folder, path, rows, bytes: meta.size, stats });
        Ok(())
    }

    /// The files, in the order in which they were begun.
    pub(super) async fn finish(mut self) -> Result<Vec<Written>> {
        let mut open: Vec<_> = self.open.values().collect();
        open.sort_by_key(|file| file.number());
        let folders: Vec<_> = open.into_iter().map(|file| file.folder.clone()).collect();
        for folder in folders {
            self.close(&folder).await?;
        }
        while !self.closing.is_empty() {
            self.end_closing().await?;
        }
        self.is_finished = true;
        Ok(std::mem::take(&mut self.written))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_finished {
            // First those who write to it.
            self.open.clear();
            self.closing.clear();
            abandon(Arc::clone(&self.store), self.folder.clone(), self.is_local);
        }
    }
}

/// A file that is written by a sink of DataFusion's.
struct File {
    folder: Path,
    path: Path,
    /// What waits to be written has this weight, or had it.
    weight: u64,
    /// Stopped before its rows end, if all is dropped: that is no end of the file.
    sink: SpawnedTask<Result<u64>>,
    rows: Option<mpsc::Sender<RecordBatch>>,
    columns: SchemaRef,
}

impl File {
    fn begin(
        target: &Target,
        folder: Path,
        path: Path,
        context: &Arc<TaskContext>,
    ) -> Result<Self> {
        let (sink, columns) = (target.sink_to(&path)?, target.file_schema());
        let (sender, receiver) = mpsc::channel(BATCHES_WAITING_MAX);
        let rows = stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|batch| (Ok(batch), receiver))
        });
        let rows: SendableRecordBatchStream =
            Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&columns), rows));
        let context = Arc::clone(context);
        let sink = SpawnedTask::spawn(async move { sink.write_all(rows, &context).await });
        Ok(Self { folder, path, weight: 0, sink, rows: Some(sender), columns })
    }

    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let weight = weight::bytes(&batch) as u64;
        self.weight += weight;
        // A column of texts that are no views has room for eight times that.
        let pieces = usize::try_from(weight.div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX).max(1);
        let rows = batch.num_rows().div_ceil(pieces).max(1);
        for begin in (0..batch.num_rows()).step_by(rows) {
            let piece = batch.slice(begin, rows.min(batch.num_rows() - begin));
            self.send(as_stored(piece, &self.columns)?).await?;
        }
        Ok(())
    }

    async fn send(&mut self, batch: RecordBatch) -> Result<()> {
        if let Some(rows) = &self.rows
            && rows.send(batch).await.is_ok()
        {
            return Ok(());
        }
        // It takes no more: it says why.
        let rows = self.ended().await?;
        internal_err!("the sink of '{}' ended after {rows} rows", self.path)
    }

    async fn ended(&mut self) -> Result<u64> {
        let ended = (&mut self.sink).await;
        ended.map_err(|error| DataFusionError::External(Box::new(error)))?
    }

    fn number(&self) -> usize {
        self.path.filename().and_then(|name| name.parse().ok()).unwrap_or_default()
    }
}
