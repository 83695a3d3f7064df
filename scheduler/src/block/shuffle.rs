//! What hash shuffles write, in the same room as blocks.
//!
//! Their files are Ballista's, which asks nobody before it writes: a folder per task,
//! `<work dir>/<job>/<stage>/<task>`. They are looked at while the task runs, and counted as they
//! grow. If they do not fit, the task waits like a writer of blocks, and at last fails as one does; its
//! files go with it.

use std::fs;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result};

use super::failure::DiskError;
use super::room::Full;
use super::store::BlockStore;

/// How often the files of a task are looked at while it runs.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What is written to see whether something can be: a block of a file system.
const PROBE: [u8; 4096] = [0; 4096];

/// The files of one task of a hash shuffle; gone if they are not kept.
#[derive(Debug)]
pub struct ShuffleFiles {
    store: Arc<BlockStore>,
    job: String,
    stage: u32,
    task: u32,
    folder: PathBuf,
    /// Bytes that were there when it was last looked.
    counted: u64,
    is_kept: bool,
}

impl ShuffleFiles {
    /// Those that a task will write.
    ///
    /// # Errors
    /// If the job has no plain name.
    pub fn new(store: &Arc<BlockStore>, job: &str, stage: u32, task: u32) -> Result<Self> {
        let folder = store.job_folder(job)?.join(stage.to_string()).join(task.to_string());
        let (store, job) = (Arc::clone(store), job.to_owned());
        Ok(Self { store, job, stage, task, folder, counted: 0, is_kept: false })
    }

    /// Runs what writes them, and holds it up as long as there is no room for what it wrote.
    ///
    /// # Errors
    /// Those of the work, and if there will be no room.
    pub async fn count_while<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = pin!(work);
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = look.tick() => self.count().await?,
            }
        }
    }

    /// Takes room for what has been written since the last look.
    async fn count(&mut self) -> Result<()> {
        let bytes = size(&self.folder).map_err(|error| DiskError::new(&self.folder, &error))?;
        let room = self.store.room();
        if bytes > self.counted {
            let more = bytes - self.counted;
            room.wait(more).await.map_err(|full| self.full(bytes, full))?;
        } else {
            room.give_back_open(self.counted - bytes);
        }
        self.counted = bytes;
        Ok(())
    }

    /// Counts them, once there is room, until they are removed.
    ///
    /// # Errors
    /// If there is no room, or the job is over.
    pub async fn keep(mut self) -> Result<()> {
        self.count().await?;
        self.store.keep_shuffle(&self.job, (self.stage, self.task), self.counted)?;
        self.is_kept = true;
        Ok(())
    }

    /// Why the work failed, if it failed because nothing can be written where its files go. Ballista's
    /// own errors do not say which file an operating system would not write.
    pub fn disk_error(&self) -> Option<DiskError> {
        let probe = self.folder.with_extension("probe");
        let written = self.folder.parent().map_or(Ok(()), fs::create_dir_all);
        let written = written.and_then(|()| fs::write(&probe, PROBE));
        fs::remove_file(&probe).ok();
        written.err().map(|error| DiskError::new(&probe, &error))
    }

    fn full(&self, bytes: u64, full: Full) -> DataFusionError {
        let problem = format!(
            "a task of a hash shuffle wrote {bytes} bytes, and {}; raise --work-limit, or add \
             workers, so that each has a smaller part of the shuffle",
            self.store.taken(full)
        );
        DiskError::Full(problem).into()
    }
}

impl Drop for ShuffleFiles {
    fn drop(&mut self) {
        if !self.is_kept {
            fs::remove_dir_all(&self.folder).ok();
            self.store.room().give_back_open(self.counted);
        }
    }
}

/// Bytes of all files of a folder; none if it is not there: a task without rows may write nothing.
fn size(folder: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        // The task that writes them also removes and renames some.
        let found = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found?,
        };
        bytes += if found.is_dir() { size(&entry.path())? } else { found.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use forebay_testkit::disk::SmallDisk;
    use tempfile::TempDir;

    use super::*;
    use crate::protocol::location::FileId;

    fn store(folder: &TempDir, bytes_max: u64) -> Arc<BlockStore> {
        Arc::new(BlockStore::new("w".to_owned(), folder.path().to_owned(), bytes_max))
    }

    /// A task that wrote so much.
    fn written(store: &Arc<BlockStore>, task: u32, bytes: usize) -> ShuffleFiles {
        let files = ShuffleFiles::new(store, "job", 1, task).unwrap();
        fs::create_dir_all(&files.folder).unwrap();
        fs::write(files.folder.join("data.arrow"), vec![0; bytes]).unwrap();
        files
    }

    #[tokio::test]
    async fn files_count_until_they_are_removed() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, 100);
        written(&store, 7, 60).keep().await.unwrap();
        written(&store, 8, 40).keep().await.unwrap();
        assert_eq!(store.bytes(), 100);
        store.remove("job", FileId { stage: 1, task: 7, seq: 0 });
        assert_eq!(store.bytes(), 40);
        assert!(!folder.path().join("job/1/7").exists());
        store.remove_stages("job", &[0]);
        assert_eq!(store.bytes(), 40);
        store.remove_stages("job", &[1]);
        assert_eq!(store.bytes(), 0);
        assert!(!folder.path().join("job/1").exists());
    }

    #[tokio::test]
    async fn what_does_not_fit_is_an_error_that_names_the_remedy_and_leaves_nothing() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, 100);
        let error = written(&store, 7, 101).keep().await.unwrap_err().to_string();
        for part in ["wrote 101 bytes", "0 of 100 bytes", "raise --work-limit"] {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(store.bytes(), 0);
        assert!(!folder.path().join("job/1/7").exists());
    }

    #[tokio::test]
    async fn a_task_that_writes_too_much_ends_while_it_runs() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, 100);
        let mut files = written(&store, 7, 60);
        let path = files.folder.join("data.arrow");
        let writes_on = async {
            tokio::time::sleep(LOOK_EVERY * 2).await;
            fs::write(path, vec![0; 101]).unwrap();
            std::future::pending::<Result<()>>().await
        };
        let error = files.count_while(writes_on).await.unwrap_err().to_string();
        assert!(error.contains("wrote 101 bytes") && error.contains("60 of 100 bytes"), "{error}");
        drop(files);
        assert_eq!(store.bytes(), 0);
        assert!(!folder.path().join("job/1/7").exists());
    }

    #[test]
    fn a_disk_that_is_full_or_refuses_is_why_a_task_failed_and_one_that_takes_bytes_is_not() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, u64::MAX);
        let disk_error = || ShuffleFiles::new(&store, "job", 1, 7).unwrap().disk_error();
        assert_eq!(disk_error(), None);
        assert_eq!(fs::read_dir(folder.path().join("job/1")).unwrap().count(), 0);
        match SmallDisk::mount(folder.path(), 8 << 10) {
            Ok(_disk) => {
                assert!(fs::write(folder.path().join("filler"), vec![0; 64 << 10]).is_err());
                let error = disk_error();
                assert!(matches!(error, Some(DiskError::Full(_))), "{error:?}");
            }
            Err(problem) => println!("not tried on a full file system: {problem}"),
        }
        // Refused to root as well.
        fs::remove_dir_all(folder.path().join("job")).unwrap();
        fs::write(folder.path().join("job"), "a file where a folder should be").unwrap();
        let error = disk_error();
        assert!(matches!(error, Some(DiskError::Broken(_))), "{error:?}");
    }

    #[tokio::test]
    async fn a_task_that_does_not_end_well_and_one_that_ends_too_late_leave_nothing() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, 100);
        drop(written(&store, 7, 60));
        assert!(!folder.path().join("job/1/7").exists());
        let late = written(&store, 8, 60);
        store.forget("job");
        assert!(late.keep().await.is_err());
        assert_eq!(store.bytes(), 0);
        assert!(!folder.path().join("job/1/8").exists());
    }
}
