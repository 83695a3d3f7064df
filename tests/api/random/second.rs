//! DuckDB beside the reference, which DataFusion computes: shows what both of ours have in common.
//! `make random` has it; without `.forebay/duckdb` there is none.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::tables;
use super::writer::Written;

const PYTHON: &str = ".forebay/duckdb/bin/python";

/// A process with the same tables.
#[derive(Debug)]
pub(super) struct Second {
    process: Child,
    statements: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Second {
    pub(super) fn start() -> Option<Self> {
        if !Path::new(PYTHON).exists() {
            return None;
        }
        let mut python = Command::new(PYTHON);
        python.arg("tests/api/random/second.py").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = python.spawn().unwrap();
        let statements = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut second = Self { process, statements, answers };
        for statement in tables::inserts() {
            second.ask(&statement).unwrap();
        }
        Some(second)
    }

    /// The rows as text, sorted unless the query says in which order they come.
    pub(super) fn rows(&mut self, query: &Written) -> Result<Vec<String>, String> {
        let sql = query.sql.replace("LEFT SEMI JOIN", "SEMI JOIN");
        let mut rows = self.ask(&sql.replace("LEFT ANTI JOIN", "ANTI JOIN"))?;
        if !query.is_ordered {
            rows.sort_unstable();
        }
        Ok(rows)
    }

    fn ask(&mut self, statement: &str) -> Result<Vec<String>, String> {
        let line = serde_json::to_string(statement).unwrap();
        writeln!(self.statements, "{line}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str::<Result<Vec<String>, String>>(&answer).unwrap()
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
