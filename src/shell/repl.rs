//! The interactive loop: an error or Ctrl-C ends the statement, not the shell.

use std::path::Path;

use forebay::folders;
use rustyline::config::{Builder, CompletionType};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use tokio::signal::ctrl_c;

use super::batch::{self, After};
use super::input::{self, SqlInput};
use super::names::Names;
use super::{FAILED, Shell, scan};
use crate::terminal::errors;

const PROMPT: &str = "forebay> ";
const HISTORY_ENTRIES_MAX: usize = 10_000;

type SqlEditor = Editor<SqlInput, FileHistory>;

/// Reads and runs until the user quits; returns the exit status.
pub(super) async fn run(shell: &mut Shell) -> i32 {
    let mut editor = match editor(shell) {
        Ok(editor) => editor,
        Err(error) => {
            eprintln!("error: the terminal cannot be used: {error}");
            return FAILED;
        }
    };
    let history = folders::history();
    open_history(&mut editor, &history);
    if !shell.print.quiet {
        println!("Forebay {} — \\? for help, \\q to quit", env!("CARGO_PKG_VERSION"));
    }
    loop {
        let names = Names::gather(shell).await;
        if let Some(helper) = editor.helper_mut() {
            helper.names = names;
        }
        match editor.readline(PROMPT) {
            Ok(text) => {
                remember(&mut editor, &history, &text);
                if run_input(shell, &text).await == After::Quit {
                    return 0;
                }
            }
            // The line is cleared; whoever wants to leave has Ctrl-D and \q.
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => return 0,
            Err(error) => {
                eprintln!("error: the terminal cannot be read: {error}");
                return FAILED;
            }
        }
    }
}

/// Runs what was typed, until it ends or Ctrl-C is pressed.
async fn run_input(shell: &mut Shell, text: &str) -> After {
    // Whatever was cancelled has closed its files.
    shell.files_open = 0;
    let text = input::meant(text).unwrap_or(text);
    let ended = tokio::select! {
        result = batch::run_text(shell, text) => Some(result),
        _ = ctrl_c() => None,
    };
    // The query is dropped by now, and its progress bar gone.
    match ended {
        Some(Ok(after)) => return after,
        Some(Err(error)) => errors::print(&error),
        None => eprintln!("cancelled"),
    }
    After::GoOn
}

fn editor(shell: &Shell) -> rustyline::Result<SqlEditor> {
    let config: Builder = Config::builder()
        .completion_type(CompletionType::List)
        .history_ignore_space(true)
        .max_history_size(HISTORY_ENTRIES_MAX)?;
    let mut editor = Editor::with_config(config.build())?;
    let dialect = shell.context.session().state().config().options().sql_parser.dialect;
    editor.set_helper(Some(SqlInput::new(&dialect, shell.print.color)));
    Ok(editor)
}

/// A history that cannot be kept is no reason not to work.
fn open_history(editor: &mut SqlEditor, path: &Path) {
    if let Some(folder) = path.parent()
        && let Err(error) = std::fs::create_dir_all(folder)
    {
        tracing::warn!("no history: {}: {error}", folder.display());
        return;
    }
    if path.exists()
        && let Err(error) = editor.load_history(path)
    {
        tracing::warn!("no history: {}: {error}", path.display());
    }
}

/// Kept at once, so that nothing is lost however the shell ends.
fn remember(editor: &mut SqlEditor, path: &Path, text: &str) {
    if scan::is_blank(text) {
        return;
    }
    let added = editor.add_history_entry(text.trim_end());
    if let Err(error) = added.and_then(|_| editor.append_history(path)) {
        tracing::warn!("no history: {}: {error}", path.display());
    }
}
