//! `SHOW FUNCTIONS`: one row per function. DataFusion's own leaves out functions whose types depend on
//! their arguments, which are most of ours.

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{ShowStatementFilter, Statement};
use forebay_udf::feature::documentation;

use crate::read_files::ReadFiles;

/// What the statement is short for, if it is one that we know.
pub(super) fn listing(statement: &SqlStatement) -> Option<String> {
    let SqlStatement::Statement(statement) = statement else { return None };
    let Statement::ShowFunctions { filter } = statement.as_ref() else { return None };
    let condition = match filter {
        None => String::new(),
        Some(ShowStatementFilter::Like(pattern)) => {
            format!("WHERE routine_name LIKE {}", quoted(pattern))
        }
        Some(ShowStatementFilter::ILike(pattern)) => {
            format!("WHERE routine_name ILIKE {}", quoted(pattern))
        }
        Some(_) => return None,
    };
    let (call, does) = (known("syntax_example"), known("description"));
    Some(format!(
        "SELECT DISTINCT routine_name AS function_name, function_type, {call} AS syntax_example, \
         {does} AS description FROM information_schema.routines {condition} ORDER BY 1, 2"
    ))
}

/// What the column says, or we say in its place: of table functions and asynchronous ones DataFusion
/// knows no words.
fn known(column: &str) -> String {
    let ours = [ReadFiles::NAME, "url_download", "try_url_download"].into_iter();
    let ours = ours.filter_map(|name| Some((name, documentation(name)?)));
    let cases = ours.map(|(name, known)| {
        let text = if column == "description" { &known.description } else { &known.syntax_example };
        format!("WHEN {} THEN {} ", quoted(name), quoted(text))
    });
    format!("CASE routine_name {}ELSE {column} END", cases.collect::<String>())
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
