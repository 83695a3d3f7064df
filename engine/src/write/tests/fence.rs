//! A process that another one has followed commits nothing.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use datafusion::common::{Result, exec_err};
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use futures::future::BoxFuture;
use object_store::local::LocalFileSystem;
use tempfile::TempDir;

use super::delta;
use super::whole::{Kind, ROWS, rows, session, staged, staging_folders, visible, write};
use crate::write::{CommitFence, Fence};

#[derive(Debug, Default)]
struct Gate {
    is_closed: AtomicBool,
    /// Closed for who comes after so many.
    lets_in: Option<usize>,
    asked: AtomicUsize,
}

impl Fence for Gate {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let is_late = self.lets_in.is_some_and(|lets_in| asked >= lets_in);
        let is_closed = self.is_closed.load(Ordering::Relaxed) || is_late;
        Box::pin(async move { if is_closed { exec_err!("another one has it") } else { Ok(()) } })
    }
}

fn fenced(gate: &Arc<Gate>) -> SessionContext {
    let session = session(Arc::new(LocalFileSystem::new()));
    let fence = CommitFence(Arc::clone(gate) as _);
    session.state_ref().write().config_mut().set_extension(Arc::new(fence));
    session
}

/// Files of a large write are arranged for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_followed_while_it_moves_files_does_not_show_them() {
    let gate = || Arc::new(Gate { lets_in: Some(1), ..Gate::default() });
    let (home, closes) = (TempDir::new().unwrap(), gate());
    let refused = write(&fenced(&closes), Kind::Folder, home.path()).await.unwrap_err();
    assert!(refused.to_string().contains("another one has it"), "{refused}");
    assert_eq!(closes.asked.load(Ordering::Relaxed), 2);
    assert_eq!((visible(home.path()).len(), staging_folders(home.path())), (0, 0));

    let (home, closes) = (TempDir::new().unwrap(), gate());
    delta::create(home.path()).await;
    let session = fenced(&closes);
    let plan = delta::planned(&session, home.path(), false).await.unwrap();
    let refused = collect(staged(&plan), session.task_ctx()).await.unwrap_err();
    assert!(refused.to_string().contains("another one has it"), "{refused}");
    assert_eq!(closes.asked.load(Ordering::Relaxed), 2);
    assert_eq!((delta::counting(home.path()).await.len(), staging_folders(home.path())), (0, 0));
    let left = visible(home.path())
        .into_iter()
        .filter(|file| file.extension().is_some_and(|end| end == "parquet"));
    assert_eq!(left.count(), 0);
}

#[tokio::test]
async fn what_may_not_be_committed_is_not_seen_and_goes() {
    for kind in [Kind::File, Kind::Folder, Kind::Into] {
        let home = TempDir::new().unwrap();
        fs::create_dir(home.path().join("t")).unwrap();
        let gate = Arc::new(Gate::default());
        let session = fenced(&gate);
        gate.is_closed.store(true, Ordering::Relaxed);
        let refused = write(&session, kind, home.path()).await.unwrap_err().to_string();
        assert!(
            refused.contains("is not committed") && refused.contains("another one has it"),
            "{kind:?}: {refused}"
        );
        assert_eq!(gate.asked.load(Ordering::Relaxed), 1, "{kind:?}");
        let seen = visible(home.path());
        assert!(seen.is_empty(), "{kind:?}: {seen:?}");
        assert_eq!(staging_folders(home.path()), 0, "{kind:?}");
        gate.is_closed.store(false, Ordering::Relaxed);
        assert_eq!(write(&session, kind, home.path()).await.unwrap(), ROWS as u64, "{kind:?}");
        assert_eq!(rows(&visible(home.path())), ROWS as usize, "{kind:?}");
    }
}
