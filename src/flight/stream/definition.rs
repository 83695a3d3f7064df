//! What readers say of the stream that they want to read.

use std::collections::BTreeMap;

use bytesize::ByteSize;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tonic::Status;

/// Readers that a stream waits for, or has, at most.
const READERS_MAX: u32 = 1024;

/// Rows of a batch at most, if the definition says how many.
const BATCH_ROWS_MAX: usize = 1 << 16;

/// Which stream, and how it is read: the same for all of its readers, but for `reader`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::flight) struct Definition {
    /// By which readers find it. Each user has names of its own.
    pub(super) name: String,
    /// What it reads, once per epoch.
    pub(super) query: String,
    #[serde(default)]
    pub(super) epoch: u64,
    #[serde(default)]
    pub(super) mode: Mode,
    /// It begins when so many readers have come; in the mode `coordinated` it has so many.
    pub(super) readers: Option<u32>,
    /// Of `coordinated`: which of the readers, from 0.
    pub(in crate::flight) reader: Option<u32>,
    /// Rows of each batch, but for the last ones.
    pub(super) batch_rows: Option<usize>,
    /// Of `coordinated`: the column with the length of a row, or whose values have one.
    pub(super) length: Option<String>,
    /// A seed: rows come in an order that it, the epoch and their values determine.
    pub(super) shuffle: Option<i64>,
    /// Of `shuffle`: bytes of files whose rows are shuffled together, one such window after the other. If it is not
    /// given, all rows are.
    #[serde(default, deserialize_with = "size")]
    pub(super) shuffle_window: Option<u64>,
    /// Options of its session.
    #[serde(default)]
    pub(super) options: BTreeMap<String, String>,
}

/// Who gets which rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// Each batch goes to the reader that asks first.
    #[default]
    Shards,
    /// All rows go to all readers.
    Shared,
    /// In each round each reader gets one batch, and all of them have rows of similar length.
    Coordinated,
}

impl Definition {
    /// Reads JSON.
    ///
    /// # Errors
    /// What is missing, unknown, or does not go together.
    pub(in crate::flight) fn parse(json: &str) -> Result<Self, Status> {
        let found: Self = serde_json::from_str(json).map_err(|error| {
            wrong(&format!("{error}; expected JSON as {{\"name\": …, \"query\": …}}"))
        })?;
        found.check().map(|()| found).map_err(|problem| wrong(&problem))
    }

    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if name.is_empty() {
            return Err("the name is empty".to_owned());
        }
        let numbers = [
            ("readers", self.readers.map(|readers| readers as usize), READERS_MAX as usize),
            ("batch_rows", self.batch_rows, BATCH_ROWS_MAX),
        ];
        for (key, found, most) in numbers {
            if let Some(found) = found.filter(|found| !(1..=most).contains(found)) {
                return Err(format!("stream '{name}': {key} is {found}, expected 1 to {most}"));
            }
        }
        let coordinated = [
            ("readers", self.readers.is_some()),
            ("reader", self.reader.is_some()),
            ("length", self.length.is_some()),
            ("batch_rows", self.batch_rows.is_some()),
        ];
        let is_coordinated = self.mode == Mode::Coordinated;
        for (key, is_set) in coordinated {
            if is_coordinated && !is_set {
                return Err(format!("stream '{name}': the mode coordinated needs '{key}'"));
            }
            if !is_coordinated && is_set && matches!(key, "reader" | "length") {
                return Err(format!("stream '{name}': '{key}' is for the mode coordinated"));
            }
        }
        if self.shuffle_window.is_some() && self.shuffle.is_none() {
            return Err(format!("stream '{name}': 'shuffle_window' needs 'shuffle', a seed"));
        }
        match (self.reader, self.readers) {
            (Some(reader), Some(readers)) if reader >= readers => Err(format!(
                "stream '{name}': reader {reader} of {readers}, which are numbered from 0"
            )),
            _ => Ok(()),
        }
    }

    /// What shuffles this epoch, if something does.
    pub(super) fn seed(&self) -> Option<i64> {
        self.shuffle.map(|seed| seed.wrapping_add_unsigned(self.epoch))
    }

    /// The same for all readers.
    pub(super) fn common(&self) -> Self {
        Self { reader: None, ..self.clone() }
    }
}

/// A number of bytes, also in words as options have it.
fn size<'de, D: Deserializer<'de>>(json: D) -> Result<Option<u64>, D::Error> {
    let found = Value::deserialize(json)?;
    let size = match &found {
        Value::Null => return Ok(None),
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse::<ByteSize>().ok().map(|size| size.as_u64()),
        _ => None,
    };
    size.filter(|size| *size > 0).map(Some).ok_or_else(|| {
        let expected = "expected bytes of files, as 268435456 or \"256 MiB\"";
        Error::custom(format!("shuffle_window is {found}, {expected}"))
    })
}

fn wrong(problem: &str) -> Status {
    Status::invalid_argument(format!("forebay.stream: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_go_together_is_named() {
        let cases = [
            ("", "expected JSON"),
            (r#"{"query": "SELECT 1"}"#, "missing field `name`"),
            (r#"{"name": "", "query": ""}"#, "the name is empty"),
            (r#"{"name": "a", "query": "", "mod": "shards"}"#, "unknown field `mod`"),
            (r#"{"name": "a", "query": "", "mode": "all"}"#, "unknown variant `all`"),
            (
                r#"{"name": "a", "query": "", "batch_rows": 0}"#,
                "batch_rows is 0, expected 1 to 65536",
            ),
            (
                r#"{"name": "a", "query": "", "batch_rows": 18446744073709551615}"#,
                "batch_rows is 18446744073709551615, expected",
            ),
            (
                r#"{"name": "a", "query": "", "readers": 4294967295}"#,
                "readers is 4294967295, expected",
            ),
            (
                r#"{"name": "a", "query": "", "length": "n"}"#,
                "'length' is for the mode coordinated",
            ),
            (r#"{"name": "a", "query": "", "mode": "coordinated"}"#, "needs 'readers'"),
            (
                r#"{"name": "a", "query": "", "mode": "coordinated", "readers": 2, "reader": 2,
                    "length": "n", "batch_rows": 8}"#,
                "reader 2 of 2",
            ),
            (
                r#"{"name": "a", "query": "", "shuffle": 1, "shuffle_window": "many"}"#,
                "shuffle_window is \"many\", expected bytes of files",
            ),
            (
                r#"{"name": "a", "query": "", "shuffle": 1, "shuffle_window": 0}"#,
                "shuffle_window is 0, expected bytes of files",
            ),
            (
                r#"{"name": "a", "query": "", "shuffle": 1, "shuffle_window": -1}"#,
                "shuffle_window is -1, expected bytes of files",
            ),
            (r#"{"name": "a", "query": "", "shuffle_window": 1}"#, "needs 'shuffle', a seed"),
        ];
        for (json, expected) in cases {
            let problem = Definition::parse(json).unwrap_err();
            assert!(problem.message().contains(expected), "{json}: {problem}");
        }
        let whole = r#"{"name": "a", "query": "SELECT 1", "epoch": 3, "shuffle": 7, "readers": 2}"#;
        assert_eq!(Definition::parse(whole).unwrap().mode, Mode::Shards);
        for (window, expected) in
            [("null", None), ("1000", Some(1000)), (r#""2 MiB""#, Some(2 << 20))]
        {
            let json = format!(
                r#"{{"name": "a", "query": "", "shuffle": 7, "shuffle_window": {window}}}"#
            );
            assert_eq!(Definition::parse(&json).unwrap().shuffle_window, expected);
        }
    }
}
