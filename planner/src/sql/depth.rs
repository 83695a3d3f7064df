//! How deep and long a text of SQL may be: parsing and planning go down into a statement, and take
//! time that grows faster than its length.

use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

/// How much there is of each kind in a text, or may be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Depth {
    /// Bytes of the text.
    bytes: usize,
    /// Words, numbers and signs: a parsed one takes some 200 bytes.
    words: usize,
    /// `UNION`, `EXCEPT` and `INTERSECT`.
    set_operations: usize,
    /// `JOIN`
    joins: usize,
    /// Operators between one comma and the next: each one is a level of the expression.
    operators: usize,
    /// Words one behind the other that take what follows as their own operand, which sqlparser does
    /// not count as levels.
    prefixes: usize,
}

impl Depth {
    /// What is parsed and planned on the stack of a thread, of 8 MiB, without optimizations of the
    /// compiler.
    pub const OF_A_STACK: Self = Self {
        bytes: usize::MAX,
        words: usize::MAX,
        set_operations: 1_000,
        joins: 300,
        operators: 1_000,
        prefixes: 100,
    };

    /// What one of many clients may ask for: others wait for the same memory and cores.
    pub const OF_A_CLIENT: Self = Self {
        bytes: 4 << 20,
        words: 500_000,
        set_operations: 200,
        joins: 100,
        operators: 500,
        prefixes: 50,
    };

    /// Whether a text has no more than this.
    ///
    /// # Errors
    /// Names what there is too much of. A text that has no tokens is left to the parser.
    pub fn check(&self, text: &str) -> Result<()> {
        let mut seen = Self { bytes: text.len(), ..Self::default() };
        self.check_seen(&seen)?;
        let Ok(tokens) = Tokenizer::new(&GenericDialect {}, text).tokenize() else { return Ok(()) };
        for token in &tokens {
            seen.count(token);
            self.check_seen(&seen)?;
        }
        Ok(())
    }

    fn check_seen(&self, seen: &Self) -> Result<()> {
        let bounds = [
            (seen.bytes, self.bytes, "bytes"),
            (seen.words, self.words, "words, numbers and signs"),
            (seen.set_operations, self.set_operations, "UNION, EXCEPT and INTERSECT"),
            (seen.joins, self.joins, "JOIN"),
            (seen.operators, self.operators, "operators in one expression"),
            (seen.prefixes, self.prefixes, "EXPLAIN or INTERVAL one behind the other"),
        ];
        match bounds.iter().find(|(found, most, _)| found > most) {
            Some((_, most, what)) => plan_err!(
                "the statement has more than {most} {what}, the most that is planned here; write it in \
                 parts, or values as a list behind IN"
            ),
            None => Ok(()),
        }
    }

    fn count(&mut self, token: &Token) {
        self.words += usize::from(!matches!(token, Token::Whitespace(_)));
        match token {
            Token::Whitespace(_) | Token::LParen | Token::RParen | Token::Period => {}
            Token::Comma => (self.operators, self.prefixes) = (0, 0),
            // The next statement.
            Token::SemiColon => {
                *self = Self { bytes: self.bytes, words: self.words, ..Self::default() };
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_within_bounds_passes_and_one_more_does_not() {
        let bounds = Depth::OF_A_CLIENT;
        type Text = fn(usize) -> String;
        let cases: [(usize, Text, &str); 5] = [
            (200, |n| format!("SELECT 1{}", " EXCEPT SELECT 1".repeat(n)), "200 UNION"),
            (100, |n| format!("SELECT 1 FROM t{}", " CROSS JOIN t".repeat(n)), "100 JOIN"),
            (500, |n| format!("SELECT 7, 1{} FROM t", " or 1".repeat(n)), "500 operators"),
            (50, |n| format!("{}SELECT 1", "EXPLAIN ".repeat(n)), "50 EXPLAIN"),
            (4 << 20, |n| "x".repeat(n), "4194304 bytes"),
        ];
        for (most, text, said) in cases {
            bounds.check(&text(most)).unwrap_or_else(|error| panic!("{said}: {error}"));
            let error = bounds.check(&text(most + 1)).unwrap_err().to_string();
            assert!(error.contains(&format!("more than {said}")), "{error}");
        }
        // Each statement begins anew, and each value of a list.
        bounds.check(&"SELECT 1 UNION SELECT 2; ".repeat(1_000)).unwrap();
        let rows = vec!["1 + 2 + 3"; 1_000].join(", ");
        bounds.check(&format!("SELECT 1 IN ({rows})")).unwrap();
    }
}
