//! Writes a random query twice, in the same words: once the model computes, once a list that knows
//! what the model gives.

use super::choices::Choices;
use super::results::Results;

/// Keys lie between this and its negative: of them the list of results knows all.
pub(in crate::api) const KEYS: i64 = 12;

/// Who computes. The rest of the text is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum By {
    /// `ml_predict(MODEL echo, x)`
    Model,
    /// `[…][x + 12]`
    Lookup,
}

/// The columns that an expression may name. All are BIGINT.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    /// Of which the models may be asked.
    pub(super) keys: Vec<String>,
    /// Which may be any numbers.
    pub(super) values: Vec<String>,
}

impl Scope {
    /// The columns id, grp and val of a relation.
    pub(super) fn of(alias: &str) -> Self {
        Self {
            keys: vec![format!("{alias}.id"), format!("{alias}.grp")],
            values: vec![format!("{alias}.val")],
        }
    }

    pub(super) fn and(mut self, other: &Self) -> Self {
        self.keys.extend_from_slice(&other.keys);
        self.values.extend_from_slice(&other.values);
        self
    }

    pub(super) fn all(&self) -> Vec<String> {
        [&self.keys[..], &self.values[..]].concat()
    }
}

/// The state of a text that grows. What it writes depends on the choices and on who computes, and
/// the latter changes no choice.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    pub(super) choices: Choices<'a>,
    pub(super) by: By,
    pub(super) results: &'a Results,
    /// How deep queries may be nested from here.
    pub(super) depth: usize,
    /// Whether expressions may have calls here.
    pub(super) may_call: bool,
    /// The WITH clauses in reach.
    pub(super) common: Vec<String>,
    named: usize,
}

/// A query with the columns id, grp and val.
#[derive(Debug)]
pub(in crate::api) struct Written {
    pub(in crate::api) sql: String,
    /// Whether it says in which order the rows come, down to the last one.
    pub(in crate::api) is_ordered: bool,
}

impl<'a> Writer<'a> {
    /// The query that these numbers stand for.
    pub(super) fn write(numbers: &'a [u16], by: By, results: &'a Results) -> Written {
        let choices = Choices::new(numbers);
        let mut writer =
            Self { choices, by, results, depth: 4, may_call: true, common: vec![], named: 0 };
        match writer.choices.rarely(3) {
            false => Written { sql: writer.query(), is_ordered: false },
            true => Written { sql: writer.ordered(), is_ordered: true },
        }
    }

    /// A name that nothing else has.
    pub(super) fn name(&mut self, prefix: &str) -> String {
        self.named += 1;
        format!("{prefix}{}", self.named)
    }

    /// Writes something that may have calls only if `calls`.
    pub(super) fn calling<T>(&mut self, calls: bool, write: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.may_call, calls);
        let written = write(self);
        self.may_call = before;
        written
    }
}
