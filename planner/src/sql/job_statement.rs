//! Statements on detached jobs: those that run on when their client is gone. A server runs them.

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};

use super::words::{string, words};

/// What to do where no server is, for whoever says it.
pub const NEEDS_SERVER: &str = "detached jobs run on a server, which outlives its clients: start one \
     with `forebay serve`, and submit them with `forebay shell --connect grpc://HOST:PORT`";

/// A statement on detached jobs.
#[derive(Clone, Debug, PartialEq)]
pub enum JobStatement {
    /// `SUBMIT statement`: runs it detached, and gives the id of the job.
    Submit(Box<SqlStatement>),
    /// `CANCEL JOB 'id'`: ends a job.
    Cancel(String),
    /// `WAIT FOR JOB 'id'`: says how a job ended, when it has.
    Wait(String),
    /// `FORGET JOB 'id'`: drops what is kept of a job that is over.
    Forget(String),
    /// `RESUME JOB 'id'`: goes on with a job where it ended.
    Resume(Resume),
    /// `EXPLAIN RESUME JOB 'id'`: says what would be kept of it.
    ExplainResume(Resume),
}

/// How a job is gone on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The id of the job.
    pub id: String,
    /// `ANEW`: what was made of inputs, models or options that are others by now is made again.
    pub anew: bool,
}

impl JobStatement {
    /// A statement that names a job; `None`, with nothing consumed, if it is another one.
    pub(super) fn parse(p: &mut Parser) -> Result<Option<Self>, ParserError> {
        if words(p, &["CANCEL", "JOB"]) {
            return id(p).map(Self::Cancel).map(Some);
        }
        if words(p, &["WAIT", "FOR", "JOB"]) {
            return id(p).map(Self::Wait).map(Some);
        }
        if words(p, &["FORGET", "JOB"]) {
            return id(p).map(Self::Forget).map(Some);
        }
        if words(p, &["RESUME", "JOB"]) {
            return resume(p).map(Self::Resume).map(Some);
        }
        if words(p, &["EXPLAIN", "RESUME", "JOB"]) {
            return resume(p).map(Self::ExplainResume).map(Some);
        }
        Ok(None)
    }
}

fn resume(p: &mut Parser) -> Result<Resume, ParserError> {
    Ok(Resume { id: id(p)?, anew: words(p, &["ANEW"]) })
}

fn id(p: &mut Parser) -> Result<String, ParserError> {
    string(p, "the id of a job as a quoted string")
}
