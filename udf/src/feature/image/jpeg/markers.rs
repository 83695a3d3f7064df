//! What a file says between its markers that the decoder does not tell.

/// What EXIF says begins with this, in a segment of this kind.
const EXIF: (u8, &[u8]) = (0xe1, b"Exif\0\0");
const START_OF_SCAN: u8 = 0xda;
const END_OF_IMAGE: [u8; 2] = [0xff, 0xd9];

/// Kind, and what is in it with all that follows.
type Segment<'a> = (u8, &'a [u8], usize);

/// The EXIF block.
pub(super) fn exif(bytes: &[u8]) -> Option<&[u8]> {
    segments(bytes)
        .filter(|(kind, ..)| *kind == EXIF.0)
        .find_map(|(_, content, _)| content.strip_prefix(EXIF.1))
}

/// Decoders show grey where data are missing. That is for viewers; here an image that ends early is
/// a bad value.
pub(super) fn check_complete(bytes: &[u8]) -> Result<(), String> {
    // Before the pixels there may be a preview, which has an end of its own.
    let scan = segments(bytes).find(|(kind, ..)| *kind == START_OF_SCAN);
    let pixels = scan.map_or(bytes, |(.., at)| &bytes[at..]);
    let is_complete = pixels.windows(2).rev().any(|pair| pair == END_OF_IMAGE);
    if is_complete { Ok(()) } else { Err("the image ends before its data are complete".to_owned()) }
}

/// The segments up to the first scan, each with the place of its content.
fn segments(bytes: &[u8]) -> impl Iterator<Item = Segment<'_>> {
    let mut next = Some(2);
    std::iter::from_fn(move || {
        let mut at = next.take()?;
        // Any number of these bytes may come before a marker.
        while bytes.get(at..at + 2)? == [0xff, 0xff] {
            at += 1;
        }
        let &[0xff, kind, high, low] = bytes.get(at..at + 4)? else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let content = bytes.get(at + 4..at + 2 + length)?;
        next = (kind != START_OF_SCAN).then_some(at + 2 + length);
        Some((kind, content, at + 4))
    })
}
