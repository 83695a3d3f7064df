//! The journal's file: what is appended to it, and when it is copied without what has ended.

use std::collections::HashMap;

use super::Records;
use super::disk::Disk;
use super::error::JournalError;
use super::frame::{self, FORMAT, Found, HEAD_BYTES, Head, Record};

const EXTENSION: &str = ".journal";
/// Of a file that is being made.
const UNFINISHED: &str = ".unfinished";

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
    /// Bytes of the records of each key that has not ended.
    live: HashMap<String, u64>,
    live_bytes: u64,
}

impl Log {
    /// Reads what is there, and writes it to a file of a new term.
    pub(super) fn open(
        disk: Box<dyn Disk>,
        place: String,
        version: &str,
    ) -> Result<(Self, Records), JournalError> {
        let mut log = Self {
            disk,
            place,
            version: version.to_owned(),
            name: String::new(),
            term: 0,
            number: 0,
            sequence: 0,
            bytes: 0,
            copied_from_bytes: COPIED_FROM_BYTES,
            live: HashMap::new(),
            live_bytes: 0,
        };
        let bytes = match log.newest()? {
            Some(newest) => log.read(&newest)?,
            None => Head { format: FORMAT, term: 0, version: version.to_owned() }.encode(),
        };
        let kept = log.kept(&bytes)?;
        log.term += 1;
        log.number = 0;
        log.write_copy(&kept)?;
        let mut records = Records::new();
        for record in kept {
            let data = record.data.unwrap_or_default().to_vec();
            records.entry(record.key.to_owned()).or_default().push(data);
        }
        Ok((log, records))
    }

    /// Greater than that of any who has opened it before.
    pub(super) fn term(&self) -> u64 {
        self.term
    }

    fn failed(&self, doing: &'static str, error: &std::io::Error) -> JournalError {
        JournalError::of_io(&self.place, doing, error)
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.place)
    }

    fn newest(&self) -> Result<Option<String>, JournalError> {
        let names = self.disk.list().map_err(|error| self.failed("read", &error))?;
        Ok(names.into_iter().filter(|name| name.ends_with(EXTENSION)).max())
    }

    fn read(&mut self, name: &str) -> Result<Vec<u8>, JournalError> {
        let bytes = self.disk.read(name).map_err(|error| self.failed("read", &error))?;
        let file = self.file(name);
        let Some(head) = Head::decode(&bytes) else {
            return Err(JournalError::NoJournal { file });
        };
        let is_empty = bytes.len() == HEAD_BYTES;
        let is_other = head.format != FORMAT || head.version != self.version;
        self.term = head.term;
        self.name = name.to_owned();
        let is_unread = head.format != FORMAT && !is_empty;
        if is_unread || (is_other && !self.kept(&bytes)?.is_empty()) {
            return Err(JournalError::OtherVersion {
                file,
                found: head.version,
                format: head.format,
                own: self.version.clone(),
                own_format: FORMAT,
            });
        }
        Ok(bytes)
    }

    /// The records whose keys have not ended.
    fn kept<'a>(&self, bytes: &'a [u8]) -> Result<Vec<Found<'a>>, JournalError> {
        let damaged = |at| JournalError::Damaged { file: self.file(&self.name), at };
        let read = frame::read(bytes).map_err(damaged)?;
        if read.cut_off > 0 {
            tracing::warn!(
                "the last record of the scheduler's journal {} was being written when it stopped: its {} \
                 bytes, which nobody was told of, are cut off",
                self.file(&self.name),
                read.cut_off
            );
        }
        let mut ends = HashMap::new();
        for (at, record) in read.records.iter().enumerate().filter(|(_, r)| r.data.is_none()) {
            ends.insert(record.key, at);
        }
        let records = read.records.into_iter().enumerate();
        let kept = records.filter(|(at, record)| {
            record.data.is_some() && ends.get(record.key).is_none_or(|end| end < at)
        });
        Ok(kept.map(|(_, record)| record).collect())
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
            self.bytes += frame.len() as u64;
        }
        found.iter().for_each(|record| self.count(record));
        self.check_newest()
    }

    /// Copies the file without what has ended, if that is most of it.
    pub(super) fn copy_if_due(&mut self) -> Result<(), JournalError> {
        if self.bytes <= self.copied_from_bytes || self.bytes <= 2 * self.live_bytes {
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

    /// Someone with a later term has the journal, on a file system that does not keep locks.
    fn check_newest(&self) -> Result<(), JournalError> {
        match self.newest()? {
            Some(newest) if newest == self.name => Ok(()),
            newest => Err(JournalError::Fenced {
                place: self.place.clone(),
                newer: newest.unwrap_or_default(),
            }),
        }
    }

    /// Writes a file of these records alone, which takes the place of all others once it is there.
    fn write_copy(&mut self, kept: &[Found<'_>]) -> Result<(), JournalError> {
        let name = format!("{:016x}-{:08}{EXTENSION}", self.term, self.number);
        let unfinished = format!("{name}{UNFINISHED}");
        let names = self.disk.list().map_err(|error| self.failed("read", &error))?;
        let ours = |found: &&String| found.ends_with(EXTENSION) || found.ends_with(UNFINISHED);
        let before: Vec<_> = names.iter().filter(ours).cloned().collect();
        if before.contains(&unfinished) {
            self.disk.remove(&unfinished).map_err(|error| self.failed("write", &error))?;
        }
        let head = Head { format: FORMAT, term: self.term, version: self.version.clone() };
        let mut bytes = head.encode();
        let mut sequence = 0;
        for group in groups(kept)? {
            bytes.extend(frame::frame(sequence, &group));
            sequence += 1;
        }
        self.append(&unfinished, &bytes)?;
        self.sync(&unfinished)?;
        self.disk.rename(&unfinished, &name).map_err(|error| self.failed("write", &error))?;
        for old in before.iter().filter(|old| **old != unfinished && **old < name) {
            // It counts no more, and the next copy tries again.
            self.disk.remove(old).ok();
        }
        (self.name, self.sequence, self.bytes) = (name, sequence, bytes.len() as u64);
        (self.live, self.live_bytes) = (HashMap::new(), 0);
        kept.iter().for_each(|record| self.count(record));
        self.check_newest()
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
