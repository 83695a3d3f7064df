//! Tables that a call names by string or word become queries: `ml_predict('t', …)` →
//! `ml_predict((SELECT * FROM t), …)`.
//!
//! DataFusion looks up a statement's tables before it plans, and finds only those in table
//! positions of the syntax.
//!
//! `FROM t` without SELECT becomes `SELECT * FROM t`: DataFusion takes it for a query of no columns.

use std::ops::ControlFlow;

use datafusion::sql::parser::{CopyToSource, Statement as SqlStatement};
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, Query, Select,
    SelectFlavor, SelectItem, Statement, TableFactor, Value, VisitMut, VisitorMut,
    WildcardAdditionalOptions,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};

use super::arguments::{is_named, positional};
use super::relation::is_ml_predict;

/// Rewrites every call of the table form, and every FROM without SELECT, in the statement.
pub(super) fn resolve(statement: &mut SqlStatement) -> Result<(), ParserError> {
    let flow = match statement {
        SqlStatement::Statement(statement) => statement.visit(&mut Resolver),
        SqlStatement::Explain(explain) => return resolve(&mut explain.statement),
        SqlStatement::CopyTo(copy) => match &mut copy.source {
            CopyToSource::Query(query) => query.visit(&mut Resolver),
            CopyToSource::Relation(_) => ControlFlow::Continue(()),
        },
        _ => ControlFlow::Continue(()),
    };
    match flow {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Resolver;

impl VisitorMut for Resolver {
    type Break = ParserError;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<ParserError> {
        if select.flavor == SelectFlavor::FromFirstNoSelect {
            let all = WildcardAdditionalOptions::default();
            select.projection = vec![SelectItem::Wildcard(all)];
            select.flavor = SelectFlavor::Standard;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<ParserError> {
        let args = match factor {
            TableFactor::Table { name, args: Some(args), .. } if is_ml_predict(name) => {
                &mut args.args
            }
            TableFactor::TableFunction { expr: Expr::Function(call), .. }
                if is_ml_predict(&call.name) =>
            {
                match &mut call.args {
                    FunctionArguments::List(list) => &mut list.args,
                    _ => return ControlFlow::Continue(()),
                }
            }
            _ => return ControlFlow::Continue(()),
        };
        for (i, arg) in args.iter_mut().enumerate() {
            let value = match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) if i == 0 => value,
                FunctionArg::Named { name, arg: FunctionArgExpr::Expr(value), .. }
                    if is_input(name) =>
                {
                    value
                }
                FunctionArg::ExprNamed {
                    name: Expr::Identifier(name),
                    arg: FunctionArgExpr::Expr(value),
                    ..
                } if is_input(name) => value,
                _ => continue,
            };
            match table_name(value).map(|name| select_all(&name)).transpose() {
                Ok(Some(query)) => *value = Expr::Subquery(query),
                Ok(None) => {}
                Err(error) => return ControlFlow::Break(error),
            }
        }
        ControlFlow::Continue(())
    }
}

fn is_input(name: &Ident) -> bool {
    name.value.eq_ignore_ascii_case("input")
}

/// The table that an argument names, as SQL text.
fn table_name(value: &Expr) -> Option<String> {
    match value {
        Expr::Identifier(ident) => Some(ident.to_string()),
        Expr::CompoundIdentifier(parts) => Some(ObjectName::from(parts.clone()).to_string()),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(name) => Some(name.clone()),
            _ => None,
        },
        Expr::Function(call) if is_named(call, "table") => match &positional(call).ok()?[..] {
            [one] => table_name(one),
            _ => None,
        },
        _ => None,
    }
}

fn select_all(name: &str) -> Result<Box<Query>, ParserError> {
    let not_a_table = || ParserError::ParserError(format!("'{name}' is not the name of a table"));
    // The name alone must parse as one, so that it cannot smuggle in a query.
    let dialect = GenericDialect {};
    let mut parser = Parser::new(&dialect).try_with_sql(name).map_err(|_| not_a_table())?;
    let table = parser.parse_object_name(false).map_err(|_| not_a_table())?;
    if parser.peek_token_ref().token != datafusion::sql::sqlparser::tokenizer::Token::EOF {
        return Err(not_a_table());
    }
    let statements = Parser::parse_sql(&dialect, &format!("SELECT * FROM {table}"))?;
    match statements.into_iter().next() {
        Some(Statement::Query(query)) => Ok(query),
        _ => Err(not_a_table()),
    }
}
