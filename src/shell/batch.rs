//! Statements from files, arguments or a pipe: the first error ends the run, and so does Ctrl-C.

use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::thread;

use datafusion::error::{DataFusionError, Result};
use tokio::signal::ctrl_c;
use tokio::sync::mpsc::{Receiver, channel};

use super::rows::PIPE_CLOSED;
use super::{CANCELLED, FAILED, Shell, commands, errors, scan};

/// Lines of standard input that are read ahead.
const LINES_WAITING_MAX: usize = 64;

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
            eprintln!("error: {place}{}", errors::readable(&failure.error));
            FAILED
        }
    }
}

async fn run_all(shell: &mut Shell, files: &[PathBuf], texts: &[String]) -> Result<(), Failure> {
    if files.is_empty() && texts.is_empty() {
        return run_lines(shell, lines_of_stdin()).await;
    }
    for file in files {
        run_file(shell, file).await?;
    }
    for text in texts {
        match text.trim().strip_prefix('\\') {
            Some(command) => drop(commands::run(shell, command).await?),
            None => run_text(shell, text).await?,
        }
    }
    Ok(())
}

/// Runs the statements of a text.
///
/// # Errors
/// That of the first statement that fails.
pub(super) async fn run_text(shell: &Shell, text: &str) -> Result<()> {
    for statement in shell.statements(text)? {
        Box::pin(shell.run(statement)).await?;
    }
    Ok(())
}

/// Runs the statements of a file, once all of them are known to parse.
async fn run_file(shell: &Shell, path: &Path) -> Result<(), Failure> {
    let name = path.display();
    let at_file = |error| Failure { place: Some(name.to_string()), error };
    let text = std::fs::read_to_string(path).map_err(|e| at_file(e.into()))?;
    let statements = shell.statements(&text).map_err(at_file)?;
    let lines = scan::statement_lines(&text);
    let lines_known = lines.len() == statements.len();
    for (i, statement) in statements.into_iter().enumerate() {
        Box::pin(shell.run(statement)).await.map_err(|error| match lines.get(i) {
            Some(line) if lines_known => Failure { place: Some(format!("{name}:{line}")), error },
            _ => at_file(error),
        })?;
    }
    Ok(())
}

/// Runs a file for `\i`.
///
/// # Errors
/// That of the first statement that fails, with its place in the message.
pub(super) async fn include(shell: &Shell, path: &Path) -> Result<()> {
    run_file(shell, path).await.map_err(|failure| {
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
            if let Some(command) = line.trim().strip_prefix('\\') {
                match commands::run(shell, command).await? {
                    commands::After::GoOn => continue,
                    commands::After::Quit => return Ok(()),
                }
            }
        }
        text += &line;
        text.push('\n');
        if scan::is_complete(&text) {
            run_piped(shell, &text, first_line).await?;
            text.clear();
        }
    }
    run_piped(shell, &text, first_line).await
}

async fn run_piped(shell: &Shell, text: &str, line: usize) -> Result<(), Failure> {
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
