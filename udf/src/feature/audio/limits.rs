//! What one file may cost. Silence of hours takes a few kilobytes.

/// Bytes of one file at most.
pub(super) const ENCODED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Samples of one channel at most: 512 MiB, and 46 minutes at 48 kHz.
pub(super) const SAMPLES_MAX: u64 = 128 * 1024 * 1024;

/// Samples of all rows of a batch at most: 1 GiB.
pub(super) const BATCH_SAMPLES_MAX: usize = 256 * 1024 * 1024;

/// Samples per second at most, of files and of results.
pub(super) const SAMPLE_RATE_MAX: u32 = 768_000;

/// Refuses bytes that are none or too many.
pub(super) fn check_bytes(bytes: &[u8]) -> Result<(), String> {
    match bytes.len() {
        0 => Err("there are no bytes".to_owned()),
        count if count > ENCODED_BYTES_MAX => Err(format!(
            "the file has {count} bytes, more than the {ENCODED_BYTES_MAX} that are allowed"
        )),
        _ => Ok(()),
    }
}

/// Refuses audio before memory is taken for it.
pub(super) fn check_samples(samples: u64) -> Result<(), String> {
    if samples <= SAMPLES_MAX {
        Ok(())
    } else {
        Err(format!(
            "{samples} samples are more than the {SAMPLES_MAX} that are allowed; split the file, or \
             ask for a lower sample rate"
        ))
    }
}

/// Refuses rates that no audio has.
pub(super) fn check_rate(rate: i64) -> Result<u32, String> {
    match u32::try_from(rate) {
        Ok(rate @ 1..=SAMPLE_RATE_MAX) => Ok(rate),
        _ => Err(format!("a sample rate of {rate} is none, expected 1 to {SAMPLE_RATE_MAX}")),
    }
}
