//! Numbers: keys and other values, with calls anywhere in them.

use super::results::Output;
use super::writer::{By, KEYS, Scope, Writer};

/// How a call is spelled: what stands in front of its input, behind it, and of which output it is.
type Spelling = (&'static str, &'static str, Output);

const SPELLINGS: [(usize, Spelling); 6] = [
    (6, ("ml_predict(MODEL echo, ", ")", Output::Echo)),
    (1, ("ml_predict('echo', ", ")", Output::Echo)),
    (1, ("ml_predict(MODEL echo, ", ", MAP {'max_batch_rows': 2})", Output::Echo)),
    (1, ("ml_predict(MODEL echo, ", ", MAP {'determinism': 'volatile'})", Output::Echo)),
    (1, ("ml_predict(MODEL twin, ", ")['first']", Output::First)),
    (1, ("ml_predict(MODEL twin, ", ")['second']", Output::Second)),
];

/// How deep an expression goes, where it begins.
pub(super) const ROOM: usize = 3;

#[derive(Clone, Copy)]
enum Key {
    Column,
    Number,
    Null,
    Remainder,
    Coalesce,
    Nullif,
    Case,
}

#[derive(Clone, Copy)]
enum Value {
    Column,
    Call,
    Key,
    Coalesce,
    Case,
    Subquery,
}

impl Writer<'_> {
    /// A number that a model may be asked of, or NULL.
    pub(super) fn key(&mut self, scope: &Scope, room: usize) -> String {
        if room == 0 {
            return self.column(&scope.keys);
        }
        let room = room - 1;
        match self.choices.weighted(&[
            (6, Key::Column),
            (1, Key::Number),
            (1, Key::Null),
            (5, Key::Remainder),
            (2, Key::Coalesce),
            (1, Key::Nullif),
            (1, Key::Case),
        ]) {
            Key::Column => self.column(&scope.keys),
            Key::Number => self.number(),
            Key::Null => "CAST(NULL AS BIGINT)".to_owned(),
            Key::Remainder => {
                let divisor = self.choices.one(&[2, 3, 5, KEYS]);
                format!("({} % {divisor})", self.value(scope, room))
            }
            Key::Coalesce => {
                format!("coalesce({}, {})", self.key(scope, room), self.choices.below(5))
            }
            Key::Nullif => {
                format!("nullif({}, {})", self.key(scope, room), self.choices.below(3))
            }
            Key::Case => {
                let condition = self.condition(scope, room);
                let [then, otherwise] = [(); 2].map(|()| self.key(scope, room));
                format!("CASE WHEN {condition} THEN {then} ELSE {otherwise} END")
            }
        }
    }

    /// Any number, or NULL.
    pub(super) fn value(&mut self, scope: &Scope, room: usize) -> String {
        if room == 0 {
            return self.column(&scope.all());
        }
        match self.choices.weighted(&[
            (4, Value::Column),
            (8, Value::Call),
            (2, Value::Key),
            (1, Value::Coalesce),
            (1, Value::Case),
            (1, Value::Subquery),
        ]) {
            Value::Column => self.column(&scope.all()),
            Value::Subquery => self.scalar_subquery(&Scope::default()),
            Value::Call => self.call(scope, room - 1),
            Value::Key => self.key(scope, room - 1),
            Value::Coalesce => {
                format!("coalesce({}, {})", self.value(scope, room - 1), self.choices.below(5))
            }
            Value::Case => {
                let condition = self.condition(scope, room - 1);
                let [then, otherwise] = [(); 2].map(|()| self.value(scope, room - 1));
                format!("CASE WHEN {condition} THEN {then} ELSE {otherwise} END")
            }
        }
    }

    fn call(&mut self, scope: &Scope, room: usize) -> String {
        let spelling = self.choices.weighted(&SPELLINGS);
        let key = self.key(scope, room);
        match self.may_call {
            true => self.call_of(&key, spelling),
            false => key,
        }
    }

    fn call_of(&self, key: &str, (front, back, output): Spelling) -> String {
        match self.by {
            By::Model => format!("{front}{key}{back}"),
            By::Lookup => self.results.lookup(output, key),
        }
    }

    /// A call of a key that is written already.
    pub(super) fn plain_call(&self, key: &str) -> String {
        self.call_of(key, SPELLINGS[0].1)
    }

    fn column(&mut self, of: &[String]) -> String {
        match of.is_empty() {
            true => self.number(),
            false => self.choices.one(of),
        }
    }

    /// Never the number of a column, as it were in GROUP BY and ORDER BY.
    fn number(&mut self) -> String {
        format!("CAST({} AS BIGINT)", self.choices.below(KEYS as usize))
    }
}
