//! What a file says between its markers that the decoder does not tell.

/// What EXIF says begins with this, in a segment of this kind.
const EXIF: (u8, &[u8]) = (0xe1, b"Exif\0\0");
const START_OF_SCAN: u8 = 0xda;
const END_OF_IMAGE: [u8; 2] = [0xff, 0xd9];

/// What stands between two markers.
struct Segment<'a> {
    kind: u8,
    content: &'a [u8],
    /// Where the content begins in the file.
    start: usize,
}

/// The EXIF block.
pub(super) fn exif(bytes: &[u8]) -> Option<&[u8]> {
    segments(bytes)
        .filter(|segment| segment.kind == EXIF.0)
        .find_map(|segment| segment.content.strip_prefix(EXIF.1))
}

/// Decoders show grey where data are missing. That is for viewers; here an image that ends early is
/// a bad value.
pub(super) fn check_complete(bytes: &[u8]) -> Result<(), String> {
    // Before the pixels there may be a preview, which has an end of its own.
    let scan = segments(bytes).find(|segment| segment.kind == START_OF_SCAN);
    let pixels = scan.map_or(bytes, |scan| &bytes[scan.start..]);
    let is_complete = pixels.windows(2).rev().any(|pair| pair == END_OF_IMAGE);
    if is_complete { Ok(()) } else { Err("the image ends before its data are complete".to_owned()) }
}

/// The segments up to the first scan. What is between them and belongs to none is passed over, as the
/// decoder does.
fn segments(bytes: &[u8]) -> impl Iterator<Item = Segment<'_>> {
    let mut next = Some(2);
    std::iter::from_fn(move || {
        let from = next.take()?;
        let is_marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff);
        let marker = from + bytes.get(from..)?.windows(2).position(is_marker)?;
        let &[_, kind, high, low] = bytes.get(marker..marker + 4)? else { return None };
        let (start, end) = (marker + 4, marker + 2 + usize::from(u16::from_be_bytes([high, low])));
        let content = bytes.get(start..end)?;
        next = (kind != START_OF_SCAN).then_some(end);
        Some(Segment { kind, content, start })
    })
}
