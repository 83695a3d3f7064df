//! What the tokens of a text are.

use std::path::Path;

use tokenizers::{PostProcessor, Tokenizer};
use unicode_segmentation::UnicodeSegmentation;

use super::chunk::Token;

/// Bytes of one text at most: the tokens of a text take many times its memory.
const TEXT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Finds the tokens of texts.
pub(super) trait Tokens {
    /// In order, without those that are no part of the text.
    fn of(&self, text: &str) -> Result<Vec<Token>, String>;

    /// How many there are.
    fn count(&self, text: &str) -> Result<usize, String>;

    /// How many are added to each text.
    fn special(&self) -> usize;
}

/// The rule without a model: a word, a number or a punctuation mark is a token, by the word boundaries
/// of Unicode (UAX #29).
#[derive(Clone, Copy, Debug)]
pub(super) struct Words;

impl Tokens for Words {
    fn of(&self, text: &str) -> Result<Vec<Token>, String> {
        check_size(text)?;
        let words = text.split_word_bound_indices().filter(|(_, word)| !is_space(word));
        let token = |(start, word): (usize, &str)| Token {
            start,
            end: start + word.len(),
            begins_word: true,
        };
        Ok(words.map(token).collect())
    }

    fn count(&self, text: &str) -> Result<usize, String> {
        Ok(text.split_word_bounds().filter(|word| !is_space(word)).count())
    }

    fn special(&self) -> usize {
        0
    }
}

fn is_space(word: &str) -> bool {
    word.chars().all(char::is_whitespace)
}

/// A model's tokenizer.
#[derive(Debug)]
pub(super) struct ModelTokens {
    tokenizer: Tokenizer,
}

impl ModelTokens {
    /// Reads a `tokenizers` file. Its own padding and truncation do not count.
    pub(super) fn load(file: &Path) -> Result<Self, String> {
        let mut tokenizer = Tokenizer::from_file(file).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        Ok(Self { tokenizer })
    }
}

impl Tokens for ModelTokens {
    fn of(&self, text: &str) -> Result<Vec<Token>, String> {
        check_size(text)?;
        let encoding = self.tokenizer.encode(text, false).map_err(|e| e.to_string())?;
        let words = encoding.get_word_ids();
        let token = |(at, (start, end)): (usize, &(usize, usize))| Token {
            start: *start,
            end: *end,
            begins_word: at == 0 || words[at] != words[at - 1],
        };
        Ok(encoding.get_offsets().iter().enumerate().map(token).collect())
    }

    fn count(&self, text: &str) -> Result<usize, String> {
        self.tokenizer.encode_fast(text, false).map(|e| e.len()).map_err(|e| e.to_string())
    }

    fn special(&self) -> usize {
        self.tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false))
    }
}

fn check_size(text: &str) -> Result<(), String> {
    match text.len() {
        length if length > TEXT_BYTES_MAX => Err(format!(
            "a text has {length} bytes, more than the {TEXT_BYTES_MAX} that are cut at once; \
             split it first"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_is_refused_before_its_words_are_found() {
        let most = " ".repeat(TEXT_BYTES_MAX);
        assert_eq!(Words.of(&most).unwrap(), []);
        let problem = Words.of(&format!("{most}.")).unwrap_err();
        assert!(problem.starts_with("a text has 16777217 bytes, more than the"), "{problem}");
    }
}
