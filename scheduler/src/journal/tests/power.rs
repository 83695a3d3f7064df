//! A folder whose machine stops at a given operation, and what is found on its disk then.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use forebay_testkit::random::Random;
use parking_lot::Mutex;

use crate::journal::disk::Disk;

/// A file: what was written, and how much of it survives for certain.
#[derive(Clone, Debug, Default)]
struct File {
    bytes: Vec<u8>,
    synced: usize,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, File>,
    /// How the files were called before, since that was last waited for.
    before: Vec<BTreeMap<String, File>>,
    operations: usize,
    stops_at: usize,
    /// The disk is full from this operation on.
    full_at: usize,
}

/// Clones are the same folder.
#[derive(Clone, Debug)]
pub(super) struct Power(Arc<Mutex<State>>);

impl Power {
    /// The machine stops at this operation.
    pub(super) fn until(stops_at: usize) -> Self {
        let state = State { stops_at, full_at: usize::MAX, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn for_ever() -> Self {
        Self::until(usize::MAX)
    }

    /// The disk is full from this operation on.
    pub(super) fn full_at(&self, operation: usize) {
        let mut state = self.0.lock();
        state.full_at = state.operations + operation;
    }

    pub(super) fn operations(&self) -> usize {
        self.0.lock().operations
    }

    /// The one file of records that counts, with its name.
    pub(super) fn newest(&self) -> (String, Vec<u8>) {
        let state = self.0.lock();
        let mut journals = state.files.iter().filter(|(name, _)| name.ends_with(".journal"));
        let (name, file) = journals.next_back().unwrap();
        (name.clone(), file.bytes.clone())
    }

    /// A folder with this file alone.
    pub(super) fn with(name: &str, bytes: Vec<u8>) -> Self {
        let power = Self::for_ever();
        let synced = bytes.len();
        power.0.lock().files.insert(name.to_owned(), File { bytes, synced });
        power
    }

    /// What is on the disk when the power is back: names as they were at some moment since they were
    /// last waited for, and of what was not waited for any part, with holes.
    pub(super) fn back(&self, random: &mut Random) -> Self {
        let state = self.0.lock();
        let mut moments = state.before.clone();
        moments.push(state.files.clone());
        let mut files = moments[random.index(moments.len())].clone();
        for (name, file) in &mut files {
            // Only its name may be of that moment.
            if let Some(now) = state.files.get(name) {
                *file = now.clone();
            }
            let unsure = file.bytes.len() - file.synced;
            let part = if random.chance(30) { unsure } else { random.index(unsure + 1) };
            let kept = file.synced + part;
            file.bytes.truncate(kept);
            if kept > file.synced && random.chance(50) {
                let hole = file.synced + random.index(kept - file.synced);
                file.bytes[file.synced..hole].fill(0);
            }
            file.synced = file.bytes.len();
        }
        let back = Self::for_ever();
        back.0.lock().files = files;
        back
    }

    /// Gives a file another name, in place of one that may have it, and waits until that survives.
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let stopped = self.operate().err();
        let mut state = self.0.lock();
        if stopped.is_some() && state.operations > state.stops_at + 1 {
            return Err(io::Error::other("the power is off"));
        }
        let before = state.files.clone();
        let file = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), file);
        if let Some(error) = stopped {
            // Between the new name and the wait for it.
            state.before.push(before);
            return Err(error);
        }
        state.before.clear();
        Ok(())
    }

    fn operate(&self) -> io::Result<parking_lot::MutexGuard<'_, State>> {
        let mut state = self.0.lock();
        state.operations += 1;
        if state.operations > state.stops_at {
            return Err(io::Error::other("the power is off"));
        }
        Ok(state)
    }
}

impl Disk for Power {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().files.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let state = self.0.lock();
        let file = state.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(file.bytes.clone())
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        // What is being written when the power goes may be there, too.
        let stopped = self.operate().err();
        let mut state = self.0.lock();
        if stopped.is_some() && state.operations > state.stops_at + 1 {
            return Err(io::Error::other("the power is off"));
        }
        let is_full = state.operations > state.full_at;
        let file = state.files.entry(name.to_owned()).or_default();
        if is_full {
            file.bytes.extend(&bytes[..bytes.len() / 2]);
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.bytes.extend(bytes);
        stopped.map_or(Ok(()), Err)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let mut state = self.operate()?;
        let file = state.files.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        file.synced = file.bytes.len();
        Ok(())
    }

    /// As the operating system does it, with a stop after each step.
    fn put(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let unfinished = format!("{name}.unfinished");
        self.0.lock().files.remove(&unfinished);
        self.append(&unfinished, bytes)?;
        self.sync(&unfinished)?;
        self.rename(&unfinished, name)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let mut state = self.operate()?;
        let before = state.files.clone();
        state.before.push(before);
        state.files.remove(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(())
    }

    fn create(&mut self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        let stopped = self.operate().err();
        let mut state = self.0.lock();
        if stopped.is_some() && state.operations > state.stops_at + 1 {
            return Err(io::Error::other("the power is off"));
        }
        if state.files.contains_key(name) {
            return stopped.map_or(Ok(false), Err);
        }
        let before = state.files.clone();
        let file = File { bytes: bytes.to_vec(), synced: bytes.len() };
        state.files.insert(name.to_owned(), file);
        if let Some(error) = stopped {
            // Between the new name and the wait for it.
            state.before.push(before);
            return Err(error);
        }
        state.before.clear();
        Ok(true)
    }

    fn claim(&mut self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        let mut state = self.operate()?;
        if state.files.contains_key(name) {
            return Ok(false);
        }
        let before = state.files.clone();
        state.before.push(before);
        let file = File { bytes: bytes.to_vec(), synced: bytes.len() };
        state.files.insert(name.to_owned(), file);
        Ok(true)
    }

    fn renew(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.operate()?;
        let file = state.files.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        *file = File { bytes: bytes.to_vec(), synced: bytes.len() };
        Ok(())
    }

    /// Nobody can tell.
    fn is_let_go(&self, _: &str) -> io::Result<bool> {
        Ok(false)
    }
}
