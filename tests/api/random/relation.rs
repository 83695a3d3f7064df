//! FROM: tables, queries, joins, and `ml_predict` as a table function and LATERAL.

use super::expression::ROOM;
use super::results::Output;
use super::tables::TABLES;
use super::writer::{By, Scope, Writer};

#[derive(Clone, Copy)]
enum From {
    One,
    Join,
    Lateral,
}

#[derive(Clone, Copy)]
enum Relation {
    Table,
    Query,
    Function,
    Common,
    Values,
}

/// How a table function is given its table and its column.
const FUNCTIONS: [(&str, &str, &[Output]); 5] = [
    ("ml_predict(TABLE (", "), MODEL echo, DESCRIPTOR(id))", &[Output::Echo]),
    ("ml_predict((", "), 'echo', DESCRIPTOR(id), MAP {'max_batch_rows': '3'})", &[Output::Echo]),
    (
        "ml_predict(input => TABLE (",
        "), model => MODEL echo, args => DESCRIPTOR(id))",
        &[Output::Echo],
    ),
    (
        "ml_predict((",
        "), MODEL twin, DESCRIPTOR(id), on_error => 'null')",
        &[Output::First, Output::Second],
    ),
    ("TABLE(ml_predict((", "), MODEL twin, DESCRIPTOR(id)))", &[Output::First, Output::Second]),
];

impl Writer<'_> {
    pub(super) fn from(&mut self) -> (String, Scope) {
        match self.choices.weighted(&[(6, From::One), (2, From::Join), (1, From::Lateral)]) {
            From::One => self.relation(),
            From::Join => self.join(),
            From::Lateral => self.lateral(),
        }
    }

    fn relation(&mut self) -> (String, Scope) {
        let alias = self.name("q");
        let deeper = usize::from(self.depth > 0);
        let text = match self.choices.weighted(&[
            (4, Relation::Table),
            (8 * deeper, Relation::Query),
            (3 * deeper, Relation::Function),
            (3 * usize::from(!self.common.is_empty()), Relation::Common),
            (1, Relation::Values),
        ]) {
            Relation::Table => format!("{} AS {alias}", self.choices.weighted(&TABLES)),
            Relation::Query => format!("({}) AS {alias}", self.nested(Self::query)),
            Relation::Common => {
                let common = self.common.clone();
                format!("{} AS {alias}", self.choices.one(&common))
            }
            Relation::Values => {
                let rows: Vec<String> =
                    (0..=self.choices.below(3)).map(|_| self.row_of_values()).collect();
                format!("(VALUES {}) AS {alias}(id, grp, val)", rows.join(", "))
            }
            Relation::Function => return self.function(&alias),
        };
        (text, Scope::of(&alias))
    }

    fn row_of_values(&mut self) -> String {
        let nothing = Scope::default();
        let [id, grp] = [(); 2].map(|()| self.key(&nothing, 2));
        format!("({id}, {grp}, {})", self.value(&nothing, 2))
    }

    /// Its outputs are columns beside those of the input.
    fn function(&mut self, alias: &str) -> (String, Scope) {
        let (front, back, outputs) = self.choices.one(&FUNCTIONS);
        let input = self.nested(Self::query);
        let names: Vec<String> = (1..=outputs.len()).map(|at| format!("out{at}")).collect();
        let columns = format!("{alias}(id, grp, val, {})", names.join(", "));
        let mut scope = Scope::of(alias);
        scope.values.extend(names.iter().map(|name| format!("{alias}.{name}")));
        let text = match self.by {
            By::Model => format!("{front}{input}{back} AS {columns}"),
            By::Lookup => {
                let found: Vec<String> =
                    outputs.iter().map(|output| self.results.lookup(*output, "id")).collect();
                let found = found.join(", ");
                format!("(SELECT id, grp, val, {found} FROM ({input}) AS f) AS {columns}")
            }
        };
        (text, scope)
    }

    fn join(&mut self) -> (String, Scope) {
        let (left, left_scope) = self.relation();
        let (right, right_scope) = self.relation();
        let both = left_scope.clone().and(&right_scope);
        let kind = self.choices.weighted(&[
            (4, "JOIN"),
            (3, "LEFT JOIN"),
            (2, "RIGHT JOIN"),
            (2, "FULL JOIN"),
            (1, "CROSS JOIN"),
            (1, "LEFT SEMI JOIN"),
            (1, "LEFT ANTI JOIN"),
        ]);
        if kind == "CROSS JOIN" {
            return (format!("{left} CROSS JOIN {right}"), both);
        }
        let condition = self.join_condition(kind, &left_scope, &right_scope);
        let scope = if kind.starts_with("LEFT SEMI") || kind.starts_with("LEFT ANTI") {
            left_scope
        } else {
            both
        };
        (format!("{left} {kind} {right} {condition}"), scope)
    }

    fn join_condition(&mut self, kind: &str, left: &Scope, right: &Scope) -> String {
        if self.choices.rarely(6) {
            return "USING (id)".to_owned();
        }
        let operator = self.choices.weighted(&[(8, "="), (1, "<"), (1, "IS NOT DISTINCT FROM")]);
        // In brackets, as a condition of its kind is.
        let keys = format!("({} {operator} {})", self.key(left, 2), self.key(right, 2));
        match self.choices.below(4) {
            0 | 1 => format!("ON {keys}"),
            2 => {
                let side = self.choices.one(&[left, right]);
                format!("ON {keys} AND {}", self.condition(side, 2))
            }
            _ => {
                // Of others, calls over both sides are refused.
                let calls = self.may_call && kind == "JOIN";
                let both = left.clone().and(right);
                let condition = self.calling(calls, |writer| writer.condition(&both, 2));
                format!("ON {keys} AND {condition}")
            }
        }
    }

    /// Of the relation before it, and of what another such call gives.
    fn lateral(&mut self) -> (String, Scope) {
        let (mut text, mut scope) = self.relation();
        let mut is_comma = false;
        for _ in 0..=self.choices.below(2) {
            let alias = self.name("p");
            let key = self.calling(false, |writer| writer.key(&scope, ROOM));
            // What follows a comma is joined with what follows it, before the comma joins both.
            let kind = match is_comma {
                true => ",",
                false => self.choices.one(&[" CROSS JOIN", " LEFT JOIN", " JOIN", ","]),
            };
            is_comma |= kind == ",";
            let digest = match self.by {
                By::Model => format!("{alias}.digest"),
                By::Lookup => self.plain_call(&key),
            };
            scope.values.push(digest);
            let condition = match kind {
                " LEFT JOIN" => " ON TRUE".to_owned(),
                " JOIN" => {
                    format!(" ON {}", self.calling(false, |writer| writer.condition(&scope, 2)))
                }
                _ => String::new(),
            };
            text = match self.by {
                By::Model => {
                    format!(
                        "{text}{kind} LATERAL ml_predict(MODEL echo, {key}) AS {alias}{condition}"
                    )
                }
                // One row for each row.
                By::Lookup => format!("{text}{kind} (SELECT 1 AS one) AS {alias}{condition}"),
            };
        }
        (text, scope)
    }
}
