//! A process that another one has followed commits nothing.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use datafusion::common::{Result, exec_err};
use futures::future::BoxFuture;
use object_store::local::LocalFileSystem;
use tempfile::TempDir;

use super::whole::{Kind, ROWS, rows, session, staging_folders, visible, write};
use crate::write::{CommitFence, Fence};

#[derive(Debug, Default)]
struct Gate {
    is_closed: AtomicBool,
    asked: AtomicUsize,
}

impl Fence for Gate {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let is_closed = self.is_closed.load(Ordering::Relaxed);
        Box::pin(async move { if is_closed { exec_err!("another one has it") } else { Ok(()) } })
    }
}

#[tokio::test]
async fn what_may_not_be_committed_is_not_seen_and_goes() {
    for kind in [Kind::File, Kind::Folder, Kind::Into] {
        let home = TempDir::new().unwrap();
        fs::create_dir(home.path().join("t")).unwrap();
        let gate = Arc::new(Gate::default());
        let session = session(Arc::new(LocalFileSystem::new()));
        let fence = CommitFence(Arc::clone(&gate) as _);
        session.state_ref().write().config_mut().set_extension(Arc::new(fence));
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
