//! How many bytes the files of one worker may take, and waiting for some of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

/// Bytes for block files.
///
/// Room is asked for before rows are written, and waited for as long as blocks that are sealed may
/// still be read and removed. Blocks that are being written are of no use to anybody: if all room
/// is theirs, nobody waits.
#[derive(Debug)]
pub struct Room {
    bytes_max: u64,
    patience: Duration,
    taken: Mutex<Taken>,
    freed: Notify,
    /// Somebody waits.
    wanted: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// Of blocks that are being written.
    open: u64,
    /// Of blocks that are sealed.
    sealed: u64,
}

/// How long a writer waits while nobody removes anything: its slot may be what a reader needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// There is no room, and waiting does not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// What all files take.
    pub taken: u64,
    /// What they may take.
    pub bytes_max: u64,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.taken, self.bytes_max)
    }
}

impl Room {
    /// Room for `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Self::with_patience(bytes_max, PATIENCE)
    }

    fn with_patience(bytes_max: u64, patience: Duration) -> Arc<Self> {
        let (freed, wanted) = (Notify::new(), Notify::new());
        Arc::new(Self { bytes_max, patience, taken: Mutex::default(), freed, wanted })
    }

    /// Whether there is only so much.
    pub fn is_limited(&self) -> bool {
        self.bytes_max < u64::MAX
    }

    /// Bytes of all files.
    pub fn taken(&self) -> u64 {
        let taken = self.taken.lock();
        taken.open + taken.sealed
    }

    /// Takes room for a block that is being written.
    ///
    /// # Errors
    /// If there is none.
    pub fn take(&self, bytes: u64) -> Result<(), Full> {
        let mut taken = self.taken.lock();
        let before = taken.open + taken.sealed;
        if before + bytes > self.bytes_max {
            return Err(Full { taken: before, bytes_max: self.bytes_max });
        }
        taken.open += bytes;
        Ok(())
    }

    /// The same, once there is some.
    ///
    /// # Errors
    /// If there will be none, or never was.
    pub async fn wait(&self, bytes: u64) -> Result<(), Full> {
        loop {
            // Before it looks, so that what is freed from here on wakes it.
            let freed = self.freed.notified();
            let Err(full) = self.take(bytes) else { return Ok(()) };
            let waits_in_vain = bytes > self.bytes_max || self.taken.lock().sealed == 0;
            if waits_in_vain {
                return Err(full);
            }
            self.wanted.notify_one();
            if timeout(self.patience, freed).await.is_err() {
                return Err(full);
            }
        }
    }

    /// Until somebody waits for room. One who waited before that counts, too.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// A block that was being written is complete.
    pub fn seal(&self, bytes: u64) {
        let mut taken = self.taken.lock();
        taken.open = taken.open.saturating_sub(bytes);
        taken.sealed += bytes;
    }

    /// A block will not be completed, or needed less than it took.
    pub fn give_back_open(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut taken = self.taken.lock();
        taken.open = taken.open.saturating_sub(bytes);
        drop(taken);
        self.freed.notify_waiters();
    }

    /// Sealed blocks are gone.
    pub fn give_back_sealed(&self, bytes: u64) {
        let mut taken = self.taken.lock();
        taken.sealed = taken.sealed.saturating_sub(bytes);
        drop(taken);
        self.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::runtime::SpawnedTask;

    use super::*;

    #[tokio::test]
    async fn who_waits_gets_what_readers_free() {
        let room = Room::new(100);
        room.take(100).unwrap();
        room.seal(100);
        let waiting = Arc::clone(&room);
        let waiting = SpawnedTask::spawn(async move { waiting.wait(60).await });
        tokio::task::yield_now().await;
        room.give_back_sealed(50);
        tokio::task::yield_now().await;
        assert_eq!(room.taken(), 50);
        room.give_back_sealed(10);
        assert_eq!(waiting.join().await.unwrap(), Ok(()));
        assert_eq!(room.taken(), 100);
    }

    #[tokio::test]
    async fn that_somebody_waits_is_noticed_and_what_could_never_fit_is_not_waited_for() {
        let room = Room::new(100);
        room.take(90).unwrap();
        room.seal(90);
        assert!(room.wait(101).await.is_err());
        let waiting = Arc::clone(&room);
        let _waiting = SpawnedTask::spawn(async move { waiting.wait(20).await });
        room.wanted().await;
    }

    #[tokio::test]
    async fn nobody_waits_for_blocks_that_are_not_sealed() {
        let room = Room::new(100);
        room.take(90).unwrap();
        assert_eq!(room.wait(20).await, Err(Full { taken: 90, bytes_max: 100 }));
        assert_eq!(room.taken(), 90);
    }

    #[tokio::test]
    async fn nobody_waits_for_ever() {
        let room = Room::with_patience(100, Duration::from_millis(1));
        room.take(90).unwrap();
        room.seal(90);
        assert!(room.wait(20).await.is_err());
    }
}
