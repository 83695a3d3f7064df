//! Queries: SELECT, set operations, WITH and recursion.

use super::expression::ROOM;
use super::writer::{Scope, Writer};

#[derive(Clone, Copy)]
enum Kind {
    Select,
    SetOperation,
    With,
    Recursive,
}

impl Writer<'_> {
    /// With the columns id, grp and val, of which the first two are keys.
    pub(super) fn query(&mut self) -> String {
        if self.depth == 0 {
            return self.select();
        }
        match self.choices.weighted(&[
            (12, Kind::Select),
            (2, Kind::SetOperation),
            (1, Kind::With),
            (1, Kind::Recursive),
        ]) {
            Kind::Select => self.select(),
            Kind::SetOperation => self.set_operation(),
            Kind::With => {
                let name = self.name("c");
                let of = self.nested(Self::query);
                self.common.push(name.clone());
                let body = self.select();
                self.common.pop();
                format!("WITH {name} AS ({of}) {body}")
            }
            Kind::Recursive => self.recursive(),
        }
    }

    fn set_operation(&mut self) -> String {
        let operator = self.choices.one(&[
            "UNION ALL",
            "UNION",
            "INTERSECT",
            "INTERSECT ALL",
            "EXCEPT",
            "EXCEPT ALL",
        ]);
        let [left, right] = [(); 2].map(|()| self.nested(Self::query));
        format!("({left}) {operator} ({right})")
    }

    /// Three rounds at the most.
    fn recursive(&mut self) -> String {
        let [name, alias] = ["r", "q"].map(|prefix| self.name(prefix));
        let start = self.nested(Self::query);
        let scope =
            Scope { keys: vec![format!("{alias}.id")], values: vec![format!("{alias}.val")] };
        let [id, value] = [self.key(&scope, 2), self.value(&scope, ROOM)];
        let rest = match self.choices.rarely(2) {
            true => format!(" AND {}", self.condition(&scope, 2)),
            false => String::new(),
        };
        let union = self.choices.one(&["UNION ALL", "UNION"]);
        format!(
            "WITH RECURSIVE {name} AS (SELECT id, 0 AS grp, val FROM ({start}) AS s {union} \
             SELECT {id} AS id, {alias}.grp + 1 AS grp, {value} AS val FROM {name} AS {alias} \
             WHERE {alias}.grp < 2{rest}) SELECT id, grp, val FROM {name}"
        )
    }

    /// A query that says in which order its rows come.
    pub(super) fn ordered(&mut self) -> String {
        let alias = self.name("o");
        let query = self.nested(Self::query);
        let key = self.value(&Scope::of(&alias), 2);
        let direction = self.direction();
        let limit = match self.choices.rarely(2) {
            true => self.limit(),
            false => String::new(),
        };
        format!(
            "SELECT id, grp, val FROM ({query}) AS {alias} ORDER BY {key}{direction}, \
             1 NULLS LAST, 2 NULLS LAST, 3 NULLS LAST{limit}"
        )
    }
}
