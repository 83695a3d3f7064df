//! Reads an ONNX file without its weights: what the messages of `proto.rs` do not hold is skipped in the file,
//! too, so that a model of any size takes no more memory than its graph.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use prost::bytes::Buf;
use prost::{DecodeError, Message};

use super::proto;
use crate::model::hashes::open_regular;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 16;

/// Why a file is not read.
#[derive(Debug)]
pub(super) enum Unread {
    /// By the operating system.
    Io(io::Error),
    /// It is a pointer of Git LFS.
    Pointer,
    /// It is not what `proto.rs` says.
    Damaged(DecodeError),
}

pub(super) fn read(path: &Path) -> Result<proto::Model, Unread> {
    let mut file = Chunks::open(path).map_err(Unread::Io)?;
    if file.chunk().starts_with(b"version https://git-lfs") {
        return Err(Unread::Pointer);
    }
    let decoded = proto::Model::decode(&mut file);
    match file.failed {
        Some(error) => Err(Unread::Io(error)),
        None => decoded.map_err(Unread::Damaged),
    }
}

/// A file as a sequence of bytes of which some are in memory.
struct Chunks {
    file: File,
    chunk: Vec<u8>,
    /// Where in the chunk the rest begins.
    at: usize,
    /// Bytes of the file behind the chunk.
    behind: usize,
    /// What it could not read; zeros are in its place then, which no message begins with.
    failed: Option<io::Error>,
}

impl Chunks {
    fn open(path: &Path) -> io::Result<Self> {
        let file = open_regular(path)?;
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let mut chunks = Self { file, chunk: vec![], at: 0, behind: bytes, failed: None };
        chunks.fill(0);
        chunks.failed.take().map_or(Ok(chunks), Err)
    }

    /// Reads the next chunk, behind so many bytes that nobody wants.
    fn fill(&mut self, skipped: usize) {
        self.behind -= skipped;
        self.chunk.resize(self.behind.min(CHUNK), 0);
        (self.at, self.behind) = (0, self.behind - self.chunk.len());
        let mut read = || {
            if skipped > 0 {
                self.file
                    .seek(SeekFrom::Current(i64::try_from(skipped).map_err(io::Error::other)?))?;
            }
            self.file.read_exact(&mut self.chunk)
        };
        let result = if self.failed.is_none() { read() } else { Ok(()) };
        if let Err(error) = result {
            self.failed = Some(error);
        }
        if self.failed.is_some() {
            self.chunk.fill(0);
        }
    }
}

impl Buf for Chunks {
    fn remaining(&self) -> usize {
        self.chunk.len() - self.at + self.behind
    }

    fn chunk(&self) -> &[u8] {
        &self.chunk[self.at..]
    }

    fn advance(&mut self, count: usize) {
        let here = self.chunk.len() - self.at;
        if count < here {
            self.at += count;
        } else {
            self.fill(count - here);
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::encoding::{WireType, encode_key, encode_varint};

    use super::*;

    /// A field of bytes, as protobuf writes it.
    fn field(tag: u32, bytes: &[u8]) -> Vec<u8> {
        let mut field = vec![];
        encode_key(tag, WireType::LengthDelimited, &mut field);
        encode_varint(bytes.len() as u64, &mut field);
        field.extend_from_slice(bytes);
        field
    }

    /// A model with weights of these sizes in bytes, which are part of the file.
    fn model(sizes: &[usize]) -> Vec<u8> {
        let mut graph = vec![];
        for (at, size) in sizes.iter().enumerate() {
            let name = format!("weights {at}");
            let tensor = proto::Tensor {
                dims: vec![1, *size as i64],
                data_type: 2,
                name,
                ..Default::default()
            };
            let raw_data = field(9, &vec![0xff; *size]);
            graph.extend(field(5, &[tensor.encode_to_vec(), raw_data].concat()));
        }
        let whole = proto::Model { ir_version: 8, ..Default::default() };
        [whole.encode_to_vec(), field(7, &graph)].concat()
    }

    #[test]
    fn weights_are_skipped_and_all_else_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let edges = [CHUNK - 64, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK];
        let sizes: Vec<usize> =
            edges.into_iter().chain(0..200).chain(CHUNK - 300..CHUNK - 200).collect();
        let bytes = model(&sizes);
        std::fs::write(file.path(), &bytes).unwrap();
        let found = read(file.path()).unwrap();
        assert_eq!(found, proto::Model::decode(bytes.as_slice()).unwrap());
        assert_eq!(found.graph.unwrap().initializer.len(), sizes.len());
    }

    #[test]
    fn a_file_that_was_cut_off_is_damaged_wherever_it_ends() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes = model(&[10, CHUNK, 10]);
        for end in [3, 20, 60, CHUNK, bytes.len() - 11, bytes.len() - 1] {
            std::fs::write(file.path(), &bytes[..end]).unwrap();
            assert!(matches!(read(file.path()), Err(Unread::Damaged(_))), "{end}");
        }
        std::fs::write(file.path(), b"version https://git-lfs.github.com/spec/v1").unwrap();
        assert!(matches!(read(file.path()), Err(Unread::Pointer)));
        assert!(matches!(read(file.path().parent().unwrap()), Err(Unread::Io(_))));
    }

    #[test]
    fn what_cannot_be_read_is_an_error_of_the_system() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), model(&[CHUNK, 10])).unwrap();
        let mut chunks = Chunks::open(file.path()).unwrap();
        std::fs::write(file.path(), b"shorter").unwrap();
        assert!(proto::Model::decode(&mut chunks).is_err());
        assert!(chunks.failed.is_some());
    }
}
