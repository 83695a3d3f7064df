//! The journal's file: what is appended to it, and when it is copied without what has ended.

use std::collections::HashMap;
use std::io;

use super::claim;
use super::disk::Disk;
use super::error::JournalError;
use super::frame::{self, FORMAT, Found, HEAD_BYTES, Head, Record};
use super::names;
use super::{NEEDED, Records};

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
    /// Bytes of the records of each key that has not ended.
    live: HashMap<String, u64>,
    live_bytes: u64,
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
            live: HashMap::new(),
            live_bytes: 0,
        };
        let bytes = match log.read_newest()? {
            Some(bytes) => bytes,
            None => Head { format: FORMAT, term: 0, version: version.to_owned() }.encode(),
        };
        let kept = match Head::decode(&bytes) {
            // Nobody needs it, or this process would not be here.
            Some(head) if head.is_other(version) => vec![],
            _ => log.kept(&bytes)?,
        };
        log.write_copy(&kept)?;
        let mut records = Records::new();
        for record in kept {
            let data = record.data.unwrap_or_default().to_vec();
            records.entry(record.key.to_owned()).or_default().push(data);
        }
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
    fn kept<'a>(&self, bytes: &'a [u8]) -> Result<Vec<Found<'a>>, JournalError> {
        let file = self.file(&self.name);
        let read = read(&file, bytes)?;
        if read.cut_off > 0 {
            tracing::warn!(
                "the last record of the scheduler's journal {file} was being written when it stopped: its {} \
                 bytes, which nobody was told of, are cut off",
                read.cut_off
            );
        }
        Ok(without_ended(read.records))
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
        self.check_newest()
    }

    /// Copies the file without what has ended, if that is most of it, or it consists of too many pieces.
    pub(super) fn copy_if_due(&mut self) -> Result<(), JournalError> {
        let is_large = self.bytes > self.copied_from_bytes && self.bytes > 2 * self.live_bytes;
        if !is_large && self.appended < self.disk.appends_max() {
            return Ok(());
        }
        let name = self.name.clone();
        let bytes = self.disk.read(&name).map_err(|error| self.failed("read", &error))?;
        let kept = self.kept(&bytes)?;
        self.number += 1;
        self.write_copy(&kept)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), JournalError> {
        self.disk.append(name, bytes).map_err(|error| self.failed("write", &error))
    }

    fn sync(&mut self, name: &str) -> Result<(), JournalError> {
        self.disk.sync(name).map_err(|error| self.failed("write", &error))
    }

    fn count(&mut self, record: &Found<'_>) {
        let size = record.size() as u64;
        match record.data {
            Some(_) => {
                *self.live.entry(record.key.to_owned()).or_default() += size;
                self.live_bytes += size;
            }
            None => self.live_bytes -= self.live.remove(record.key).unwrap_or(0),
        }
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
    fn write_copy(&mut self, kept: &[Found<'_>]) -> Result<(), JournalError> {
        let name = names::journal(self.term, self.number);
        let before = self.names()?;
        let head = Head { format: FORMAT, term: self.term, version: self.version.clone() };
        let mut bytes = head.encode();
        let mut sequence = 0;
        for group in groups(kept)? {
            bytes.extend(frame::frame(sequence, &group));
            sequence += 1;
        }
        self.disk.put(&name, &bytes).map_err(|error| self.failed("write", &error))?;
        (self.name, self.sequence, self.bytes) = (name, sequence, bytes.len() as u64);
        (self.live, self.live_bytes, self.appended) = (HashMap::new(), 0, 0);
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

    #[cfg(test)]
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
    let is_unread = head.format != FORMAT && bytes.len() != HEAD_BYTES;
    let is_needed = || -> Result<bool, JournalError> {
        let left = without_ended(read(file, bytes)?.records);
        Ok(left.iter().any(|record| record.key.starts_with(NEEDED)))
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

fn read<'a>(file: &str, bytes: &'a [u8]) -> Result<frame::Read<'a>, JournalError> {
    frame::read(bytes).map_err(|at| JournalError::Damaged { file: file.to_owned(), at })
}

/// The records whose keys have not ended.
fn without_ended(records: Vec<Found<'_>>) -> Vec<Found<'_>> {
    let mut ends = HashMap::new();
    for (at, record) in records.iter().enumerate().filter(|(_, r)| r.data.is_none()) {
        ends.insert(record.key, at);
    }
    let kept = records.into_iter().enumerate().filter(|(at, record)| {
        record.data.is_some() && ends.get(record.key).is_none_or(|end| end < at)
    });
    kept.map(|(_, record)| record).collect()
}

/// Records as groups, each for a frame.
fn groups(records: &[Found<'_>]) -> Result<Vec<Vec<u8>>, JournalError> {
    let mut groups = vec![];
    let mut group = vec![];
    for record in records {
        if !record.fits() {
            let bytes = record.data.map_or(0, <[u8]>::len);
            return Err(JournalError::TooLarge { key: record.key.to_owned(), bytes });
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
