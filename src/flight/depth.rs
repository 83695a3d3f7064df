//! How deep and long a text of SQL may be: parsing and planning go down into a statement, and take
//! time that grows faster than its length.

use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

/// `UNION`, `EXCEPT` and `INTERSECT` of one text.
const SET_OPERATIONS_MAX: usize = 200;
/// `JOIN` of one text.
const JOINS_MAX: usize = 100;
/// Operators between one comma and the next: each one is a level of the expression.
const OPERATORS_MAX: usize = 500;
/// Words that take what follows as their own operand, which sqlparser does not count as levels.
const PREFIXES_MAX: usize = 50;

#[derive(Default)]
struct Seen {
    set_operations: usize,
    joins: usize,
    operators: usize,
    prefixes: usize,
}

/// Whether a text is one that can be parsed and planned on the stack of a thread.
///
/// # Errors
/// Names what there is too much of. A text that has no tokens is left to the parser.
pub(super) fn check(text: &str) -> Result<()> {
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, text).tokenize() else { return Ok(()) };
    let mut seen = Seen::default();
    for token in &tokens {
        seen.count(token);
        let bounds = [
            (seen.set_operations, SET_OPERATIONS_MAX, "UNION, EXCEPT and INTERSECT"),
            (seen.joins, JOINS_MAX, "JOIN"),
            (seen.operators, OPERATORS_MAX, "operators in one expression"),
            (seen.prefixes, PREFIXES_MAX, "EXPLAIN or INTERVAL one behind the other"),
        ];
        if let Some((_, most, what)) = bounds.iter().find(|(found, most, _)| found > most) {
            return plan_err!(
                "the statement has more than {most} {what}, the most that this server takes; write \
                 it in parts, or values as a list behind IN"
            );
        }
    }
    Ok(())
}

impl Seen {
    fn count(&mut self, token: &Token) {
        match token {
            Token::Whitespace(_) | Token::LParen | Token::RParen | Token::Period => {}
            Token::Comma | Token::SemiColon => (self.operators, self.prefixes) = (0, 0),
            Token::Word(word) if word.quote_style.is_none() => self.count_word(&word.value),
            Token::Word(_) => {}
            Token::Number(..) | Token::SingleQuotedString(_) => self.prefixes = 0,
            _ => self.operators += 1,
        }
    }

    fn count_word(&mut self, word: &str) {
        match word.to_uppercase().as_str() {
            "UNION" | "EXCEPT" | "INTERSECT" | "MINUS" => self.set_operations += 1,
            "JOIN" | "APPLY" => self.joins += 1,
            "AND" | "OR" | "NOT" | "IS" | "LIKE" | "ILIKE" | "IN" | "BETWEEN" | "DIV" | "XOR"
            | "COLLATE" => self.operators += 1,
            "EXPLAIN" | "DESCRIBE" | "DESC" | "INTERVAL" => self.prefixes += 1,
            _ => {}
        }
    }
}
