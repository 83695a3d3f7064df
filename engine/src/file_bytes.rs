//! Bytes of files.

use std::fs::File;
use std::io;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};

/// Reads so many bytes of a file from there on, or fewer, if there are fewer: into memory that nobody has filled before,
/// and with as few calls as the kernel takes.
///
/// # Errors
/// If they cannot be read.
pub fn read_at(file: &File, at: u64, bytes: usize) -> io::Result<Bytes> {
    let mut memory = Vec::with_capacity(bytes);
    while memory.len() < bytes {
        let next = at + memory.len() as u64;
        match pread(file, spare_capacity(&mut memory), next) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // There may be room for more than was asked for.
    memory.truncate(bytes);
    Ok(Bytes::from(memory))
}
