//! `--detach`: what a server runs on when this shell has left.

use arrow::array::{AsArray, RecordBatch};
use datafusion::common::{exec_err, plan_err};
use datafusion::error::Result;
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast;
use forebay_planner::sql::Statement;
use futures::TryStreamExt;

use super::Shell;
use super::server::Server;

impl Shell {
    /// Submits a statement that gives or writes rows, and prints the id of its job, alone on a line, for
    /// whatever reads it. Any other one runs at once: those behind it may need what it does.
    ///
    /// # Errors
    /// Mistakes of the statement, and those of the server.
    pub(super) async fn detach(&self, server: &Server, text: &str) -> Result<()> {
        let is_submitted = match self.context.parse(text).as_deref() {
            Ok([Statement::Job(_)]) => {
                return plan_err!(
                    "--detach submits statements itself: write them without SUBMIT, and those on jobs without \
                     --detach"
                );
            }
            Ok(statements) => statements.iter().any(has_rows),
            // The server may know it, or says what is wrong.
            Err(_) => true,
        };
        if !is_submitted {
            return server.run(text).await?.rows.try_for_each(|_| async { Ok(()) }).await;
        }
        let answer = server.run(&format!("SUBMIT {text}")).await?;
        let told: Vec<RecordBatch> = answer.rows.try_collect().await?;
        let ids = told.iter().filter_map(|batch| batch.columns().first()?.as_string_opt::<i32>());
        let ids: Vec<&str> = ids.flat_map(|ids| ids.iter().flatten()).collect();
        if ids.is_empty() {
            return exec_err!("the server has no id for the job; SHOW JOBS lists those that run");
        }
        ids.iter().for_each(|id| println!("{id}"));
        Ok(())
    }
}

fn has_rows(statement: &Statement) -> bool {
    let Statement::Sql(statement) = statement else { return false };
    match statement.as_ref() {
        SqlStatement::CopyTo(_) | SqlStatement::Explain(_) => true,
        SqlStatement::Statement(statement) => match statement.as_ref() {
            ast::Statement::Query(_)
            | ast::Statement::Insert { .. }
            | ast::Statement::Update { .. }
            | ast::Statement::Delete { .. } => true,
            ast::Statement::CreateTable(table) => table.query.is_some(),
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use forebay::{Catalog, ForebayContext};

    use super::*;

    #[test]
    fn what_has_rows_is_submitted_and_the_rest_runs_at_once() {
        let context = ForebayContext::builder().with_catalog(Catalog::in_memory()).build().unwrap();
        let is_submitted = |sql: &str| has_rows(&context.parse(sql).unwrap().remove(0));
        for sql in [
            "SELECT 1",
            "FROM t",
            "WITH a AS (SELECT 1) SELECT * FROM a",
            "VALUES (1)",
            "COPY t TO 'x.csv'",
            "INSERT INTO t VALUES (1)",
            "CREATE TABLE u AS SELECT 1",
            "EXPLAIN ANALYZE SELECT 1",
            "SHOW JOBS",
        ] {
            assert!(is_submitted(sql), "{sql}");
        }
        for sql in [
            "SET forebay.weight = 3",
            "CREATE TEMPORARY MODEL m LOCATION 'm'",
            "CREATE TABLE u (n INT)",
            "CREATE VIEW v AS SELECT 1",
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 't.csv'",
            "DROP TABLE t",
        ] {
            assert!(!is_submitted(sql), "{sql}");
        }
    }
}
