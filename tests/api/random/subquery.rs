//! Queries in expressions: alone, and correlated with the query around them.

use super::expression::ROOM;
use super::writer::{Scope, Writer};

#[derive(Clone, Copy)]
enum Filter {
    Condition,
    Exists,
    In,
    Compared,
    And,
    Or,
}

#[derive(Clone, Copy)]
enum Item {
    Value,
    Subquery,
    CallOfSubquery,
}

impl Writer<'_> {
    /// ` WHERE …`, or nothing.
    pub(super) fn filter(&mut self, scope: &Scope) -> String {
        match self.choices.rarely(2) {
            true => format!(" WHERE {}", self.filter_condition(scope)),
            false => String::new(),
        }
    }

    /// A condition that may have subqueries.
    fn filter_condition(&mut self, scope: &Scope) -> String {
        if self.depth == 0 {
            return self.condition(scope, ROOM);
        }
        match self.choices.weighted(&[
            (8, Filter::Condition),
            (2, Filter::Exists),
            (2, Filter::In),
            (1, Filter::Compared),
            (2, Filter::And),
            (1, Filter::Or),
        ]) {
            Filter::Condition => self.condition(scope, ROOM),
            Filter::Exists => {
                let not = self.not();
                let subquery =
                    self.subquery(scope, true, |writer, scope| writer.value(scope, ROOM));
                format!("{not}EXISTS {subquery}")
            }
            Filter::In => {
                let not = self.not();
                let left = self.key(scope, ROOM);
                // NOT IN is refused where it is correlated and has calls.
                let correlates = not.is_empty();
                let subquery =
                    self.subquery(scope, correlates, |writer, scope| writer.key(scope, ROOM));
                format!("{left} {not}IN {subquery}")
            }
            Filter::Compared => {
                let left = self.key(scope, ROOM);
                format!("{left} >= {}", self.scalar_subquery(scope))
            }
            Filter::And => {
                let left = self.condition(scope, 1);
                format!("{left} AND {}", self.filter_condition(scope))
            }
            Filter::Or => {
                let left = self.condition(scope, 1);
                format!("({left} OR {})", self.filter_condition(scope))
            }
        }
    }

    /// What a SELECT gives: a value, which may come from a subquery.
    pub(super) fn item(&mut self, scope: &Scope) -> String {
        if self.depth == 0 {
            return self.value(scope, ROOM);
        }
        match self.choices.weighted(&[
            (10, Item::Value),
            (1, Item::Subquery),
            (1, Item::CallOfSubquery),
        ]) {
            Item::Value => self.value(scope, ROOM),
            Item::Subquery => self.scalar_subquery(scope),
            Item::CallOfSubquery => {
                let subquery = self.scalar_subquery(scope);
                match self.may_call {
                    true => self.plain_call(&format!("({subquery} % 5)")),
                    false => subquery,
                }
            }
        }
    }

    /// Of one row.
    pub(super) fn scalar_subquery(&mut self, outer: &Scope) -> String {
        let aggregate = self.choices.one(&["max", "min", "count"]);
        self.subquery(outer, true, |writer, scope| {
            format!("{aggregate}({})", writer.value(scope, ROOM))
        })
    }

    /// `(SELECT … FROM … WHERE …)`, where the last may name columns of the query around it.
    fn subquery(
        &mut self,
        outer: &Scope,
        may_correlate: bool,
        select: impl FnOnce(&mut Self, &Scope) -> String,
    ) -> String {
        let (from, scope) = self.nested(Self::from);
        let is_correlated = self.choices.rarely(2) && may_correlate && !outer.keys.is_empty();
        if !is_correlated {
            let filter = self.nested(|writer| writer.filter(&scope));
            let select = select(self, &scope);
            return format!("(SELECT {select} FROM {from}{filter})");
        }
        let inner = self.choices.one(&scope.keys);
        let outer_key = self.key(outer, 1);
        let rest = match self.choices.rarely(2) {
            true => format!(" AND {}", self.condition(&scope, 2)),
            false => String::new(),
        };
        let select = select(self, &scope);
        format!("(SELECT {select} FROM {from} WHERE {inner} = {outer_key}{rest})")
    }

    /// Writes a query inside of this one.
    pub(super) fn nested<T>(&mut self, write: impl FnOnce(&mut Self) -> T) -> T {
        let depth = self.depth;
        self.depth = depth.saturating_sub(1);
        let written = self.calling(true, write);
        self.depth = depth;
        written
    }
}
