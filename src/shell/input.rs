//! The line editor's view of SQL: when a text is finished, what could come next, its colors.

use std::borrow::Cow;

use datafusion::config::Dialect;
use datafusion_cli::highlighter::{NoSyntaxHighlighter, SyntaxHighlighter};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper, Result};

use super::commands::COMMANDS;
use super::complete::{Candidates, complete};
use super::names::Names;
use super::scan;

/// What people type who have not read that a statement ends with `;`, and the command they mean.
const BARE_WORDS: &[(&str, &str)] = &[("exit", "\\q"), ("quit", "\\q"), ("help", "\\?")];

/// What the line editor asks while SQL is typed: completions, colors, and whether it is complete.
pub(super) struct SqlInput {
    pub(super) names: Names,
    highlighter: Box<dyn Highlighter>,
    files: FilenameCompleter,
}

impl SqlInput {
    pub(super) fn new(dialect: &Dialect, color: bool) -> Self {
        let highlighter: Box<dyn Highlighter> = if color {
            Box::new(SyntaxHighlighter::new(dialect))
        } else {
            Box::new(NoSyntaxHighlighter {})
        };
        Self { names: Names::default(), highlighter, files: FilenameCompleter::new() }
    }
}

/// What the line means, if it is a bare word.
pub(super) fn meant(line: &str) -> Option<&'static str> {
    let line = line.trim().trim_end_matches(';');
    let word = BARE_WORDS.iter().find(|(word, _)| line.eq_ignore_ascii_case(word));
    word.map(|(_, command)| *command)
}

/// Whether Enter ends the input instead of starting another line.
fn is_finished(text: &str) -> bool {
    meant(text).is_some() || scan::is_complete(text)
}

impl Validator for SqlInput {
    fn validate(&self, context: &mut ValidationContext<'_>) -> Result<ValidationResult> {
        Ok(if is_finished(context.input()) {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

impl Completer for SqlInput {
    type Candidate = Pair;

    fn complete(&self, line: &str, cursor: usize, _: &Context<'_>) -> Result<(usize, Vec<Pair>)> {
        let before = &line[..cursor];
        if before.starts_with("\\i ") || scan::open_string(before).is_some() {
            return self.files.complete_path(line, cursor);
        }
        let Candidates { start, words } = match before.strip_prefix("\\d") {
            Some(_) if before.contains(' ') => self.described(before),
            _ if before.starts_with('\\') => commands(before),
            _ => complete(before, &self.names),
        };
        let pair = |word: String| Pair { display: word.clone(), replacement: word };
        Ok((start, words.into_iter().map(pair).collect()))
    }
}

impl SqlInput {
    /// `\d name`, `\dm name`
    fn described(&self, before: &str) -> Candidates {
        let start = before.rfind(' ').map_or(0, |at| at + 1);
        let tables = self.names.tables.keys().filter(|_| !before.starts_with("\\dm"));
        let names = tables.chain(&self.names.models);
        let words = names.filter(|name| name.starts_with(&before[start..])).cloned().collect();
        Candidates { start, words }
    }
}

fn commands(before: &str) -> Candidates {
    let found = COMMANDS.iter().map(|(command, _)| *command).filter(|c| c.starts_with(before));
    Candidates { start: 0, words: found.map(str::to_owned).collect() }
}

impl Highlighter for SqlInput {
    fn highlight<'l>(&self, line: &'l str, cursor: usize) -> Cow<'l, str> {
        self.highlighter.highlight(line, cursor)
    }

    fn highlight_char(&self, line: &str, cursor: usize, kind: CmdKind) -> bool {
        self.highlighter.highlight_char(line, cursor, kind)
    }
}

impl Hinter for SqlInput {
    type Hint = String;
}

impl Helper for SqlInput {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enter_ends_statements_and_commands_only() {
        for text in ["select 1;", "\\d t", "exit", " QUIT ", "", "select ';';"] {
            assert!(is_finished(text), "{text}");
        }
        for text in ["select 1", "select ';", "exit t", "select 1; select"] {
            assert!(!is_finished(text), "{text}");
        }
    }

    #[test]
    fn commands_have_bare_spellings() {
        assert_eq!(meant("quit;"), Some("\\q"));
        assert_eq!(meant(" Help"), Some("\\?"));
        assert_eq!(meant("select 1;"), None);
    }
}
