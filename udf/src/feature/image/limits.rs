//! What one image may cost. A few hundred bytes can claim to be a picture of a terabyte.

/// Bytes of one encoded image at most.
pub(super) const ENCODED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Pixels of one image at most: 192 MiB as RGB. Phones take 50 to 64 million.
pub(super) const PIXELS_MAX: u64 = 64 * 1024 * 1024;

/// Pixels of one side at most, as in JPEG.
pub(super) const SIDE_MAX: u32 = 65_535;

/// Refuses bytes that are none or too many.
pub(super) fn check_bytes(bytes: &[u8]) -> Result<(), String> {
    match bytes.len() {
        0 => Err("there are no bytes".to_owned()),
        count if count > ENCODED_BYTES_MAX => Err(format!(
            "the image has {count} bytes, more than the {ENCODED_BYTES_MAX} that are allowed"
        )),
        _ => Ok(()),
    }
}

/// Refuses an image before memory is taken for its pixels.
pub(super) fn check_size(width: u32, height: u32) -> Result<(), String> {
    if width == 0 || height == 0 {
        return Err(format!("an image of {width}x{height} has no pixels"));
    }
    if width > SIDE_MAX || height > SIDE_MAX {
        return Err(format!(
            "an image of {width}x{height} has a side of more than {SIDE_MAX} pixels"
        ));
    }
    let pixels = u64::from(width) * u64::from(height);
    if pixels > PIXELS_MAX {
        return Err(format!(
            "an image of {width}x{height} has {pixels} pixels, more than the {PIXELS_MAX} that are \
             allowed"
        ));
    }
    Ok(())
}
