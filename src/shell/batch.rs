//! Statements from files, arguments or a pipe: the first error ends the run, and so does Ctrl-C.

use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::thread;

use datafusion::common::exec_err;
use datafusion::error::{DataFusionError, Result};
use tokio::signal::ctrl_c;
use tokio::sync::mpsc::{Receiver, channel};

use super::commands::{self, Left};
use super::output::PIPE_CLOSED;
use super::scan::{self, Part};
use super::statement::Work;
use super::{CANCELLED, FAILED, Shell};
use crate::terminal::errors;

/// Lines of standard input that are read ahead.
const LINES_WAITING_MAX: usize = 64;
/// Files that may include each other.
const FILES_OPEN_MAX: usize = 16;

/// Whether what follows is still to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    GoOn,
    Quit,
}

/// An error, and where its statement is if that is known: `file.sql:12`.
struct Failure {
    place: Option<String>,
    error: DataFusionError,
}

impl From<DataFusionError> for Failure {
    fn from(error: DataFusionError) -> Self {
        Self { place: None, error }
    }
}

/// Runs all files, then all commands, or else standard input; returns the exit status.
pub(super) async fn run(shell: &mut Shell, files: &[PathBuf], texts: &[String]) -> i32 {
    let ended = tokio::select! {
        // First, so that Ctrl-C is heard from the start.
        biased;
        _ = ctrl_c() => None,
        result = run_all(shell, files, texts) => Some(result),
    };
    // The query is dropped by now, and its progress bar gone.
    match ended {
        None => {
            eprintln!("cancelled");
            CANCELLED
        }
        Some(Ok(())) => 0,
        Some(Err(failure)) if errors::is_closed_pipe(&failure.error) => PIPE_CLOSED,
        Some(Err(failure)) => {
            let place = failure.place.map(|place| format!("{place}: ")).unwrap_or_default();
            errors::print_at(&place, &failure.error);
            FAILED
        }
    }
}

async fn run_all(shell: &mut Shell, files: &[PathBuf], texts: &[String]) -> Result<(), Failure> {
    if files.is_empty() && texts.is_empty() {
        return run_lines(shell, lines_of_stdin()).await;
    }
    for file in files {
        if run_file(shell, file).await? == After::Quit {
            return Ok(());
        }
    }
    for text in texts {
        if run_text(shell, text).await? == After::Quit {
            return Ok(());
        }
    }
    Ok(())
}

/// Something to do, and the line on which it stands if that is known.
struct Step {
    line: Option<usize>,
    what: What,
}

enum What {
    Statement(Work),
    Command(String),
}

/// The statements and commands of a text, once all statements are known to parse.
fn steps(shell: &Shell, text: &str) -> Result<Vec<Step>> {
    let mut steps = vec![];
    for part in scan::parts(text) {
        match part {
            Part::Command(command, line) => {
                steps.push(Step { line: Some(line), what: What::Command(command) });
            }
            Part::Sql(sql) => {
                let statements = shell.statements(&sql)?;
                let lines = scan::statement_lines(&sql);
                let lines_known = lines.len() == statements.len();
                steps.extend(statements.into_iter().enumerate().map(|(at, statement)| Step {
                    line: lines.get(at).copied().filter(|_| lines_known),
                    what: What::Statement(statement),
                }));
            }
        }
    }
    Ok(steps)
}

async fn run_step(shell: &mut Shell, what: What) -> Result<After> {
    match what {
        What::Statement(statement) => shell.run(statement).await.map(|()| After::GoOn),
        What::Command(command) => match commands::run(shell, &command).await? {
            Left::Nothing => Ok(After::GoOn),
            Left::Include(file) => include(shell, &file).await.map(|()| After::GoOn),
            Left::Quit => Ok(After::Quit),
        },
    }
}

/// Runs the statements and commands of a text.
///
/// # Errors
/// That of the first that fails.
pub(super) async fn run_text(shell: &mut Shell, text: &str) -> Result<After> {
    for step in steps(shell, text)? {
        if Box::pin(run_step(shell, step.what)).await? == After::Quit {
            return Ok(After::Quit);
        }
    }
    Ok(After::GoOn)
}

async fn run_file(shell: &mut Shell, path: &Path) -> Result<After, Failure> {
    let name = path.display();
    let at_file = |error| Failure { place: Some(name.to_string()), error };
    let text = std::fs::read_to_string(path).map_err(|e| at_file(e.into()))?;
    for step in steps(shell, &text).map_err(at_file)? {
        let line = step.line;
        let ended = Box::pin(run_step(shell, step.what)).await;
        let after = ended.map_err(|error| match line {
            Some(line) => Failure { place: Some(format!("{name}:{line}")), error },
            None => at_file(error),
        })?;
        if after == After::Quit {
            return Ok(After::Quit);
        }
    }
    Ok(After::GoOn)
}

/// Runs a file for `\i`. What it quits is itself.
///
/// # Errors
/// That of the first statement that fails, with its place in the message.
async fn include(shell: &mut Shell, path: &Path) -> Result<()> {
    if shell.files_open == FILES_OPEN_MAX {
        return exec_err!(
            "\\i {}: {FILES_OPEN_MAX} files include each other, which is as many as may",
            path.display()
        );
    }
    shell.files_open += 1;
    let ended = run_file(shell, path).await;
    shell.files_open -= 1;
    ended.map(drop).map_err(|failure| {
        let text = errors::readable(&failure.error);
        let place = failure.place.map(|place| format!("{place}: ")).unwrap_or_default();
        DataFusionError::Execution(format!("{place}{text}"))
    })
}

/// Runs each statement as soon as its last line is there, so that a program can talk to the shell.
async fn run_lines(
    shell: &mut Shell,
    mut lines: Receiver<io::Result<String>>,
) -> Result<(), Failure> {
    let (mut text, mut first_line, mut line_count) = (String::new(), 1, 0);
    while let Some(line) = lines.recv().await {
        let line = line.map_err(DataFusionError::IoError)?;
        line_count += 1;
        if scan::is_blank(&text) {
            first_line = line_count;
        }
        text += &line;
        text.push('\n');
        if scan::is_complete(&text) {
            if run_piped(shell, &text, first_line).await? == After::Quit {
                return Ok(());
            }
            text.clear();
        }
    }
    run_piped(shell, &text, first_line).await.map(drop)
}

async fn run_piped(shell: &mut Shell, text: &str, line: usize) -> Result<After, Failure> {
    let at_line = |error| Failure { place: Some(format!("line {line}")), error };
    run_text(shell, text).await.map_err(at_line)
}

/// Reading blocks, so a thread of its own does it; it ends with the process.
fn lines_of_stdin() -> Receiver<io::Result<String>> {
    let (sender, receiver) = channel(LINES_WAITING_MAX);
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
