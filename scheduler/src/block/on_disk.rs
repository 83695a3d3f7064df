//! Threads that read blocks from the disk.

use std::sync::LazyLock;

use datafusion::common::runtime::JoinSet;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinError;

/// So many, which keep a disk busy. Whoever merges a hundred runs asks for a block of each at once, and with a thread for
/// each of them the allocator would keep memory for each thread: half a gigabyte in all.
const READERS: usize = 8;

/// Those that read from this worker's disk.
static OWN: LazyLock<Runtime> = LazyLock::new(|| threads("block-reader"));

/// Those that read from the disks of others: should one of these hang, this worker has still its own.
static OF_NEIGHBOURS: LazyLock<Runtime> = LazyLock::new(|| threads("neighbour-reader"));

/// Runs no tasks: of a runtime only its threads for work that blocks are used. A limit for how many of these ask at a
/// time would not do: one that has just answered is not idle yet when the next one is wanted, so there would be more.
#[expect(clippy::expect_used, reason = "no driver is asked for")]
fn threads(name: &str) -> Runtime {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(READERS).thread_name(name).build();
    runtime.expect("a runtime without drivers asks nothing of the system")
}

/// Reads what may have to be waited for. What has not begun when nobody waits any more is not read.
///
/// # Errors
/// If it panics.
pub(super) async fn on_disk<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    on(&OWN, read).await
}

/// The same, from another worker's disk.
///
/// # Errors
/// If it panics.
pub(super) async fn on_disk_of_neighbour<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    on(&OF_NEIGHBOURS, read).await
}

#[expect(clippy::expect_used, reason = "it has one read")]
async fn on<T: Send + 'static>(
    threads: &Runtime,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let mut reads = JoinSet::new();
    reads.spawn_blocking_on(read, threads.handle());
    reads.join_next().await.expect("it has one read, which has not been joined")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::thread;

    use futures::future::join_all;
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn many_reads_at_once_are_done_by_few_threads() {
        let threads: Arc<Mutex<HashSet<_>>> = Arc::default();
        let reads = (0..1000).map(|number| {
            let threads = Arc::clone(&threads);
            on_disk(move || {
                threads.lock().insert(thread::current().id());
                thread::yield_now();
                number
            })
        });
        let read: Vec<_> = join_all(reads).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(read, (0..1000).collect::<Vec<_>>());
        let threads = threads.lock().len();
        assert!(threads <= READERS, "{threads} threads");
        for _ in 0..2 * READERS {
            on_disk(|| panic!("on purpose")).await.unwrap_err();
        }
        assert_eq!(on_disk(|| 7).await.unwrap(), 7, "a thread survives what panics on it");
    }
}
