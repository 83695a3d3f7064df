//! Where statements and commands of a text begin and end. Knows quotes and comments, and nothing else of
//! SQL. A command is `\` where a statement could begin, to the end of the line.

use std::ops::Range;

use forebay_planner::sql::normalize::BYTE_ORDER_MARK;

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
    /// Where each command is.
    commands: Vec<Range<usize>>,
    /// Whether the last of them has no `;` yet.
    unfinished: bool,
    open: Open,
    /// Byte offset behind the last quote that was opened.
    quote_start: usize,
}

fn scan(text: &str) -> Scan {
    let mut scan = Scan {
        starts: vec![],
        commands: vec![],
        unfinished: false,
        open: Open::Nothing,
        quote_start: 0,
    };
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
                ('\\', _) if !scan.unfinished => {
                    let end = text[at..].find('\n').map_or(text.len(), |line| at + line);
                    scan.commands.push(at..end);
                    while chars.next_if(|(next, _)| *next < end).is_some() {}
                }
                (c, _) if c.is_whitespace() || (at == 0 && c == BYTE_ORDER_MARK) => {}
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

/// Whether there is neither statement nor command, only white space, comments and `;`.
pub(super) fn is_blank(text: &str) -> bool {
    let scan = scan(text);
    scan.starts.is_empty() && scan.commands.is_empty()
}

/// A part of a text that is run as a whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Statements, with as many lines before them as in the text, so that messages about their
    /// syntax name the line.
    Sql(String),
    /// A command without its backslash, and its line.
    Command(String, usize),
}

/// What to run, in order.
pub(super) fn parts(text: &str) -> Vec<Part> {
    let (mut parts, mut end) = (vec![], 0);
    for command in scan(text).commands {
        parts.extend(sql(text, end..command.start));
        let line = line_of(text, command.start);
        parts.push(Part::Command(text[command.start + 1..command.end].trim().to_owned(), line));
        end = command.end;
    }
    parts.extend(sql(text, end..text.len()));
    parts
}

fn sql(text: &str, range: Range<usize>) -> Option<Part> {
    let lines_before = line_of(text, range.start) - 1;
    let sql = &text[range];
    (!is_blank(sql)).then(|| Part::Sql("\n".repeat(lines_before) + sql))
}

/// Counted from 1.
fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

/// Each statement, with what follows it.
pub(super) fn statements(text: &str) -> Vec<&str> {
    let starts = scan(text).starts;
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| text[*start..end].trim_end()).collect()
}

/// The line, counted from 1, on which each statement begins.
pub(super) fn statement_lines(text: &str) -> Vec<usize> {
    scan(text).starts.into_iter().map(|start| line_of(text, start)).collect()
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
    fn commands_are_lines_between_statements() {
        let sql = |text: &str| Part::Sql(text.to_owned());
        let command = |text: &str, line| Part::Command(text.to_owned(), line);
        let text = "\\d \na;\n-- \\x\n \\i it's.sql\n'\\d';b\n\\q";
        let expected = vec![
            command("d", 1),
            sql("\na;\n-- \\x\n "),
            command("i it's.sql", 4),
            sql("\n\n\n\n'\\d';b\n\\q"),
        ];
        assert_eq!(parts(text), expected);
        assert_eq!(parts("\\q"), [command("q", 1)]);
        assert_eq!(parts("\u{feff}\\q"), [command("q", 1)]);
        assert!(is_complete("\\d it's") && !is_blank("\\d"));
    }

    #[test]
    fn open_strings() {
        assert_eq!(open_string("LOCATION 'a/b"), Some(10));
        assert_eq!(open_string("LOCATION 'a'"), None);
        assert_eq!(open_string("\"a"), None);
    }
}
