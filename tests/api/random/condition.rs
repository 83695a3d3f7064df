//! Conditions without subqueries, with calls anywhere in them.

use super::writer::{Scope, Writer};

#[derive(Clone, Copy)]
enum Condition {
    Keys,
    IsNull,
    Values,
    In,
    Between,
    Distinct,
    And,
    Or,
    Not,
}

impl Writer<'_> {
    pub(super) fn condition(&mut self, scope: &Scope, room: usize) -> String {
        let inner = room.saturating_sub(1);
        match self.choices.weighted(&[
            (6, Condition::Keys),
            (2, Condition::IsNull),
            (1, Condition::Values),
            (2, Condition::In),
            (1, Condition::Between),
            (1, Condition::Distinct),
            (2 * room, Condition::And),
            (2 * room, Condition::Or),
            (room, Condition::Not),
        ]) {
            Condition::Keys => {
                let operator = self.choices.one(&["=", "<>", "<", ">="]);
                let left = self.key(scope, room);
                format!("{left} {operator} {}", self.key(scope, inner))
            }
            Condition::IsNull => {
                let not = self.not();
                format!("{} IS {not}NULL", self.value(scope, room))
            }
            Condition::Values => {
                let operator = self.choices.one(&["=", "<", "<>"]);
                let left = self.value(scope, room);
                format!("{left} {operator} {}", self.value(scope, inner))
            }
            Condition::In => {
                let not = self.not();
                let left = self.key(scope, room);
                let items: Vec<String> =
                    (0..=self.choices.below(3)).map(|_| self.key(scope, inner)).collect();
                format!("{left} {not}IN ({})", items.join(", "))
            }
            Condition::Between => {
                let [it, from, to] = [room, inner, inner].map(|room| self.key(scope, room));
                format!("{it} BETWEEN {from} AND {to}")
            }
            // In brackets: sqlparser takes an AND behind it for a part of it.
            Condition::Distinct => {
                let not = self.not();
                let [left, right] = [room, inner].map(|room| self.value(scope, room));
                format!("({left} IS {not}DISTINCT FROM {right})")
            }
            Condition::And => {
                let [left, right] = [(); 2].map(|()| self.condition(scope, inner));
                format!("({left} AND {right})")
            }
            Condition::Or => {
                let [left, right] = [(); 2].map(|()| self.condition(scope, inner));
                format!("({left} OR {right})")
            }
            Condition::Not => format!("NOT ({})", self.condition(scope, inner)),
        }
    }

    pub(super) fn not(&mut self) -> &'static str {
        self.choices.one(&["", "NOT "])
    }
}
