//! Where statements of a text begin and end. Knows quotes and comments, and nothing else of SQL.

/// What was open when the text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Nothing,
    /// `'` or `"`.
    Quote(char),
    LineComment,
    /// So many within each other.
    BlockComment(usize),
}

struct Scan {
    /// Byte offset of the first character of each statement.
    starts: Vec<usize>,
    /// Whether the last of them has no `;` yet.
    unfinished: bool,
    open: Open,
    /// Byte offset behind the last quote that was opened.
    quote_start: usize,
}

fn scan(text: &str) -> Scan {
    let mut scan = Scan { starts: vec![], unfinished: false, open: Open::Nothing, quote_start: 0 };
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        match scan.open {
            Open::Quote(quote) if c == quote => scan.open = Open::Nothing,
            Open::LineComment if c == '\n' => scan.open = Open::Nothing,
            Open::BlockComment(depth) => match (c, next) {
                ('*', Some('/')) => {
                    chars.next();
                    scan.open =
                        if depth == 1 { Open::Nothing } else { Open::BlockComment(depth - 1) };
                }
                ('/', Some('*')) => {
                    chars.next();
                    scan.open = Open::BlockComment(depth + 1);
                }
                _ => {}
            },
            Open::Nothing => match (c, next) {
                ('-', Some('-')) => scan.open = Open::LineComment,
                ('/', Some('*')) => {
                    chars.next();
                    scan.open = Open::BlockComment(1);
                }
                (';', _) => scan.unfinished = false,
                (c, _) if c.is_whitespace() => {}
                (c, _) => {
                    if !scan.unfinished {
                        scan.starts.push(at);
                        scan.unfinished = true;
                    }
                    if c == '\'' || c == '"' {
                        scan.open = Open::Quote(c);
                        scan.quote_start = at + 1;
                    }
                }
            },
            _ => {}
        }
    }
    scan
}

/// Whether every statement has ended: nothing is open, and nothing follows the last `;`.
pub(super) fn is_complete(text: &str) -> bool {
    let scan = scan(text);
    !scan.unfinished && matches!(scan.open, Open::Nothing | Open::LineComment)
}

/// Whether there is no statement, only white space, comments and `;`.
pub(super) fn is_blank(text: &str) -> bool {
    scan(text).starts.is_empty()
}

/// Each statement, with what follows it.
pub(super) fn statements(text: &str) -> Vec<&str> {
    let starts = scan(text).starts;
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| text[*start..end].trim_end()).collect()
}

/// The line, counted from 1, on which each statement begins.
pub(super) fn statement_lines(text: &str) -> Vec<usize> {
    let line = |start: usize| 1 + text[..start].matches('\n').count();
    scan(text).starts.into_iter().map(line).collect()
}

/// Where the string starts that is open at the end of the text, behind its quote.
pub(super) fn open_string(text: &str) -> Option<usize> {
    let scan = scan(text);
    (scan.open == Open::Quote('\'')).then_some(scan.quote_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_ends_at_a_semicolon_outside_quotes_and_comments() {
        for text in
            ["", "select 1;", "a; b;", "a; -- x", "a; /* x */", "select ';' || 'it''s';", "-- x"]
        {
            assert!(is_complete(text), "{text}");
        }
        for text in
            ["select 1", "a; b", "select ';", "select \";", "a /* ;", "a -- ;", "/* /* */ ;"]
        {
            assert!(!is_complete(text), "{text}");
        }
    }

    #[test]
    fn lines_of_statements() {
        assert_eq!(statement_lines("a;\n\n-- x\nb\n;c /* ; */;"), [1, 4, 5]);
        assert_eq!(statement_lines(";;\n"), Vec::<usize>::new());
        assert_eq!(statements(" a;\n-- x\nb ';' ;c"), ["a;\n-- x", "b ';' ;", "c"]);
    }

    #[test]
    fn open_strings() {
        assert_eq!(open_string("LOCATION 'a/b"), Some(10));
        assert_eq!(open_string("LOCATION 'a'"), None);
        assert_eq!(open_string("\"a"), None);
    }
}
