//! Splits text into statements and parses those on models and on detached jobs.
//!
//! ```sql
//! CREATE [OR REPLACE] [TEMPORARY] MODEL [IF NOT EXISTS] m [VERSION 'v'] [INPUT (c type, …)]
//!     [OUTPUT (c type, …)] [COMMENT '…'] [LOCATION '…'] [WITH ('k' = 'v', …) | OPTIONS ('k' 'v', …)]
//! ALTER MODEL m SET ('k' = 'v', …)      ALTER MODEL m RESET ALL | ('k', …)
//! ALTER MODEL m RENAME TO n             DROP MODEL [IF EXISTS] m
//! SHOW MODELS     SHOW CREATE MODEL m     DESCRIBE MODEL m
//! SHOW JOBS       SHOW WORKERS
//! SUBMIT statement        CANCEL JOB 'id'     WAIT FOR JOB 'id'       FORGET JOB 'id'
//! RESUME JOB 'id' [ANEW]  EXPLAIN RESUME JOB 'id' [ANEW]
//! ```

use datafusion::common::{Result, plan_datafusion_err, plan_err};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::{DFParser, DFParserBuilder, Statement as SqlStatement};
use datafusion::sql::sqlparser::dialect::{Dialect, dialect_from_str};
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

use super::depth::Depth;
use super::job_statement::JobStatement;
use super::normalize::normalize;
use super::words::{string, words};
use super::{functions, named_tables};

/// One statement of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// One of DataFusion's, with our shorthands already written out.
    Sql(Box<SqlStatement>),
    /// One on models, which DataFusion does not know.
    Model(ModelStatement),
    /// One on detached jobs, which a server runs.
    Job(JobStatement),
}

/// A statement on models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelStatement {
    /// `CREATE MODEL`
    Create(Box<CreateModel>),
    /// `ALTER MODEL`
    Alter {
        /// The model's name, in lower case unless it was quoted.
        name: String,
        /// What becomes of it.
        change: Change,
    },
    /// `DROP MODEL`
    Drop {
        /// The model's name, in lower case unless it was quoted.
        name: String,
        /// Whether a missing model is fine.
        if_exists: bool,
    },
    /// `SHOW MODELS`
    Show,
    /// `SHOW CREATE MODEL`
    ShowCreate {
        /// The model's name, in lower case unless it was quoted.
        name: String,
    },
    /// `DESCRIBE MODEL`
    Describe {
        /// The model's name, in lower case unless it was quoted.
        name: String,
    },
}

/// What `ALTER MODEL` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `SET`: options, with their values.
    Set(Vec<(String, String)>),
    /// `RESET`: options that are as in the package again; `None` for all.
    Reset(Option<Vec<String>>),
    /// `RENAME TO`: the new name, which must be free.
    RenameTo(String),
}

/// The clauses of `CREATE MODEL`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateModel {
    /// The model's name in SQL.
    pub name: String,
    /// `OR REPLACE`: what was learned of the old model is forgotten.
    pub or_replace: bool,
    /// `TEMPORARY`: for this session's process only.
    pub temporary: bool,
    /// `IF NOT EXISTS`: a model that is there stays as it is, and its package is not looked at.
    pub if_not_exists: bool,
    /// `VERSION`: what is shown in place of the package's own.
    pub version: Option<String>,
    /// `INPUT`: column names and types.
    pub inputs: Option<Vec<(String, String)>>,
    /// `OUTPUT`: column names and types.
    pub outputs: Option<Vec<(String, String)>>,
    /// `COMMENT`: for people, in `SHOW MODELS`.
    pub comment: Option<String>,
    /// `LOCATION`: folder or URL of the package.
    pub location: Option<String>,
    /// `WITH` or `OPTIONS`, in order.
    pub options: Vec<(String, String)>,
}

/// Parses a text of one or more statements.
///
/// # Errors
/// A syntax error names what was expected, what was found and where. A text that would take more than
/// a stack is refused.
pub fn parse(sql: &str, dialect: &dyn Dialect, recursion_limit: usize) -> Result<Vec<Statement>> {
    Depth::OF_A_STACK.check(sql)?;
    let tokens = normalize(sql, dialect)?;
    let mut parser = DFParserBuilder::new(tokens)
        .with_dialect(dialect)
        .with_recursion_limit(recursion_limit)
        .build()?;
    let mut statements = vec![];
    loop {
        while parser.parser.consume_token(&Token::SemiColon) {}
        if parser.parser.peek_token_ref().token == Token::EOF {
            return Ok(statements);
        }
        statements.push(parse_next(&mut parser)?);
        let next = parser.parser.peek_token_ref();
        if !matches!(next.token, Token::SemiColon | Token::EOF) {
            return Ok(parser.parser.expected_ref("end of statement", next)?);
        }
    }
}

/// Parses a text of exactly one statement.
///
/// # Errors
/// Syntax errors.
pub fn parse_one(context: &SessionContext, text: &str) -> Result<Statement> {
    let mut statements = parse_in(context, text)?;
    match (statements.pop(), statements.len()) {
        (Some(statement), 0) => Ok(statement),
        (None, _) => plan_err!("the text holds no statement"),
        (_, more) => plan_err!("expected one statement, found {}", more + 1),
    }
}

/// Parses a text in the session's dialect.
///
/// # Errors
/// Syntax errors.
pub fn parse_in(context: &SessionContext, text: &str) -> Result<Vec<Statement>> {
    let state = context.state_ref();
    let state = state.read();
    let options = &state.config().options().sql_parser;
    let dialect = dialect_from_str(options.dialect)
        .ok_or_else(|| plan_datafusion_err!("unknown SQL dialect '{}'", options.dialect))?;
    parse(text, dialect.as_ref(), options.recursion_limit.get())
}

/// What `SHOW JOBS` and `SHOW WORKERS` are short for. The tables are there in sessions on a cluster, that
/// of jobs in sessions of every server.
const LISTINGS: [(&[&str], &str); 2] = [
    (
        &["SHOW", "JOBS"],
        "SELECT job_id, state, started, ended, stages_done, stages, tasks_running, rows, \
         recomputed, detached, name, error FROM forebay.jobs ORDER BY queued DESC, job_id DESC",
    ),
    (
        &["SHOW", "WORKERS"],
        "SELECT worker_id, address, state, tasks, cpus_used, cpus, accelerators_busy, \
         accelerators_used, accelerators, memory, block_bytes, labels FROM forebay.workers \
         ORDER BY worker_id",
    ),
];

fn parse_next(parser: &mut DFParser) -> Result<Statement> {
    if words(&mut parser.parser, &["SUBMIT"]) {
        return submitted(parse_plain(parser)?);
    }
    if let Some(job) = JobStatement::parse(&mut parser.parser)? {
        return Ok(Statement::Job(job));
    }
    parse_plain(parser)
}

/// `SUBMIT` of this statement. What it does is known once it is planned.
fn submitted(statement: Statement) -> Result<Statement> {
    match statement {
        Statement::Sql(statement) => Ok(Statement::Job(JobStatement::Submit(statement))),
        Statement::Model(_) | Statement::Job(_) => plan_err!(
            "SUBMIT takes a query, COPY, INSERT or CREATE TABLE … AS; statements on models are run \
             without it"
        ),
    }
}

/// A statement that is not on detached jobs.
fn parse_plain(parser: &mut DFParser) -> Result<Statement> {
    if let Some((_, query)) = LISTINGS.iter().find(|(name, _)| words(&mut parser.parser, name)) {
        let listing = DFParserBuilder::new(*query).build()?.parse_statement()?;
        return Ok(Statement::Sql(Box::new(listing)));
    }
    Ok(match parse_model_statement(&mut parser.parser)? {
        Some(statement) => Statement::Model(statement),
        None => {
            let mut statement = parser.parse_statement()?;
            if let Some(query) = functions::listing(&statement) {
                statement = DFParserBuilder::new(query.as_str()).build()?.parse_statement()?;
            }
            named_tables::resolve(&mut statement)?;
            Statement::Sql(Box::new(statement))
        }
    })
}

/// `None`, with nothing consumed, if the statement is not on models.
fn parse_model_statement(p: &mut Parser) -> Result<Option<ModelStatement>, ParserError> {
    if words(p, &["SHOW", "MODELS"]) {
        return Ok(Some(ModelStatement::Show));
    }
    if words(p, &["SHOW", "CREATE", "MODEL"]) {
        return Ok(Some(ModelStatement::ShowCreate { name: name(p)? }));
    }
    if words(p, &["DESCRIBE", "MODEL"]) || words(p, &["DESC", "MODEL"]) {
        return Ok(Some(ModelStatement::Describe { name: name(p)? }));
    }
    if words(p, &["DROP", "MODEL"]) {
        let if_exists = words(p, &["IF", "EXISTS"]);
        return Ok(Some(ModelStatement::Drop { name: name(p)?, if_exists }));
    }
    if words(p, &["ALTER", "MODEL"]) {
        return Ok(Some(ModelStatement::Alter { name: name(p)?, change: change(p)? }));
    }
    for (prefix, or_replace, temporary) in CREATE_PREFIXES {
        if words(p, prefix) {
            return create_model(p, *or_replace, *temporary).map(Some);
        }
    }
    Ok(None)
}

fn change(p: &mut Parser) -> Result<Change, ParserError> {
    if words(p, &["SET"]) {
        return Ok(Change::Set(options(p)?));
    }
    if words(p, &["RENAME", "TO"]) {
        return Ok(Change::RenameTo(name(p)?));
    }
    if words(p, &["RESET", "ALL"]) {
        return Ok(Change::Reset(None));
    }
    if words(p, &["RESET"]) {
        p.expect_token(&Token::LParen)?;
        let keys = p.parse_comma_separated(option_text)?;
        p.expect_token(&Token::RParen)?;
        return Ok(Change::Reset(Some(keys)));
    }
    p.expected_ref("SET, RESET or RENAME TO", p.peek_token_ref())
}

const CREATE_PREFIXES: &[(&[&str], bool, bool)] = &[
    (&["CREATE", "MODEL"], false, false),
    (&["CREATE", "TEMPORARY", "MODEL"], false, true),
    (&["CREATE", "TEMP", "MODEL"], false, true),
    (&["CREATE", "OR", "REPLACE", "MODEL"], true, false),
    (&["CREATE", "OR", "REPLACE", "TEMPORARY", "MODEL"], true, true),
    (&["CREATE", "OR", "REPLACE", "TEMP", "MODEL"], true, true),
];

fn create_model(
    p: &mut Parser,
    or_replace: bool,
    temporary: bool,
) -> Result<ModelStatement, ParserError> {
    let if_not_exists = words(p, &["IF", "NOT", "EXISTS"]);
    if if_not_exists && or_replace {
        return Err(ParserError::ParserError(
            "CREATE OR REPLACE MODEL cannot be combined with IF NOT EXISTS".to_owned(),
        ));
    }
    let mut model =
        CreateModel { name: name(p)?, or_replace, temporary, if_not_exists, ..Default::default() };
    loop {
        if model.version.is_none() && words(p, &["VERSION"]) {
            model.version = Some(string(p, "a quoted string")?);
        } else if model.inputs.is_none() && words(p, &["INPUT"]) {
            model.inputs = Some(columns(p)?);
        } else if model.outputs.is_none() && words(p, &["OUTPUT"]) {
            model.outputs = Some(columns(p)?);
        } else if model.comment.is_none() && words(p, &["COMMENT"]) {
            model.comment = Some(string(p, "a quoted string")?);
        } else if model.location.is_none() && words(p, &["LOCATION"]) {
            model.location = Some(string(p, "a quoted string")?);
        } else if model.options.is_empty() && (words(p, &["WITH"]) || words(p, &["OPTIONS"])) {
            model.options = options(p)?;
        } else if matches!(p.peek_token_ref().token, Token::SemiColon | Token::EOF) {
            return Ok(ModelStatement::Create(Box::new(model)));
        } else {
            let expected = "VERSION, INPUT, OUTPUT, COMMENT, LOCATION, WITH or OPTIONS (once each)";
            return p.expected_ref(expected, p.peek_token_ref());
        }
    }
}

/// A model's name: one identifier, folded to lower case unless quoted.
fn name(p: &mut Parser) -> Result<String, ParserError> {
    let ident = p.parse_identifier()?;
    if ident.value.is_empty() {
        return Err(ParserError::ParserError("a name cannot be empty".to_owned()));
    }
    Ok(if ident.quote_style.is_some() { ident.value } else { ident.value.to_lowercase() })
}

/// `(name type, …)`
fn columns(p: &mut Parser) -> Result<Vec<(String, String)>, ParserError> {
    p.expect_token(&Token::LParen)?;
    let columns = p.parse_comma_separated(|p| Ok((name(p)?, p.parse_data_type()?.to_string())))?;
    p.expect_token(&Token::RParen)?;
    Ok(columns)
}

/// `('k' = 'v', …)` or `('k' 'v', …)`; keys and values may also be words and numbers.
fn options(p: &mut Parser) -> Result<Vec<(String, String)>, ParserError> {
    p.expect_token(&Token::LParen)?;
    let options = p.parse_comma_separated(|p| {
        let key = option_text(p)?;
        let _ = p.consume_token(&Token::Eq);
        Ok((key, option_text(p)?))
    })?;
    p.expect_token(&Token::RParen)?;
    Ok(options)
}

fn option_text(p: &mut Parser) -> Result<String, ParserError> {
    let negative = p.consume_token(&Token::Minus);
    let token = p.next_token();
    match token.token {
        Token::Number(number, _) => Ok(if negative { format!("-{number}") } else { number }),
        Token::SingleQuotedString(text) | Token::DoubleQuotedString(text) if !negative => Ok(text),
        Token::Word(word) if !negative => Ok(word.value),
        _ => p.expected("a quoted string, a word or a number", token),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::{Dialect, dialect_from_str};

    use super::*;
    use crate::sql::job_statement::Resume;

    fn parse_as(sql: &str, dialect: &str) -> Result<Vec<Statement>> {
        let dialect: Box<dyn Dialect> = dialect_from_str(dialect).unwrap();
        parse(sql, dialect.as_ref(), 50)
    }

    #[test]
    fn create_model_in_every_spelling() {
        let sql = "CREATE OR REPLACE TEMPORARY MODEL M VERSION 'v2' INPUT (Text STRING)
            OUTPUT (embedding FLOAT[384]) COMMENT 'c' LOCATION 'file:///m' WITH ('gpus' = '0.5', cpus = 2)";
        let expected = CreateModel {
            name: "m".into(),
            or_replace: true,
            temporary: true,
            if_not_exists: false,
            version: Some("v2".into()),
            inputs: Some(vec![("text".into(), "STRING".into())]),
            outputs: Some(vec![("embedding".into(), "FLOAT[384]".into())]),
            comment: Some("c".into()),
            location: Some("file:///m".into()),
            options: vec![("gpus".into(), "0.5".into()), ("cpus".into(), "2".into())],
        };
        let create = Statement::Model(ModelStatement::Create(Box::new(expected)));
        assert_eq!(parse_as(sql, "generic").unwrap(), vec![create.clone()]);
        let options =
            sql.replace("WITH ('gpus' = '0.5', cpus = 2)", "OPTIONS ('gpus' '0.5', 'cpus' 2);");
        assert_eq!(parse_as(&options, "postgresql").unwrap(), vec![create]);
    }

    #[test]
    fn jobs_are_submitted_and_named() {
        let query = |sql: &str| match parse_as(sql, "generic").unwrap().remove(0) {
            Statement::Sql(statement) => statement,
            other => panic!("{sql}: {other:?}"),
        };
        let named = |id: &str| id.to_owned();
        let resume = |anew| Resume { id: named("0A"), anew };
        for (sql, expected) in [
            ("SUBMIT SELECT 1", JobStatement::Submit(query("SELECT 1"))),
            ("submit FROM t", JobStatement::Submit(query("SELECT * FROM t"))),
            (
                "SUBMIT COPY (SELECT 1) TO 'x.csv'",
                JobStatement::Submit(query("COPY (SELECT 1) TO 'x.csv'")),
            ),
            ("SUBMIT SHOW JOBS;", JobStatement::Submit(query("SHOW JOBS"))),
            ("CANCEL JOB '0A'", JobStatement::Cancel(named("0A"))),
            ("wait for job '0A'", JobStatement::Wait(named("0A"))),
            ("FORGET JOB '0A';", JobStatement::Forget(named("0A"))),
            ("resume job '0A'", JobStatement::Resume(resume(false))),
            ("RESUME JOB '0A' ANEW;", JobStatement::Resume(resume(true))),
            ("EXPLAIN RESUME JOB '0A'", JobStatement::ExplainResume(resume(false))),
            ("explain resume job '0A' anew", JobStatement::ExplainResume(resume(true))),
        ] {
            assert_eq!(parse_as(sql, "generic").unwrap(), [Statement::Job(expected)], "{sql}");
        }
        // Names of columns and tables are nobody's but the query's.
        query("SELECT submit, cancel FROM wait");
    }

    #[test]
    fn our_forms_parse_under_every_dialect() {
        for dialect in [
            "generic",
            "mysql",
            "postgresql",
            "hive",
            "sqlite",
            "snowflake",
            "redshift",
            "mssql",
            "clickhouse",
            "bigquery",
            "ansi",
            "duckdb",
            "databricks",
        ] {
            for sql in [
                "SELECT * FROM ml_predict(TABLE t, MODEL m, DESCRIPTOR(c))",
                "SELECT * FROM ml_predict(TABLE (SELECT 1), MODEL m, DESCRIPTOR(c), MAP['a', 'b'])",
                "SELECT * FROM ml_predict((SELECT 1), MODEL m, DESCRIPTOR(c), MAP {'a': 'b'})",
                "SELECT ml_predict(MODEL m, c) FROM t; SHOW MODELS;",
                "DROP MODEL IF EXISTS m; DESCRIBE MODEL m; SHOW CREATE MODEL m",
                "ALTER MODEL m SET ('gpus' = '1'); ALTER MODEL m RESET ('gpus', 'device')",
                "ALTER MODEL m RESET ALL; ALTER MODEL m RENAME TO n",
                "SUBMIT SELECT * FROM ml_predict(TABLE t, MODEL m); CANCEL JOB 'a'; WAIT FOR JOB 'a'",
                "RESUME JOB 'a' ANEW; EXPLAIN RESUME JOB 'a'",
            ] {
                parse_as(sql, dialect).unwrap_or_else(|e| panic!("{dialect}: {sql}: {e}"));
            }
        }
    }

    #[test]
    fn syntax_errors_say_what_was_expected() {
        for (sql, expected) in [
            ("CREATE MODEL", "Expected: identifier"),
            ("CREATE MODEL m AT 'x'", "Expected: VERSION, INPUT, OUTPUT"),
            ("CREATE MODEL m LOCATION x", "Expected: a quoted string"),
            ("CREATE MODEL m WITH ('a' = )", "Expected: a quoted string"),
            ("ALTER MODEL m ('a' = 'b')", "Expected: SET, RESET or RENAME TO"),
            ("ALTER MODEL m RESET", "Expected: ("),
            ("ALTER MODEL m RENAME n", "Expected: SET, RESET or RENAME TO"),
            ("SHOW MODELS m", "Expected: end of statement"),
            ("CREATE OR REPLACE MODEL IF NOT EXISTS m", "cannot be combined"),
            ("CANCEL JOB 7", "Expected: the id of a job as a quoted string"),
            ("WAIT FOR JOB", "Expected: the id of a job as a quoted string"),
            ("RESUME JOB", "Expected: the id of a job as a quoted string"),
            ("EXPLAIN RESUME JOB '0A' AGAIN", "Expected: end of statement"),
            ("SUBMIT", "SQL statement"),
            ("SUBMIT SHOW MODELS", "SUBMIT takes a query, COPY, INSERT"),
            ("SUBMIT SUBMIT SELECT 1", "SQL statement"),
            ("SUBMIT CANCEL JOB 'a'", "SQL statement"),
        ] {
            let error = parse_as(sql, "generic").unwrap_err().to_string();
            assert!(error.contains(expected), "{sql}: {error}");
        }
    }
}
