//! A write that has begun, and what becomes of it.

use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;

use super::attempt::Written;
use super::delta_commit;
use super::fence::Passage;
use super::publish::{Move, Publication, PublishError, publish};
use super::resume::left;
use super::staging::{Staging, abandon};
use super::target::Target;
use crate::delta::Transaction;

/// What a file says to people who find it in a staging folder that stays.
const RESUMABLE_TEXT: &str = "A job of forebay that can be resumed has written here what it would otherwise \
                              compute again. FORGET JOB removes it, and `forebay gc` when it is old.\n";

/// A write that has begun. Dropped before its commit, it removes what it has written, unless that stays.
pub(super) struct Write {
    target: Arc<Target>,
    store: Arc<dyn ObjectStore>,
    staging: Staging,
    publication: Publication,
    /// Of a Delta table, whose log makes files visible.
    transaction: Option<Transaction>,
    empty: Written,
    /// What may keep it from being committed here.
    passage: Passage,
    /// Whether the staging folder is there until it is committed, whatever becomes of this write.
    stays: bool,
    /// Of writes to a staging folder that stays one is at work at a time.
    alone: Option<OwnedMutexGuard<()>>,
    _lease: SpawnedTask<()>,
    is_over: bool,
}

impl Write {
    /// Opens a staging folder, and finds out whether files can be written there.
    ///
    /// # Errors
    /// Whatever would keep the write from succeeding, as far as it can be known.
    pub(super) async fn begin(target: Arc<Target>, context: &Arc<TaskContext>) -> Result<Self> {
        let cannot = cannot_be_written(&target);
        let begun = Self::try_begin(target, context, None, false).await;
        begun.map_err(|error| error.context(cannot))
    }

    /// The same, in a staging folder that stays.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub(super) async fn begin_resumable(
        target: Arc<Target>,
        context: &Arc<TaskContext>,
    ) -> Result<Staging> {
        let cannot = cannot_be_written(&target);
        let begun = Self::try_begin(target, context, None, true).await;
        Ok(begun.map_err(|error| error.context(cannot))?.staging.clone())
    }

    /// Goes on in a staging folder that has stayed; nothing if all of it has been committed by now.
    ///
    /// # Errors
    /// As [`Self::begin`], and if the folder is gone.
    pub(super) async fn go_on(
        target: Arc<Target>,
        context: &Arc<TaskContext>,
        staging: &Staging,
    ) -> Result<Option<Self>> {
        let cannot = cannot_be_written(&target);
        let begun = Self::try_go_on(target, context, staging).await;
        begun.map_err(|error| error.context(cannot))
    }

    async fn try_go_on(
        target: Arc<Target>,
        context: &Arc<TaskContext>,
        staging: &Staging,
    ) -> Result<Option<Self>> {
        let alone = left::alone(staging).await;
        let store = context.runtime_env().object_store(target.store())?;
        left::check_is_there(&store, staging).await?;
        let transaction = delta_commit::begin(&target, staging, context).await?;
        if left::is_committed(&store, staging, target.place(), transaction.as_ref()).await? {
            return Ok(None);
        }
        let mut write = Self::try_begin(target, context, Some(staging), true).await?;
        write.alone = Some(alone);
        Ok(Some(write))
    }

    async fn try_begin(
        target: Arc<Target>,
        context: &Arc<TaskContext>,
        left: Option<&Staging>,
        stays: bool,
    ) -> Result<Self> {
        target.partitions()?;
        let store = context.runtime_env().object_store(target.store())?;
        let publication = publication(&target, store.as_ref()).await?;
        let staging = staging(&target, &publication, left)?;
        let transaction = delta_commit::begin(&target, &staging, context).await?;
        let path = staging.empty();
        let empty = Written { folder: Path::default(), path, rows: 0, bytes: 0, stats: None };
        let _lease = staging.keep(Arc::clone(&store));
        let passage = Passage::of(target.name(), context);
        let (alone, is_over) = (None, false);
        let mut write = Self {
            target,
            store,
            staging,
            publication,
            transaction,
            empty,
            passage,
            stays,
            alone,
            _lease,
            is_over,
        };
        write.staging.renew(write.store.as_ref()).await?;
        // As it will be done with the rows: where, in this format, with these columns.
        let nothing = EmptyExec::new(write.target.file_schema()).execute(0, Arc::clone(context))?;
        write.target.sink_to(&write.empty.path)?.write_all(nothing, context).await?;
        write.empty.bytes = write.store.head(&write.empty.path).await?.size;
        if stays && left.is_none() {
            let text = PutPayload::from_static(RESUMABLE_TEXT.as_bytes());
            write.store.put(&write.staging.resumable(), text).await?;
        }
        Ok(write)
    }

    pub(super) fn staging(&self) -> &Staging {
        &self.staging
    }

    pub(super) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// The files that count. What is written anew has its columns even if it has no row.
    pub(super) fn with_columns(&self, mut written: Vec<Written>) -> Result<Vec<Written>> {
        if written.is_empty() && self.target.is_new && self.target.partitions()?.is_none() {
            written.push(self.empty.clone());
        }
        Ok(written)
    }

    /// Makes these files visible; gives back the number of their rows, and counts what there is to count.
    ///
    /// # Errors
    /// If that failed. What has become of the files is said.
    pub(super) async fn commit_counted(
        self,
        written: Vec<Written>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<u64> {
        let sum = |of: fn(&Written) -> u64| written.iter().map(of).sum::<u64>();
        let (rows, bytes, files) = (sum(|file| file.rows), sum(|file| file.bytes), written.len());
        // It comes to its end even if nobody waits for that any more: a part of it would be seen.
        let commit = Handle::current().spawn(self.commit(written));
        commit.await.map_err(|error| DataFusionError::External(Box::new(error)))??;
        let count = |name| MetricBuilder::new(metrics).counter(name, 0);
        count("rows_written").add(rows as usize);
        count("bytes_written").add(bytes as usize);
        count("files").add(files);
        Ok(rows)
    }

    async fn commit(mut self, written: Vec<Written>) -> Result<()> {
        // What is in the staging folder may be needed to complete it, whatever becomes of this process.
        self.is_over = true;
        match self.published(written).await {
            Ok(()) if self.stays => {
                let place = self.target.place();
                let noted = left::note_committed(&self.store, &self.staging, place).await;
                noted.map_err(|error| {
                    error.context(format!(
                        "what was written to '{}' is visible, and a loss of power might take a part of it; \
                         RESUME JOB tries to make it safe",
                        self.target.name()
                    ))
                })
            }
            // The commit stands, whatever is left behind; `forebay gc` finds it.
            Ok(()) => {
                self.staging.remove(&self.store).await.ok();
                Ok(())
            }
            Err(PublishError::Undone(error) | PublishError::Unknown(error)) if self.stays => {
                Err(error)
            }
            Err(PublishError::Undone(error)) => Err(self.given_up(error).await),
            Err(PublishError::Unknown(error)) => {
                // Whatever may count lies outside of it.
                self.staging.remove(&self.store).await.ok();
                Err(error)
            }
            Err(PublishError::Halfway(error)) => {
                let (name, folder) = (self.target.name().to_owned(), self.staging.parent());
                let completes = if self.stays { "RESUME JOB" } else { "`forebay gc`" };
                let state = match self.publication {
                    Publication::File(_) => "it may be there or not".to_owned(),
                    _ => format!("a part of its files may be in '{folder}', which has no _SUCCESS"),
                };
                Err(error.context(format!(
                    "the write to '{name}' had been decided when the store refused to go on, and {state}; \
                     {completes} completes it"
                )))
            }
        }
    }

    async fn published(&self, written: Vec<Written>) -> Result<(), PublishError> {
        if !self.staging.is_leased(self.store.as_ref()).await? {
            let folder = self.staging.folder();
            return Err(exec_datafusion_err!(
                "the staging folder '{folder}' was removed before the commit, by `forebay gc` with too low an \
                 age or by hand; run the statement again"
            )
            .into());
        }
        self.passage.pass().await?;
        let moves = self.moves(&written);
        let (store, passage, stays) = (self.store.as_ref(), &self.passage, self.stays);
        if let Some(transaction) = &self.transaction {
            let folder = self.staging.parent();
            if stays {
                let transaction = Some(transaction);
                left::note_moves(store, &self.staging, &folder, &moves, transaction).await?;
            }
            let of = (transaction, passage);
            return delta_commit::commit(store, &folder, of, &written, &moves, stays).await;
        }
        if stays && matches!(self.publication, Publication::Folder(_)) {
            let table = self.staging.table();
            left::note_moves(store, &self.staging, &table, &moves, None).await?;
        }
        publish(store, &self.staging, (&self.publication, passage), &moves, stays).await
    }

    /// Files are numbered in the order in which they came: that of their rows, if they have one.
    fn moves(&self, written: &[Written]) -> Vec<Move> {
        let (id, extension) = (self.staging.id(), self.target.extension());
        let name = |(number, file): (usize, &Written)| Move {
            from: file.path.clone(),
            name: file.folder.clone().join(format!("part-{}-{id}.{extension}", place(number))),
        };
        written.iter().enumerate().map(name).collect()
    }

    /// Removes what was written, and gives back why.
    pub(super) async fn given_up(mut self, error: DataFusionError) -> DataFusionError {
        self.is_over = self.staging.remove(&self.store).await.is_ok();
        error
    }
}

/// A number of five digits, or a letter for each digit more, and all of them: as texts they compare as numbers do.
fn place(number: usize) -> String {
    let digits = format!("{number:05}");
    match digits.len() - 5 {
        0 => digits,
        more => format!("{}{digits}", char::from(b'a' + more as u8 - 1)),
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        if !self.is_over && !self.stays {
            let folder = self.staging.folder().clone();
            abandon(Arc::clone(&self.store), folder, self.staging.is_local());
        }
    }
}

fn cannot_be_written(target: &Target) -> String {
    format!("'{}' cannot be written", target.name())
}

/// Where a write lies until its commit: in a new folder, or in one that it has from before.
fn staging(target: &Target, publication: &Publication, left: Option<&Staging>) -> Result<Staging> {
    let folder = match publication {
        Publication::File(name) | Publication::Folder(name) => name.parent().unwrap_or_default(),
        Publication::Into(folder) => folder.clone(),
    };
    match left {
        None => Ok(Staging::new_in(&folder, target.is_local())),
        Some(staging) if staging.parent() == folder => Ok(staging.clone()),
        Some(_) => exec_err!(
            "it is there by now, and was not when the job began, whose files become visible as a new folder; \
             move it away"
        ),
    }
}

/// How a target becomes visible.
///
/// # Errors
/// If it is to be new, and there are files.
async fn publication(target: &Target, store: &dyn ObjectStore) -> Result<Publication> {
    let place = target.place().clone();
    let on_disk = std::path::Path::new("/").join(place.as_ref());
    if target.is_file() {
        if target.is_local() && on_disk.is_dir() {
            return exec_err!("it is a folder; end its name with '/' to write files into it");
        }
        return Ok(Publication::File(place));
    }
    if !target.is_new {
        return Ok(Publication::Into(place));
    }
    let mut found = store.list(Some(&place));
    while let Some(file) = found.next().await.transpose()? {
        let name = file.location.as_ref()[place.as_ref().len()..].trim_start_matches('/');
        if !name.starts_with(['_', '.']) {
            return exec_err!(
                "there are files in it, such as '{name}', and COPY does not mix its own with others; remove \
                 them, name another folder, or add to them with CREATE EXTERNAL TABLE and INSERT INTO"
            );
        }
    }
    Ok(match target.is_local() && !on_disk.exists() {
        true => Publication::Folder(place),
        false => Publication::Into(place),
    })
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn files_sort_by_their_names_however_many_there_are() {
        let numbers = [0, 1, 99, 99_999, 100_000, 999_999, 1_000_000, 12_345_678, usize::MAX];
        let names = numbers.map(place);
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        assert_eq!(names[..5], ["00000", "00001", "00099", "99999", "a100000"]);
    }
}
