//! Token-level rewriting of Forebay's spellings into portable SQL.
//!
//! sqlparser's dialects reject `TABLE t`, `MODEL m` and Flink's `MAP['k', 'v']` as function
//! arguments. Rewriting tokens (not text) works under every dialect, leaves strings and comments
//! alone, and keeps the positions that error messages name. Only direct arguments of `ml_predict`
//! are touched:
//!
//! | written | becomes |
//! |---|---|
//! | `TABLE t`, `TABLE(t)` | `(SELECT * FROM t)` |
//! | `TABLE (SELECT …)` | `(SELECT …)` |
//! | `TABLE ((…) UNION …)`, `((…) UNION …)`, `TABLE (VALUES …)` | `(SELECT * FROM (…))` |
//! | `MODEL m` | `'m'` |
//! | `MAP['k', 'v']`, `MAP {'k': 'v'}` | `make_array('k', 'v')` |

use datafusion::sql::sqlparser::dialect::{Dialect, GenericDialect};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::ParserError;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer, Word};

/// The function whose arguments are rewritten.
pub const ML_PREDICT: &str = "ml_predict";

/// What editors of some systems put before the first character of a file. It is not part of its text.
pub const BYTE_ORDER_MARK: char = '\u{feff}';

/// Tokens of `sql` with Forebay's spellings made portable.
///
/// # Errors
/// What the tokenizer finds: an unterminated string or comment.
pub fn normalize(sql: &str, dialect: &dyn Dialect) -> Result<Vec<TokenWithSpan>, ParserError> {
    let sql = sql.strip_prefix(BYTE_ORDER_MARK).unwrap_or(sql);
    let tokens = Tokenizer::new(dialect, sql).tokenize_with_location()?;
    // White space only gets in the way of look-ahead; the parser skips it anyway.
    let tokens: Vec<_> =
        tokens.into_iter().filter(|t| !matches!(t.token, Token::Whitespace(_))).collect();
    Ok(Normalizer { tokens, at: 0, out: vec![], brackets: vec![] }.run())
}

/// What an open bracket belongs to, and so how its closing one is written.
#[derive(Clone, Copy, PartialEq)]
enum Bracket {
    /// The arguments of `ml_predict`.
    Call,
    /// A map that becomes a call of `make_array`.
    Map,
    /// A query, of which everything is selected.
    Query,
    /// Anything else.
    Other,
}

struct Normalizer {
    tokens: Vec<TokenWithSpan>,
    at: usize,
    out: Vec<TokenWithSpan>,
    brackets: Vec<Bracket>,
}

/// How an argument of `ml_predict` is spelt, if not portably.
enum Spelling {
    /// `((…) UNION …)`
    CombinedQueries,
    /// `TABLE (SELECT …)`
    TableOfSelect,
    /// `TABLE ((…) UNION …)`, `TABLE (VALUES …)`
    TableOfQuery,
    /// `TABLE(t)`
    TableInBrackets,
    /// `TABLE t`
    Table,
    /// `MODEL 'm'`
    QuotedModel,
    /// `MODEL m`, with the name that it means.
    Model(String),
    /// `MAP['k', 'v']`, `MAP {'k': 'v'}`
    Map,
    /// `MAP['k', 'v']` where the dialect takes brackets for the quotes of an identifier: what is
    /// within them.
    QuotedMap(Vec<Token>),
}

impl Normalizer {
    fn run(mut self) -> Vec<TokenWithSpan> {
        while self.at < self.tokens.len() {
            let spelling = if self.at_argument_start() { self.spelling() } else { None };
            match spelling {
                Some(spelling) => self.rewrite(spelling),
                None => self.copy_token(),
            }
        }
        self.out
    }

    /// Copies one token, keeping track of brackets.
    fn copy_token(&mut self) {
        let mut token = self.tokens[self.at].clone();
        match &token.token {
            Token::LParen => {
                let call = self.at > 0 && is_word(&self.tokens[self.at - 1].token, ML_PREDICT);
                self.brackets.push(if call { Bracket::Call } else { Bracket::Other });
            }
            Token::LBracket | Token::LBrace => self.brackets.push(Bracket::Other),
            Token::RParen | Token::RBracket | Token::RBrace => match self.brackets.pop() {
                Some(Bracket::Map) => token.token = Token::RParen,
                Some(Bracket::Query) => self.out.push(token.clone()),
                _ => {}
            },
            Token::Colon if self.brackets.last() == Some(&Bracket::Map) => {
                token.token = Token::Comma;
            }
            _ => {}
        }
        self.out.push(token);
        self.at += 1;
    }

    /// Whether the next token begins an argument of `ml_predict`.
    fn at_argument_start(&self) -> bool {
        self.brackets.last() == Some(&Bracket::Call)
            && self.at > 0
            && matches!(
                self.tokens[self.at - 1].token,
                Token::LParen | Token::Comma | Token::RArrow
            )
    }

    /// How the argument that begins here is spelt, if our way.
    fn spelling(&self) -> Option<Spelling> {
        let (word, next, after) = (self.peek(0), self.peek(1), self.peek(2));
        if *word == Token::LParen {
            return self.combines_queries().then_some(Spelling::CombinedQueries);
        }
        if is_word(word, "TABLE") {
            return match next {
                Token::LParen if starts_select(after) => Some(Spelling::TableOfSelect),
                Token::LParen if starts_query(after) => Some(Spelling::TableOfQuery),
                Token::LParen if is_name(after) => Some(Spelling::TableInBrackets),
                name if is_name(name) => Some(Spelling::Table),
                _ => None,
            };
        }
        if is_word(word, "MODEL") {
            return match next {
                Token::SingleQuotedString(_) => Some(Spelling::QuotedModel),
                // Anything else is an expression over a column of that name.
                Token::Word(name) if matches!(after, Token::Comma | Token::RParen) => {
                    Some(Spelling::Model(model_name(name)))
                }
                _ => None,
            };
        }
        if is_word(word, "MAP") {
            return match next {
                Token::LBracket | Token::LBrace => Some(Spelling::Map),
                Token::Word(Word { value, quote_style: Some('['), .. }) => {
                    let items = Tokenizer::new(&GenericDialect {}, value).tokenize();
                    items.ok().map(Spelling::QuotedMap)
                }
                _ => None,
            };
        }
        None
    }

    /// Writes the argument that begins here portably, as far as its spelling goes.
    fn rewrite(&mut self, spelling: Spelling) {
        match spelling {
            Spelling::CombinedQueries => self.query(),
            Spelling::TableOfSelect | Spelling::QuotedModel => self.skip(),
            Spelling::TableOfQuery => {
                self.skip();
                self.query();
            }
            Spelling::TableInBrackets => {
                self.skip();
                self.copy_token();
                self.select_all_from_name();
            }
            Spelling::Table => {
                self.replace(Token::LParen);
                self.select_all_from_name();
                self.insert(Token::RParen);
            }
            Spelling::Model(name) => {
                self.skip();
                self.replace(Token::SingleQuotedString(name));
            }
            Spelling::Map => {
                self.replace(Token::make_word("make_array", None));
                self.brackets.push(Bracket::Map);
                self.replace(Token::LParen);
            }
            Spelling::QuotedMap(items) => {
                self.replace(Token::make_word("make_array", None));
                self.replace(Token::LParen);
                items.into_iter().for_each(|token| self.insert(token));
                self.insert(Token::RParen);
            }
        }
    }

    /// Whether `((…) …` is a query and no expression: the parser expects an expression, which cannot go
    /// on like this.
    fn combines_queries(&self) -> bool {
        let mut depth = 0usize;
        let closes = |token: &TokenWithSpan| {
            match token.token {
                Token::LParen => depth += 1,
                Token::RParen => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0
        };
        let first = self.tokens.get(self.at + 1..).unwrap_or_default();
        let Some(end) = first.iter().position(closes).filter(|end| *end > 0) else { return false };
        let is_query = first.iter().find(|t| t.token != Token::LParen);
        is_query.is_some_and(|t| starts_query(&t.token))
            && first.get(end + 1).is_some_and(|t| goes_on_as_query(&t.token))
    }

    /// `(…)` → `(SELECT * FROM (…))`
    fn query(&mut self) {
        self.insert(Token::LParen);
        self.insert_select_all();
        self.brackets.push(Bracket::Query);
        self.replace(Token::LParen);
    }

    fn insert_select_all(&mut self) {
        self.insert(Token::make_keyword("SELECT"));
        self.insert(Token::Mul);
        self.insert(Token::make_keyword("FROM"));
    }

    fn select_all_from_name(&mut self) {
        self.insert_select_all();
        self.copy_token();
        while *self.peek(0) == Token::Period && is_name(self.peek(1)) {
            self.copy_token();
            self.copy_token();
        }
    }

    fn peek(&self, ahead: usize) -> &Token {
        self.tokens.get(self.at + ahead).map_or(&Token::EOF, |t| &t.token)
    }

    /// Leaves the next token out.
    fn skip(&mut self) {
        self.at += 1;
    }

    /// Writes `token` in place of the next one.
    fn replace(&mut self, token: Token) {
        let span = self.tokens[self.at].span;
        self.out.push(TokenWithSpan { token, span });
        self.skip();
    }

    /// Writes `token` before the next one.
    fn insert(&mut self, token: Token) {
        let span = self.tokens[self.at.min(self.tokens.len() - 1)].span;
        self.out.push(TokenWithSpan { token, span });
    }
}

fn is_word(token: &Token, text: &str) -> bool {
    matches!(token, Token::Word(Word { value, quote_style: None, .. })
        if value.eq_ignore_ascii_case(text))
}

fn is_name(token: &Token) -> bool {
    matches!(token, Token::Word(_))
}

/// Whether the parser takes what begins so for a query where it expects an expression.
fn starts_select(token: &Token) -> bool {
    matches!(token, Token::Word(word) if matches!(word.keyword, Keyword::SELECT | Keyword::WITH))
}

fn starts_query(token: &Token) -> bool {
    match token {
        Token::LParen => true,
        Token::Word(word) => {
            starts_select(token) || matches!(word.keyword, Keyword::VALUES | Keyword::FROM)
        }
        _ => false,
    }
}

fn goes_on_as_query(token: &Token) -> bool {
    let Token::Word(word) = token else { return false };
    matches!(
        word.keyword,
        Keyword::UNION
            | Keyword::EXCEPT
            | Keyword::INTERSECT
            | Keyword::ORDER
            | Keyword::LIMIT
            | Keyword::OFFSET
            | Keyword::FETCH
    )
}

/// Folds like DataFusion's identifiers: to lower case unless quoted.
fn model_name(word: &Word) -> String {
    match word.quote_style {
        Some(_) => word.value.clone(),
        None => word.value.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(sql: &str) -> String {
        let tokens = normalize(sql, &GenericDialect {}).unwrap();
        tokens.iter().map(|t| t.token.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn our_spellings_become_portable() {
        for (ours, portable) in [
            ("ml_predict(TABLE t, MODEL m)", "ml_predict ( ( SELECT * FROM t ) , 'm' )"),
            ("ML_PREDICT(TABLE a.b.c)", "ML_PREDICT ( ( SELECT * FROM a . b . c ) )"),
            ("ml_predict(TABLE(a.b), 'm')", "ml_predict ( ( SELECT * FROM a . b ) , 'm' )"),
            ("ml_predict(TABLE (SELECT 1), 'm')", "ml_predict ( ( SELECT 1 ) , 'm' )"),
            (
                "ml_predict(TABLE ((SELECT 1) UNION (SELECT 2)), 'm')",
                "ml_predict ( ( SELECT * FROM ( ( SELECT 1 ) UNION ( SELECT 2 ) ) ) , 'm' )",
            ),
            (
                "ml_predict(((SELECT 1) LIMIT 1), 'm')",
                "ml_predict ( ( SELECT * FROM ( ( SELECT 1 ) LIMIT 1 ) ) , 'm' )",
            ),
            (
                "ml_predict(TABLE (VALUES (1)), 'm')",
                "ml_predict ( ( SELECT * FROM ( VALUES ( 1 ) ) ) , 'm' )",
            ),
            ("\u{feff}ml_predict(MODEL m)", "ml_predict ( 'm' )"),
            ("ml_predict(model => MODEL \"M\")", "ml_predict ( model => 'M' )"),
            ("ml_predict(MODEL 'm v')", "ml_predict ( 'm v' )"),
            ("ml_predict(MAP['a', '1'])", "ml_predict ( make_array ( 'a' , '1' ) )"),
            ("ml_predict(MAP {'a': '1'})", "ml_predict ( make_array ( 'a' , '1' ) )"),
            (
                "ml_predict(TABLE (SELECT * FROM ml_predict(TABLE t, MODEL a)), MODEL b)",
                "ml_predict ( ( SELECT * FROM ml_predict ( ( SELECT * FROM t ) , 'a' ) ) , 'b' )",
            ),
        ] {
            assert_eq!(normalized(ours), portable, "{ours}");
        }
    }

    #[test]
    fn other_text_is_left_alone() {
        for sql in [
            "f ( TABLE , MODEL , MAP [ 'a' ] )",
            "SELECT model , map FROM t -- ml_predict ( MODEL m )",
            "SELECT 'ml_predict(TABLE t)'",
            "ml_predict ( f ( model , table ) , model )",
            "ml_predict ( model , t . model )",
            "ml_predict ( ( ( SELECT 1 ) + 2 ) , ( ( SELECT 3 ) ) , ( ( a ) ) )",
        ] {
            let untouched = Tokenizer::new(&GenericDialect {}, sql).tokenize().unwrap();
            let untouched: Vec<_> = untouched
                .iter()
                .filter(|t| !matches!(t, Token::Whitespace(_)))
                .map(ToString::to_string)
                .collect();
            assert_eq!(normalized(sql), untouched.join(" "));
        }
    }

    #[test]
    fn unfinished_text_does_not_panic() {
        for sql in [
            "ml_predict(",
            "ml_predict(TABLE",
            "ml_predict(MODEL",
            "ml_predict(MAP",
            "ml_predict(TABLE(",
            ")]}",
            "ml_predict(TABLE t",
            "ml_predict(MAP[",
            "ml_predict((",
            "ml_predict(TABLE ((",
            "ml_predict(((SELECT 1) UNION",
        ] {
            normalized(sql);
        }
    }
}
