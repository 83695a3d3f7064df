//! The bytes of a journal: a head, then groups of records, each in a frame.
//!
//! ```text
//! head    "forebay journal\n"  format u32  term u64  version [32]  crc u32
//! frame   magic [4]  sequence u64  length u32  crc of the group u32  crc of these u32   group
//! record  kind u8 (0 stays, 1 end, 2 step)  key length u16  key  length u32  bytes
//! ```
//! All numbers are little endian, all checksums CRC-32. A group is on the disk before the next frame is
//! begun. So only the last frame can be one that was cut off: a frame that is not whole, and behind
//! which anything was written, was damaged later.

/// Changed whenever what is written here, or what its records mean, is read otherwise.
pub(super) const FORMAT: u32 = 2;

/// Frames have been the same since this format.
const FRAMES_SINCE: u32 = 1;

const FILE_MAGIC: &[u8; 16] = b"forebay journal\n";
const VERSION_BYTES: usize = 32;
pub(super) const HEAD_BYTES: usize = 64;

const FRAME_MAGIC: &[u8; 4] = b"FBJ\n";
const FRAME_HEAD_BYTES: usize = 24;

/// What a file says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) format: u32,
    pub(super) term: u64,
    pub(super) version: String,
}

impl Head {
    /// Whether another version has written it.
    pub(super) fn is_other(&self, version: &str) -> bool {
        self.format != FORMAT || self.version != version
    }

    /// Whether it can be read which records there are, whatever they mean.
    pub(super) fn is_readable(&self) -> bool {
        (FRAMES_SINCE..=FORMAT).contains(&self.format)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut version = self.version.as_bytes().to_vec();
        version.resize(VERSION_BYTES, 0);
        let mut out = FILE_MAGIC.to_vec();
        out.extend(self.format.to_le_bytes());
        out.extend(self.term.to_le_bytes());
        out.extend(version);
        out.extend(crc32fast::hash(&out).to_le_bytes());
        out
    }

    /// Nothing if these bytes do not begin as a journal.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..HEAD_BYTES)?;
        let (said, crc) = head.split_at(HEAD_BYTES - 4);
        if !head.starts_with(FILE_MAGIC) || crc32fast::hash(said) != u32_at(crc, 0)? {
            return None;
        }
        let version = said.get(28..)?;
        let end = version.iter().position(|byte| *byte == 0).unwrap_or(version.len());
        let version = String::from_utf8_lossy(&version[..end]).into_owned();
        Some(Self { format: u32_at(said, 16)?, term: u64_at(said, 20)?, version })
    }
}

/// What a record is to the others of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is there until its key ends, or others stand for it.
    Stays,
    /// The end of all before it.
    End,
    /// One of many, for which others can stand.
    Step,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) key: String,
    pub(super) kind: Kind,
    /// Of an end, nothing.
    pub(super) data: Vec<u8>,
}

/// The same where it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) key: &'a str,
    pub(super) kind: Kind,
    pub(super) data: &'a [u8],
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Self::Stays => 0,
            Self::End => 1,
            Self::Step => 2,
        }
    }

    fn of_byte(byte: u8) -> Option<Self> {
        [Self::Stays, Self::End, Self::Step].into_iter().find(|kind| kind.byte() == byte)
    }
}

impl Record {
    pub(super) fn found(&self) -> Found<'_> {
        Found { key: &self.key, kind: self.kind, data: &self.data }
    }
}

impl Found<'_> {
    /// How many bytes it takes within a group.
    pub(super) fn size(&self) -> usize {
        7 + self.key.len() + self.data.len()
    }

    /// Whether its lengths can be written.
    pub(super) fn fits(&self) -> bool {
        u16::try_from(self.key.len()).is_ok() && self.data.len() <= RECORD_BYTES_MAX
    }

    pub(super) fn encode(&self, group: &mut Vec<u8>) {
        group.push(self.kind.byte());
        group.extend((self.key.len() as u16).to_le_bytes());
        group.extend(self.key.as_bytes());
        group.extend((self.data.len() as u32).to_le_bytes());
        group.extend(self.data);
    }
}

/// No record may have more bytes.
pub(super) const RECORD_BYTES_MAX: usize = 1 << 30;

/// A frame around a group.
pub(super) fn frame(sequence: u64, group: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(FRAME_HEAD_BYTES + group.len());
    out.extend(FRAME_MAGIC);
    out.extend(sequence.to_le_bytes());
    out.extend((group.len() as u32).to_le_bytes());
    out.extend(crc32fast::hash(group).to_le_bytes());
    out.extend(crc32fast::hash(&out).to_le_bytes());
    out.extend(group);
    out
}

/// What the frames behind a head say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Read<'a> {
    pub(super) records: Vec<Found<'a>>,
    /// Bytes of a frame that was cut off while it was written.
    pub(super) cut_off: usize,
}

/// Reads all frames of a file.
///
/// # Errors
/// The place of the first frame that is damaged.
pub(super) fn read(bytes: &[u8]) -> Result<Read<'_>, usize> {
    let mut read = Read::default();
    let (mut at, mut sequence) = (HEAD_BYTES, 0);
    while at < bytes.len() {
        let head = FrameHead::at(bytes, at);
        let group = head.as_ref().and_then(|head| head.group(bytes));
        let (Some(head), Some(group)) = (&head, group) else {
            if is_followed(bytes, at, head) {
                return Err(at);
            }
            read.cut_off = bytes.len() - at;
            return Ok(read);
        };
        if head.sequence != sequence {
            return Err(at);
        }
        records(group, &mut read.records).ok_or(at)?;
        at = head.end;
        sequence += 1;
    }
    Ok(read)
}

/// Whether anything was written behind a frame that is not whole.
fn is_followed(bytes: &[u8], at: usize, head: Option<FrameHead>) -> bool {
    if head.is_some_and(|head| head.end < bytes.len()) {
        return true;
    }
    let behind = &bytes[at + 1..];
    let heads = behind.windows(FRAME_MAGIC.len()).enumerate();
    let mut heads = heads.filter(|(_, found)| found == FRAME_MAGIC);
    heads.any(|(found, _)| {
        let head = FrameHead::at(bytes, at + 1 + found);
        head.is_some_and(|head| head.group(bytes).is_some())
    })
}

/// The head of a frame that is as it was written.
struct FrameHead {
    sequence: u64,
    crc: u32,
    begin: usize,
    end: usize,
}

impl FrameHead {
    fn at(bytes: &[u8], at: usize) -> Option<Self> {
        let begin = at.checked_add(FRAME_HEAD_BYTES)?;
        let head = bytes.get(at..begin)?;
        if !head.starts_with(FRAME_MAGIC) || crc32fast::hash(&head[..20]) != u32_at(head, 20)? {
            return None;
        }
        let end = begin.checked_add(u32_at(head, 12)? as usize)?;
        Some(Self { sequence: u64_at(head, 4)?, crc: u32_at(head, 16)?, begin, end })
    }

    fn group<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let group = bytes.get(self.begin..self.end)?;
        (crc32fast::hash(group) == self.crc).then_some(group)
    }
}

fn records<'a>(mut group: &'a [u8], found: &mut Vec<Found<'a>>) -> Option<()> {
    while !group.is_empty() {
        let (kind, key_end) = (Kind::of_byte(*group.first()?)?, 3 + usize::from(u16_at(group, 1)?));
        let key = std::str::from_utf8(group.get(3..key_end)?).ok()?;
        let end = key_end.checked_add(4)?.checked_add(u32_at(group, key_end)? as usize)?;
        let data = group.get(key_end + 4..end)?;
        found.push(Found { key, kind, data });
        group = &group[end..];
    }
    Some(())
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
