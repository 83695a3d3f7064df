//! What the parsers of our statements read token by token.

use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, Word};

/// Consumes these words if they come next, all of them.
pub(super) fn words(p: &mut Parser, expected: &[&str]) -> bool {
    let all = expected.iter().enumerate().all(|(i, expected)| {
        matches!(&p.peek_nth_token_ref(i).token,
            Token::Word(Word { value, quote_style: None, .. }) if value.eq_ignore_ascii_case(expected))
    });
    if all {
        expected.iter().for_each(|_| p.advance_token());
    }
    all
}

/// A text in quotes; `what` it is, should something else be there.
pub(super) fn string(p: &mut Parser, what: &str) -> Result<String, ParserError> {
    let token = p.next_token();
    match token.token {
        Token::SingleQuotedString(text) | Token::DoubleQuotedString(text) => Ok(text),
        _ => p.expected(what, token),
    }
}
