//! How many tables a statement reads, those of `WITH` at each place where they are used. A few that
//! each use the one before twice are millions, and planning them would not end.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::ptr;

use datafusion::common::{Result, plan_err};
use datafusion::sql::parser::{CopyToSource, Statement as SqlStatement};
use datafusion::sql::sqlparser::ast::{ObjectName, Query, Visit, Visitor};

/// Tables that a statement may read.
const USES_MAX: u64 = 20_000;

/// Whether a statement reads no more tables than can be planned.
///
/// # Errors
/// Names the bound.
pub(in crate::flight) fn check(statement: &SqlStatement) -> Result<()> {
    match uses(statement) {
        0..=USES_MAX => Ok(()),
        _ => plan_err!(
            "the statement reads more than {USES_MAX} tables, those of WITH at each place where they \
             are used; make tables of some of them first"
        ),
    }
}

fn uses(statement: &SqlStatement) -> u64 {
    let mut counter = Counter::default();
    // Goes on to the end.
    let _ = match statement {
        SqlStatement::Statement(statement) => statement.visit(&mut counter),
        SqlStatement::Explain(explain) => return uses(&explain.statement),
        SqlStatement::CopyTo(copy) => match &copy.source {
            CopyToSource::Query(query) => query.visit(&mut counter),
            CopyToSource::Relation(_) => return 1,
        },
        _ => return 0,
    };
    counter.outside
}

/// One query, while what is in it is visited.
struct Frame {
    /// The tables of its `WITH`: where their queries are, and what they are called.
    queries: Vec<(*const Query, String)>,
    /// How many tables each one of those reads that have been visited.
    tables: HashMap<String, u64>,
    uses: u64,
}

#[derive(Default)]
struct Counter {
    /// The queries around what is visited, outermost first.
    frames: Vec<Frame>,
    outside: u64,
}

impl Counter {
    fn add(&mut self, uses: u64) {
        let sum = self.frames.last_mut().map_or(&mut self.outside, |frame| &mut frame.uses);
        *sum = sum.saturating_add(uses);
    }
}

impl Visitor for Counter {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let tables = query.with.iter().flat_map(|with| &with.cte_tables);
        let queries = tables.map(|table| (&raw const *table.query, key(&table.alias.name.value)));
        let queries = queries.collect();
        self.frames.push(Frame { queries, tables: HashMap::new(), uses: 0 });
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let uses = self.frames.pop().map_or(0, |frame| frame.uses);
        let around = self.frames.last_mut();
        let table = around.and_then(|around| {
            let (_, name) = around.queries.iter().find(|(at, _)| ptr::eq(*at, query))?;
            Some((name.clone(), &mut around.tables))
        });
        match table {
            // Counted where it is used.
            Some((name, tables)) => drop(tables.insert(name, uses.max(1))),
            None => self.add(uses),
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        let name = match relation.0.as_slice() {
            [name] => name.as_ident().map(|name| key(&name.value)),
            _ => None,
        };
        let table = name.and_then(|name| {
            self.frames.iter().rev().find_map(|frame| frame.tables.get(&name).copied())
        });
        self.add(table.unwrap_or(1));
        ControlFlow::Continue(())
    }
}

/// Names that may be the same are taken for the same.
fn key(name: &str) -> String {
    name.to_lowercase()
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::DFParser;

    use super::*;

    fn uses_of(sql: &str) -> u64 {
        let statement = DFParser::parse_sql(sql).unwrap().pop_front().unwrap();
        uses(&statement)
    }

    #[test]
    fn tables_count_where_they_are_used() {
        for (sql, expected) in [
            ("SELECT 1", 0),
            ("SELECT * FROM t", 1),
            ("EXPLAIN SELECT * FROM t a, t b WHERE a.n IN (SELECT n FROM u)", 3),
            ("COPY (SELECT * FROM t, t) TO 'x.csv'", 2),
            ("CREATE TABLE x AS SELECT * FROM t", 2),
            ("WITH a AS (SELECT 1) SELECT * FROM a, a", 2),
            ("WITH a AS (SELECT * FROM t, t), b AS (SELECT * FROM a, A) SELECT * FROM b, b, t", 9),
            ("WITH a AS (SELECT * FROM t, t) SELECT * FROM s.a", 1),
            // Inside and outside, and the name of the one for the other.
            (
                "WITH a AS (SELECT * FROM t, t) SELECT (WITH a AS (SELECT * FROM a, a) SELECT 1 FROM a) FROM a",
                6,
            ),
            ("WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT * FROM a) SELECT * FROM a", 1),
        ] {
            assert_eq!(uses_of(sql), expected, "{sql}");
        }
    }

    #[test]
    fn what_doubles_is_counted_to_the_end_at_once() {
        let tables = (1..1000).map(|at| {
            format!("t{at} AS (SELECT * FROM t{0} UNION ALL SELECT * FROM t{0})", at - 1)
        });
        let tables = tables.collect::<Vec<_>>().join(", ");
        assert_eq!(uses_of(&format!("WITH {tables} SELECT * FROM t999")), u64::MAX);
    }
}
