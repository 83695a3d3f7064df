//! `\d` and its like: datafusion-cli's commands, and a few of ours.

use std::path::PathBuf;

use datafusion::common::{exec_err, plan_err};
use datafusion::error::Result;
use datafusion_cli::command::{Command, OutputFormat};
use datafusion_cli::functions::Function;

use super::{Shell, functions};

/// What a command leaves to whoever runs statements.
#[derive(Debug)]
pub(super) enum Left {
    Nothing,
    /// To run the SQL of this file.
    Include(PathBuf),
    Quit,
}

/// The commands, for `\?` and for completion.
pub(super) const COMMANDS: &[(&str, &str)] = &[
    ("\\d", "list tables; \\d NAME describes a table or model"),
    ("\\dm", "list models; \\dm NAME describes one"),
    ("\\h", "list functions; \\h NAME explains one, or a statement"),
    ("\\i", "\\i FILE runs the SQL of a file"),
    ("\\object_store_profiling", "show or set: disabled, summary, trace"),
    ("\\pset", "\\pset format NAME: table, csv, tsv, json, ndjson"),
    ("\\q", "quit (also Ctrl-D)"),
    ("\\quiet", "show or set: true prints results only"),
    ("\\whole", "show or set: true prints the values of tables whole"),
    ("\\?", "this list"),
];

const HINTS: &str = "
A statement ends with ';' and may span lines. Tab completes, Ctrl-C cancels the running query
or clears the line, Ctrl-R searches the history.

  SHOW MODELS;
  CREATE MODEL name LOCATION 'folder or URL';
  SELECT *, ml_predict(MODEL name, column) AS result FROM 'file.parquet';";

const TABLES: &str = "SELECT table_schema AS schema, table_name AS name, table_type AS type
    FROM information_schema.tables WHERE table_schema <> 'information_schema' ORDER BY 1, 2";

/// Runs a command, given without its backslash.
///
/// # Errors
/// If there is no such command, or it fails.
pub(super) async fn run(shell: &mut Shell, text: &str) -> Result<Left> {
    let words: Vec<&str> = text.trim().trim_end_matches(';').split_whitespace().collect();
    match words.as_slice() {
        ["q"] => return Ok(Left::Quit),
        ["?"] => print_help(),
        ["d"] => shell.run_sql(TABLES).await?,
        ["d", name] => describe(shell, name).await?,
        ["dm"] => shell.run_sql("SHOW MODELS").await?,
        ["dm", name] => describe_model(shell, name).await?,
        ["i", file] => return Ok(Left::Include(PathBuf::from(file))),
        ["h"] => functions::list(),
        ["h", name] if functions::explain(shell, name) => {}
        ["whole", rest @ ..] => whole(shell, rest)?,
        _ => delegate(shell, &words.join(" ")).await?,
    }
    Ok(Left::Nothing)
}

fn whole(shell: &mut Shell, words: &[&str]) -> Result<()> {
    match words {
        [] => {}
        ["true" | "on" | "yes"] => shell.whole = true,
        ["false" | "off" | "no"] => shell.whole = false,
        _ => return plan_err!("expected \\whole true or \\whole false"),
    }
    println!("Values of tables are {}.", if shell.whole { "whole" } else { "shortened" });
    Ok(())
}

fn print_help() {
    for (command, description) in COMMANDS {
        println!("  {command:<26}{description}");
    }
    println!("{HINTS}\n");
}

async fn describe_model(shell: &Shell, name: &str) -> Result<()> {
    shell.run_sql(&format!("DESCRIBE MODEL {name}")).await
}

/// A table, or a model if there is one of this name and no such table.
async fn describe(shell: &Shell, name: &str) -> Result<()> {
    if shell.server.is_some() {
        let as_table = shell.run_sql(&format!("DESCRIBE {name}")).await;
        return match as_table {
            Err(error) => describe_model(shell, name).await.map_err(|_| error),
            found => found,
        };
    }
    let is_table = shell.context.session().table_exist(name).unwrap_or(false);
    if !is_table && shell.context.catalog().get(&name.to_lowercase()).is_ok() {
        return describe_model(shell, name).await;
    }
    shell.run_sql(&format!("DESCRIBE {name}")).await
}

async fn delegate(shell: &mut Shell, text: &str) -> Result<()> {
    match text.parse::<Command>() {
        Ok(Command::Include(None)) => exec_err!("\\i needs the name of a file"),
        Ok(Command::OutputFormat(None)) => {
            println!("Output format is {:?}.", shell.print.format);
            Ok(())
        }
        Ok(Command::OutputFormat(Some(option))) => match spelled(&option).parse::<OutputFormat>() {
            Ok(option) => option.execute(&mut shell.print),
            Err(()) => plan_err!("\\pset knows one option: \\pset format NAME"),
        },
        Ok(Command::SearchFunctions(name)) if name.parse::<Function>().is_err() => {
            plan_err!(
                "there is no function or statement '{name}'; \\h and SHOW FUNCTIONS list them"
            )
        }
        Ok(command) => command.execute(shell.context.session(), &mut shell.print).await,
        Err(()) => plan_err!("there is no command '\\{text}'; \\? lists the commands"),
    }
}

/// datafusion-cli spells it `nd-json`.
fn spelled(option: &str) -> String {
    option.replace("ndjson", "nd-json")
}
