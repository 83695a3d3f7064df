//! What messages of Arrow claim of themselves, before anybody believes it.
//!
//! A reader of Arrow takes as much memory for a compressed buffer as its first eight bytes say, which
//! may be anything, and slices its body where the message says. What no machine has ends the process.

use arrow::ipc::{MessageHeader, RecordBatch, root_as_message};
use datafusion::common::{Result, exec_datafusion_err, exec_err};

/// Says of a compressed buffer that it is not compressed after all.
const NOT_COMPRESSED: i64 = -1;

/// Whether the buffers of a message lie in its body, and take no more than `most` bytes when they are
/// decompressed. Messages without a body are fine.
///
/// # Errors
/// What a message claims that cannot be, or is too much.
pub fn check(header: &[u8], body: &[u8], most: u64) -> Result<()> {
    let message = root_as_message(header)
        .map_err(|error| exec_datafusion_err!("a message of Arrow is damaged: {error}"))?;
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => {
            message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data())
        }
        _ => None,
    };
    batch.map_or(Ok(()), |batch| check_batch(&batch, body, most))
}

fn check_batch(batch: &RecordBatch<'_>, body: &[u8], most: u64) -> Result<()> {
    if batch.length() < 0 {
        return exec_err!("a batch of Arrow has {} rows", batch.length());
    }
    let mut bytes: u64 = 0;
    for buffer in batch.buffers().into_iter().flatten() {
        let (offset, length) = (buffer.offset(), buffer.length());
        let found = usize::try_from(offset).ok().and_then(|offset| body.get(offset..));
        let found = usize::try_from(length).ok().and_then(|length| found?.get(..length));
        let Some(found) = found else {
            return exec_err!(
                "a buffer of {length} bytes at {offset} is outside of its message's body of {} bytes",
                body.len()
            );
        };
        if batch.compression().is_none() || found.is_empty() {
            continue;
        }
        bytes = bytes.saturating_add(decompressed(found)?);
        if bytes > most {
            return exec_err!(
                "the compressed buffers of a message claim {bytes} bytes, and {most} may be; send \
                 fewer rows in each"
            );
        }
    }
    Ok(())
}

/// The bytes that a compressed buffer says that it holds.
fn decompressed(buffer: &[u8]) -> Result<u64> {
    let Some((claimed, rest)) = buffer.split_first_chunk() else {
        return exec_err!("a compressed buffer of {} bytes has no length", buffer.len());
    };
    match i64::from_le_bytes(*claimed) {
        NOT_COMPRESSED => Ok(rest.len() as u64),
        claimed => u64::try_from(claimed)
            .map_err(|_| exec_datafusion_err!("a compressed buffer claims {claimed} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use arrow::ipc::CompressionType;
    use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions};

    use super::*;

    fn message(compression: Option<CompressionType>) -> (Vec<u8>, Vec<u8>) {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![7; 10_000]));
        let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let (_, message) = IpcDataGenerator::default()
            .encode(&batch, &mut DictionaryTracker::new(false), &options, &mut Default::default())
            .unwrap();
        (message.ipc_message, message.arrow_data)
    }

    #[test]
    fn what_is_true_is_let_through() {
        for compression in [None, Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME)] {
            let (header, body) = message(compression);
            check(&header, &body, 80_000).unwrap();
            let cut = check(&header, &body[..8], 80_000).unwrap_err().to_string();
            assert!(cut.contains("outside of its message's body of 8 bytes"), "{cut}");
        }
    }

    #[test]
    fn claims_are_not_believed() {
        let (header, body) = message(Some(CompressionType::ZSTD));
        let least = check(&header, &body, 79_999).unwrap_err().to_string();
        assert!(least.contains("claim 80000 bytes, and 79999 may be"), "{least}");
        // The only buffer that is not empty begins the body.
        for (claimed, said) in [(1 << 45, "claim 35184372088832 bytes"), (-2, "claims -2 bytes")] {
            let mut body = body.clone();
            body[..8].copy_from_slice(&i64::to_le_bytes(claimed));
            let error = check(&header, &body, 1 << 28).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(check(&header[..20], &body, 1 << 28).is_err());
    }
}
