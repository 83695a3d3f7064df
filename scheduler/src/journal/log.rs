//! The journal's file: what is appended to it, and when it is copied without what is not needed.

use std::collections::HashMap;
use std::io;

use super::claim;
use super::copy::{self, Copying, Left};
use super::disk::Disk;
use super::error::JournalError;
use super::frame::{self, FORMAT, Found, HEAD_BYTES, Head, Kind, Record};
use super::names;
use super::{Fold, NEEDED, Records};

/// A frame has no more bytes, unless one record has.
const GROUP_BYTES_MAX: usize = 16 << 20;

/// A smaller file is not copied, whatever it holds.
pub(super) const COPIED_FROM_BYTES: u64 = 16 << 20;

/// The one file that is written to.
pub(super) struct Log {
    disk: Box<dyn Disk>,
    /// The folder, for people.
    place: String,
    version: String,
    name: String,
    term: u64,
    number: u64,
    sequence: u64,
    bytes: u64,
    copied_from_bytes: u64,
    /// How often something was appended to the file since it was made.
    appended: u64,
    /// Bytes of what is needed of each key that has not ended. Not of its steps, but for those that a copy has left:
    /// others can stand for them.
    needed: HashMap<String, u64>,
    needed_bytes: u64,
    /// What was written since a copy was begun that is not there yet.
    since: Option<Vec<Record>>,
}

impl Log {
    /// Reads what is there, and writes it to a file of this term, which has been claimed.
    pub(super) fn open(
        disk: Box<dyn Disk>,
        place: String,
        version: &str,
        term: u64,
    ) -> Result<(Self, Records), JournalError> {
        let mut log = Self {
            disk,
            place,
            version: version.to_owned(),
            name: String::new(),
            term,
            number: 0,
            sequence: 0,
            bytes: 0,
            copied_from_bytes: COPIED_FROM_BYTES,
            appended: 0,
            needed: HashMap::new(),
            needed_bytes: 0,
            since: None,
        };
        let bytes = match log.read_newest()? {
            Some(bytes) => bytes,
            None => Head { format: FORMAT, term: 0, version: version.to_owned() }.encode(),
        };
        let left = match Head::decode(&bytes) {
            // Nobody needs it, or this process would not be here.
            Some(head) if head.is_other(version) => Left::default(),
            _ => log.left(&bytes)?,
        };
        log.write_copy(&left)?;
        let records = left.to_records();
        Ok((log, records))
    }

    /// Whoever has come later removes the files of those before.
    fn failed(&self, doing: &'static str, error: &io::Error) -> JournalError {
        let names = self.disk.list().unwrap_or_default();
        let fenced = claim::superseded(self.disk.as_ref(), &names, &self.place, self.term);
        fenced.unwrap_or_else(|| JournalError::of_io(&self.place, doing, error))
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.place)
    }

    fn names(&self) -> Result<Vec<String>, JournalError> {
        self.disk.list().map_err(|error| self.failed("read", &error))
    }

    /// The file that counts. The one before may be at work yet, and remove what it has just copied.
    fn read_newest(&mut self) -> Result<Option<Vec<u8>>, JournalError> {
        loop {
            let names = self.names()?;
            let Some(newest) = names::newest_journal(&names) else { return Ok(None) };
            match self.disk.read(newest) {
                Ok(bytes) => return self.check(newest, bytes).map(Some),
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && names::newest_journal(&self.names()?) != Some(newest) => {}
                Err(error) => return Err(self.failed("read", &error)),
            }
        }
    }

    /// Whether this process can go on with a file.
    fn check(&mut self, name: &str, bytes: Vec<u8>) -> Result<Vec<u8>, JournalError> {
        check_version(&self.file(name), &self.version, &bytes)?;
        self.name = name.to_owned();
        Ok(bytes)
    }

    /// The records whose keys have not ended.
    fn left<'a>(&self, bytes: &'a [u8]) -> Result<Left<'a>, JournalError> {
        let file = self.file(&self.name);
        let read = copy::read(&file, bytes)?;
        if read.cut_off > 0 {
            tracing::warn!(
                "the last record of the scheduler's journal {file} was being written when it stopped: its {} \
                 bytes, which nobody was told of, are cut off",
                read.cut_off
            );
        }
        Ok(Left::of(read.records))
    }

    /// Appends records. They are on the disk when this returns.
    pub(super) fn commit(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let found: Vec<_> = records.iter().map(Record::found).collect();
        for group in groups(&found)? {
            let frame = frame::frame(self.sequence, &group);
            let name = self.name.clone();
            self.append(&name, &frame)?;
            self.sync(&name)?;
            self.sequence += 1;
            self.appended += 1;
            self.bytes += frame.len() as u64;
        }
        found.iter().for_each(|record| self.count(record));
        if let Some(since) = &mut self.since {
            since.extend_from_slice(records);
        }
        self.check_newest()
    }

    /// Begins a copy of the file without what is not needed, if that is most of it, or it consists of too many pieces. More
    /// can be written until the copy [is there](Self::end_copy); no other one is begun before that.
    pub(super) fn begin_copy(&mut self, fold: Fold) -> Result<Option<Copying>, JournalError> {
        let is_large = self.bytes > self.copied_from_bytes && self.bytes > 2 * self.needed_bytes;
        let is_due = is_large || self.appended >= self.disk.appends_max();
        if !is_due || self.since.is_some() {
            return Ok(None);
        }
        let (name, file) = (self.name.clone(), self.file(&self.name));
        let bytes = self.disk.read(&name).map_err(|error| self.failed("read", &error))?;
        self.since = Some(vec![]);
        Ok(Some(Copying { file, bytes, fold }))
    }

    /// Goes on in a file of these records, which the copy that was begun has, and those that were written since.
    pub(super) fn end_copy(&mut self, copied: &[Record]) -> Result<(), JournalError> {
        let since = self.since.take().unwrap_or_default();
        self.number += 1;
        self.write_copy(&Left::of(copied.iter().chain(&since).map(Record::found)))?;
        // The next copy would leave these steps as well, until there are more of them.
        for record in copied.iter().filter(|record| record.kind == Kind::Step) {
            if self.needed.contains_key(&record.key) {
                self.need(&record.found());
            }
        }
        Ok(())
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), JournalError> {
        self.disk.append(name, bytes).map_err(|error| self.failed("write", &error))
    }

    fn sync(&mut self, name: &str) -> Result<(), JournalError> {
        self.disk.sync(name).map_err(|error| self.failed("write", &error))
    }

    fn count(&mut self, record: &Found<'_>) {
        match record.kind {
            Kind::Stays => self.need(record),
            Kind::Step => {}
            Kind::End => self.needed_bytes -= self.needed.remove(record.key).unwrap_or(0),
        }
    }

    fn need(&mut self, record: &Found<'_>) {
        let size = record.size() as u64;
        *self.needed.entry(record.key.to_owned()).or_default() += size;
        self.needed_bytes += size;
    }

    /// Finds out whether someone with a later term has the journal.
    fn check_newest(&self) -> Result<(), JournalError> {
        let names = self.names()?;
        let (disk, place) = (self.disk.as_ref(), self.place.as_str());
        if let Some(fenced) = claim::superseded(disk, &names, place, self.term) {
            return Err(fenced);
        }
        if names::newest_journal(&names) == Some(self.name.as_str()) {
            return Ok(());
        }
        // Somebody works there without a claim.
        let term = names::newest_journals_term(&names).unwrap_or(self.term);
        let (place, who) = (self.place.clone(), claim::SOMEBODY.to_owned());
        Err(JournalError::Fenced { place, who, term })
    }

    /// Writes a file of these records alone, which takes the place of all others once it is there.
    fn write_copy(&mut self, left: &Left<'_>) -> Result<(), JournalError> {
        let name = names::journal(self.term, self.number);
        let before = self.names()?;
        let kept: Vec<_> = left.iter().collect();
        let head = Head { format: FORMAT, term: self.term, version: self.version.clone() };
        let mut bytes = head.encode();
        let mut sequence = 0;
        for group in groups(&kept)? {
            bytes.extend(frame::frame(sequence, &group));
            sequence += 1;
        }
        self.disk.put(&name, &bytes).map_err(|error| self.failed("write", &error))?;
        (self.name, self.sequence, self.bytes) = (name, sequence, bytes.len() as u64);
        (self.needed, self.needed_bytes, self.appended) = (HashMap::new(), 0, 0);
        kept.iter().for_each(|record| self.count(record));
        // Whoever has come later may read what is there.
        self.check_newest()?;
        let newest = [self.name.clone(), names::claim(self.term)];
        let is_old = |old: &&String| names::is_ours(old) && newest.iter().all(|new| *old < new);
        for old in before.iter().filter(is_old) {
            // It counts no more, and the next copy tries again.
            self.disk.remove(old).ok();
        }
        Ok(())
    }

    /// The same, of which a file of fewer bytes is not copied.
    pub(super) fn copied_from(mut self, bytes: u64) -> Self {
        self.copied_from_bytes = bytes;
        self
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Finds out whether a process of this version could go on with what is there, before it keeps others from that.
pub(super) fn check_readable(
    disk: &dyn Disk,
    place: &str,
    version: &str,
) -> Result<(), JournalError> {
    let failed = |error| JournalError::of_io(place, "read", &error);
    let names = disk.list().map_err(failed)?;
    let Some(name) = names::newest_journal(&names) else { return Ok(()) };
    let found = |read: io::Result<Vec<u8>>| match read {
        Ok(bytes) => Ok(Some(bytes)),
        // Another one has come in its place.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    };
    let Some(head) = found(disk.read_head(name))? else { return Ok(()) };
    if Head::decode(&head).is_some_and(|head| !head.is_other(version)) {
        return Ok(());
    }
    let Some(bytes) = found(disk.read(name))? else { return Ok(()) };
    check_version(&format!("{place}/{name}"), version, &bytes)
}

/// Whether a process of this version can go on with the bytes of a file: what another one has written it cannot, if
/// something that is needed has not ended.
fn check_version(file: &str, version: &str, bytes: &[u8]) -> Result<(), JournalError> {
    let Some(head) = Head::decode(bytes) else {
        return Err(JournalError::NoJournal { file: file.to_owned() });
    };
    let is_unread = !head.is_readable() && bytes.len() != HEAD_BYTES;
    let is_needed = || -> Result<bool, JournalError> {
        Ok(Left::of(copy::read(file, bytes)?.records).has(NEEDED))
    };
    if is_unread || (head.is_other(version) && is_needed()?) {
        return Err(JournalError::OtherVersion {
            file: file.to_owned(),
            found: head.version,
            format: head.format,
            own: version.to_owned(),
            own_format: FORMAT,
        });
    }
    Ok(())
}

/// Records as groups, each for a frame.
fn groups(records: &[Found<'_>]) -> Result<Vec<Vec<u8>>, JournalError> {
    let mut groups = vec![];
    let mut group = vec![];
    for record in records {
        if !record.fits() {
            let (key, bytes) = (record.key.to_owned(), record.data.len());
            return Err(JournalError::TooLarge { key, bytes });
        }
        if !group.is_empty() && group.len() + record.size() > GROUP_BYTES_MAX {
            groups.push(std::mem::take(&mut group));
        }
        record.encode(&mut group);
    }
    if !group.is_empty() {
        groups.push(group);
    }
    Ok(groups)
}
