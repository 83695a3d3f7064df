//! Where a text is cut, given its tokens.
//!
//! Chunks are slices of the text: each begins with its first token and ends with its last, so white
//! space between two chunks is in neither. A chunk is as long as the limit allows and ends in front of
//! a word, unless a word alone is too long. The next one begins at the first word among the `overlap`
//! last tokens of it.

/// What one text may become: with a large overlap, chunks are many times the text.
const CHUNKS_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A token, as a part of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// In bytes, at a boundary of characters.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Whether a word begins with it.
    pub(super) begins_word: bool,
}

/// How much a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    max_tokens: usize,
    overlap: usize,
}

impl Limits {
    /// For a tokenizer that adds `special` tokens to each text.
    pub(super) fn try_new(max_tokens: i64, overlap: i64, special: usize) -> Result<Self, String> {
        let expected = "expected an overlap of 0 or more and a larger max_tokens";
        let (Ok(most), Ok(common)) = (usize::try_from(max_tokens), usize::try_from(overlap)) else {
            return Err(format!("max_tokens is {max_tokens} and overlap is {overlap}, {expected}"));
        };
        if most <= special {
            return Err(match special {
                0 => format!("max_tokens is {max_tokens}, expected 1 or more"),
                _ => format!(
                    "max_tokens is {max_tokens}, of which the tokenizer takes {special} for its \
                     special tokens; expected {} or more",
                    special + 1
                ),
            });
        }
        if common >= most - special {
            let of_text = match special {
                0 => String::new(),
                _ => format!(" ({} without the tokenizer's special tokens)", most - special),
            };
            return Err(format!(
                "overlap is {overlap} and max_tokens is {max_tokens}{of_text}, {expected}"
            ));
        }
        Ok(Self { max_tokens: most - special, overlap: common })
    }
}

/// The chunks of a text.
///
/// `count` tells how many tokens a part of the text has when it stands alone: not all tokenizers find
/// the same tokens then. A chunk is cut shorter until that too is within the limit.
pub(super) fn chunks<'a>(
    text: &'a str,
    tokens: &[Token],
    limits: Limits,
    count: impl Fn(&str) -> Result<usize, String>,
) -> Result<Vec<&'a str>, String> {
    let (mut found, mut bytes, mut start) = (vec![], 0, 0);
    while start < tokens.len() {
        let (chunk, end) = longest(text, tokens, start, limits.max_tokens, &count)?;
        bytes += chunk.len();
        if bytes > CHUNKS_BYTES_MAX {
            return Err(format!(
                "the chunks of a text of {} bytes have more than {CHUNKS_BYTES_MAX} bytes; \
                 choose a smaller overlap",
                text.len()
            ));
        }
        found.push(chunk);
        if end == tokens.len() {
            break;
        }
        start = next_start(tokens, start, end, limits.overlap);
    }
    Ok(found)
}

/// The longest chunk that begins with a token, and the token behind it.
fn longest<'a>(
    text: &'a str,
    tokens: &[Token],
    start: usize,
    max_tokens: usize,
    count: &impl Fn(&str) -> Result<usize, String>,
) -> Result<(&'a str, usize), String> {
    let mut room = max_tokens;
    loop {
        let end = cut(tokens, start, room);
        let chunk = slice(text, tokens[start].start, tokens[end - 1].end);
        let excess = count(chunk)?.saturating_sub(max_tokens);
        // What cannot be cut stays: a character of several tokens.
        if excess == 0 || end == cut(tokens, start, 1) {
            return Ok((chunk, end));
        }
        room = (end - start).saturating_sub(excess).max(1);
    }
}

/// Behind at most `room` tokens: in front of a word if there is one, or else between characters.
fn cut(tokens: &[Token], start: usize, room: usize) -> usize {
    let last = start.saturating_add(room);
    if last >= tokens.len() {
        return tokens.len();
    }
    let before = |is_cut: &dyn Fn(usize) -> bool| (start + 1..=last).rev().find(|at| is_cut(*at));
    before(&|at| tokens[at].begins_word && is_between(tokens, at))
        .or_else(|| before(&|at| is_between(tokens, at)))
        .or_else(|| (last..tokens.len()).find(|at| is_between(tokens, *at)))
        .unwrap_or(tokens.len())
}

/// Whether a token shares no character with the one before.
fn is_between(tokens: &[Token], at: usize) -> bool {
    tokens[at].start >= tokens[at - 1].end
}

/// The first word among the last `overlap` tokens of a chunk, or the token behind it. In the middle of
/// a word that was cut, the first token.
fn next_start(tokens: &[Token], start: usize, end: usize, overlap: usize) -> usize {
    let first = end.saturating_sub(overlap).max(start + 1);
    let is_start = |at: &usize| tokens[*at].begins_word && is_between(tokens, *at);
    let in_word = |at: &usize| !tokens[end].begins_word && is_between(tokens, *at);
    (first..end).find(is_start).or_else(|| (first..end).find(in_word)).unwrap_or(end)
}

/// Tokenizers are somebody else's: what they say of a text never ends within a character.
fn slice(text: &str, start: usize, end: usize) -> &str {
    let start = text.floor_char_boundary(start.min(text.len()));
    let end = text.ceil_char_boundary(end.min(text.len()));
    text.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tokens::{Tokens, Words};
    use super::*;

    fn by_words(text: &str, max_tokens: i64, overlap: i64) -> Vec<&str> {
        let limits = Limits::try_new(max_tokens, overlap, 0).unwrap();
        chunks(text, &Words.of(text).unwrap(), limits, |text| Words.count(text)).unwrap()
    }

    #[test]
    fn chunks_are_slices_that_overlap() {
        let text = "one two  three, four";
        assert_eq!(by_words(text, 2, 0), ["one two", "three,", "four"]);
        assert_eq!(by_words(text, 2, 1), ["one two", "two  three", "three,", ", four"]);
        assert_eq!(by_words(text, 9, 3), [text]);
        assert!(by_words(" \n", 2, 1).is_empty());
    }

    #[test]
    fn a_long_word_is_cut_between_tokens_and_characters_never_are() {
        let token = |start, end, begins_word| Token { start, end, begins_word };
        // Two tokens of one character in the middle.
        let tokens = [
            token(0, 1, true),
            token(1, 3, false),
            token(1, 3, false),
            token(3, 4, false),
            token(4, 5, false),
        ];
        let limits = |max_tokens| Limits::try_new(max_tokens, 0, 0).unwrap();
        let cut = |most| chunks("aéxyz", &tokens, limits(most), |_| Ok(1)).unwrap();
        assert_eq!(cut(2), ["a", "é", "xy"]);
        assert_eq!(cut(1), ["a", "é", "x", "y"]);
    }

    #[test]
    fn a_chunk_that_has_more_tokens_when_it_stands_alone_is_cut_shorter() {
        let tokens = Words.of("a b c d").unwrap();
        let limits = Limits::try_new(3, 0, 0).unwrap();
        // Each word counts for two when it is not alone.
        let count = |text: &str| {
            Ok(match text.split(' ').count() {
                1 => 1,
                n => 2 * n,
            })
        };
        assert_eq!(chunks("a b c d", &tokens, limits, count).unwrap(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn limits_that_make_no_progress_are_refused() {
        let problem = |most, overlap, special| Limits::try_new(most, overlap, special).unwrap_err();
        assert_eq!(problem(0, 0, 0), "max_tokens is 0, expected 1 or more");
        assert!(problem(-1, 0, 0).starts_with("max_tokens is -1 and overlap is 0, expected an"));
        assert!(problem(4, 4, 0).starts_with("overlap is 4 and max_tokens is 4, expected an"));
        assert!(problem(4, 2, 2).contains("4 (2 without the tokenizer's special tokens)"));
        assert!(problem(2, 0, 2).contains("of which the tokenizer takes 2"));
    }

    #[test]
    fn an_overlap_that_multiplies_a_long_text_is_refused() {
        let text = "word ".repeat(100_000);
        let limits = Limits::try_new(5_000, 4_999, 0).unwrap();
        let tokens = Words.of(&text).unwrap();
        let problem = chunks(&text, &tokens, limits, |_| Ok(0)).unwrap_err();
        assert!(problem.contains("choose a smaller overlap"), "{problem}");
    }

    proptest! {
        #[test]
        fn all_words_are_in_chunks_in_order(
            text in "[a-zß語é🙂,. \n]{0,80}", max_tokens in 1i64..9, overlap in 0i64..9,
        ) {
            prop_assume!(overlap < max_tokens);
            let tokens = Words.of(&text).unwrap();
            let found = by_words(&text, max_tokens, overlap);
            let mut covered = 0;
            for chunk in &found {
                prop_assert!(Words.count(chunk).unwrap() <= max_tokens as usize, "{chunk:?}");
                let start = chunk.as_ptr() as usize - text.as_ptr() as usize;
                // Nothing but white space is between a chunk and the one before.
                prop_assert!(start <= covered || text[covered..start].trim().is_empty());
                prop_assert!(start + chunk.len() > covered);
                covered = start + chunk.len();
            }
            prop_assert!(text[covered..].trim().is_empty());
            prop_assert_eq!(found.is_empty(), tokens.is_empty());
        }
    }
}
