//! Characters that would steer a terminal instead of being seen.

/// Whether a terminal acts on the character, or shows those behind it in another order.
fn steers(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
}

/// Appends the character as it may be seen: `\u{1b}`, `\t`, `\n`.
pub(crate) fn push(text: &mut String, c: char) {
    if steers(c) { text.extend(c.escape_debug()) } else { text.push(c) }
}

/// A text whose lines may stay lines.
pub(crate) fn lines(text: &str) -> String {
    let mut seen = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' { seen.push(c) } else { push(&mut seen, c) }
    }
    seen
}

/// A message, which may also have tabs.
pub(crate) fn message(text: &str) -> String {
    lines(&text.replace('\t', "    "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_is_seen() {
        assert_eq!(lines("a\u{1b}[31m\u{9b}\r\u{202e}é\nb"), "a\\u{1b}[31m\\u{9b}\\r\\u{202e}é\nb");
        assert_eq!(message("a\tb"), "a    b");
    }
}
