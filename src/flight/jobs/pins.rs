//! What makes the rows of a job what they are, and what of it is another one's by now.

use std::collections::BTreeMap;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{Expr, LogicalPlan};
use forebay_engine::write::resume::Input;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What options begin with that change what a statement means or gives. The others say how it is done.
const CHANGES_RESULTS: [&str; 9] = [
    "datafusion.catalog.",
    "datafusion.execution.enable_ansi_mode",
    "datafusion.execution.keep_partition_by_columns",
    "datafusion.execution.parquet.binary_as_string",
    "datafusion.execution.parquet.coerce_int96",
    "datafusion.execution.parquet.schema_force_view_types",
    "datafusion.execution.parquet.skip_metadata",
    "datafusion.execution.time_zone",
    "datafusion.sql_parser.",
];

/// What a job was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::flight) struct Pins {
    /// Of Forebay.
    pub(in crate::flight) version: String,
    /// A digest of the statement's plan, with the views that it names.
    pub(in crate::flight) plan: String,
    pub(in crate::flight) target: String,
    /// How its files are written.
    pub(in crate::flight) format: BTreeMap<String, String>,
    /// How files are read.
    pub(in crate::flight) reads: String,
    pub(in crate::flight) models: BTreeMap<String, String>,
    pub(in crate::flight) options: BTreeMap<String, String>,
    /// The files that are read in pieces.
    pub(in crate::flight) inputs: Vec<Input>,
    /// The files that all parts read.
    pub(in crate::flight) pinned: Vec<Input>,
    /// What parts stage, if it is not what is written.
    #[serde(default)]
    pub(in crate::flight) staged: String,
    /// How the files are read that are read only by what is made of all staged rows.
    #[serde(default)]
    pub(in crate::flight) rest_reads: String,
    /// Those files.
    #[serde(default)]
    pub(in crate::flight) rest: Vec<Input>,
}

impl Pins {
    /// The options of a session that change results.
    pub(in crate::flight) fn options_of(options: &ConfigOptions) -> BTreeMap<String, String> {
        let entries = options.entries().into_iter();
        let entries = entries
            .filter(|entry| CHANGES_RESULTS.iter().any(|changes| entry.key.starts_with(changes)));
        entries.map(|entry| (entry.key, entry.value.unwrap_or_default())).collect()
    }

    /// A digest of a plan, which is the same each time that the same statement is planned.
    pub(in crate::flight) fn digest_of(plan: &LogicalPlan) -> String {
        let LogicalPlan::Copy(copy) = plan else {
            return Self::digest(&format!("{}{}", plan.display_indent(), literals(plan)));
        };
        // Its own text has its options in another order each time.
        let options: BTreeMap<_, _> = copy.options.iter().collect();
        let (to, folders, input) = (&copy.output_url, &copy.partition_by, &copy.input);
        let (text, literals) = (input.display_indent(), literals(input));
        Self::digest(&format!("{to:?} {folders:?} {options:?}\n{text}{literals}"))
    }

    fn digest(text: &str) -> String {
        hex::encode(&Sha256::digest(text)[..16])
    }

    /// Of all that makes the rows of a piece what they are: not of the files that are read in pieces, of which each
    /// piece has its own, and not of what is made of staged rows.
    pub(in crate::flight) fn fingerprint(&self) -> String {
        let mut own =
            Self { inputs: vec![], rest: vec![], rest_reads: String::new(), ..self.clone() };
        if !self.staged.is_empty() {
            (own.target, own.format) = (String::new(), BTreeMap::new());
        }
        Self::digest(&format!("{own:?}"))
    }

    /// Of all that makes of the same staged rows what it is, if rows are staged.
    pub(in crate::flight) fn rest_fingerprint(&self) -> Option<String> {
        let all = Self { inputs: vec![], ..self.clone() };
        (!self.staged.is_empty()).then(|| Self::digest(&format!("{all:?}")))
    }

    /// What is another one by now, for people.
    pub(in crate::flight) fn differences(&self, now: &Self) -> Vec<String> {
        let mut all = vec![];
        let mut differs = |what: &str, before: &str, now: &str| {
            if before != now {
                all.push(format!("{what} was {before}, and is {now}"));
            }
        };
        differs("the version of Forebay", &self.version, &now.version);
        differs("what it writes", &self.target, &now.target);
        differs("how its files are read", &self.reads, &now.reads);
        differs("what is staged", &self.staged, &now.staged);
        differs("how files are read beside staged rows", &self.rest_reads, &now.rest_reads);
        if self.plan != now.plan {
            all.push("a table, a view or a function that it names is another one".to_owned());
        }
        let of_format = "option of the files that it writes";
        all.extend(of_names(of_format, &self.format, &now.format));
        all.extend(of_names("model", &self.models, &now.models));
        all.extend(of_names("option", &self.options, &now.options));
        all.extend(of_files("", &self.inputs, &now.inputs));
        all.extend(of_files(", with which all rows are joined,", &self.pinned, &now.pinned));
        all.extend(of_files(", which is read beside staged rows,", &self.rest, &now.rest));
        all
    }
}

/// All constants of a plan as they are: for people long bytes, and long lists of rows, are cut short.
fn literals(plan: &LogicalPlan) -> String {
    let mut all = String::new();
    let found = plan.apply_with_subqueries(|node| {
        for expr in node.expressions() {
            expr.apply(|expr| {
                if let Expr::Literal(value, _) = expr {
                    all.push_str(&format!("\n{value:?}"));
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    });
    // Nothing in it fails.
    found.map(|_| all).unwrap_or_default()
}

fn of_names(
    what: &str,
    before: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Vec<String> {
    let value = |all: &BTreeMap<String, String>, name: &str| {
        all.get(name).map_or_else(|| "nothing".to_owned(), |value| format!("'{value}'"))
    };
    let mut names: Vec<&String> = before.keys().chain(now.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let differs = names.into_iter().filter(|name| before.get(*name) != now.get(*name));
    let said = differs.map(|name| {
        format!("{what} {name} was {}, and is {}", value(before, name), value(now, name))
    });
    said.collect()
}

fn of_files(which: &str, before: &[Input], now: &[Input]) -> Vec<String> {
    let named = |all: &[Input]| -> BTreeMap<String, Input> {
        all.iter().map(|file| (file.url(), file.clone())).collect()
    };
    let (named_before, named_now) = (named(before), named(now));
    let gone = before.iter().filter(|file| !named_now.contains_key(&file.url()));
    let gone = gone.map(|file| format!("the file '{}'{which} is gone", file.url()));
    let others = now.iter().filter_map(|file| match named_before.get(&file.url()) {
        None => Some(format!("the file '{}'{which} is new", file.url())),
        Some(before) if before != file => Some(format!(
            "the file '{}'{which} has changed: it had {} bytes, {}, and has {}, {}",
            file.url(),
            before.size,
            before.version,
            file.size,
            file.version
        )),
        Some(_) => None,
    });
    gone.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    fn file(path: &str, size: u64) -> Input {
        let (store, version) = ("file:///".to_owned(), "etag 1".to_owned());
        Input { store, path: path.to_owned(), size, version }
    }

    #[test]
    fn what_differs_is_named() {
        let names = |all: &[(&str, &str)]| {
            all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let before = Pins {
            version: "1".to_owned(),
            models: names(&[("a", "x"), ("b", "y")]),
            options: names(&[("datafusion.execution.time_zone", "UTC")]),
            inputs: vec![file("t/0", 1), file("t/1", 1), file("t/2", 1)],
            pinned: vec![file("d/0", 1)],
            ..Pins::default()
        };
        assert_eq!(before.differences(&before), Vec::<String>::new());
        let now = Pins {
            models: names(&[("a", "x"), ("b", "z")]),
            options: names(&[("datafusion.execution.time_zone", "CET")]),
            inputs: vec![file("t/0", 1), file("t/1", 2), file("t/3", 1)],
            pinned: vec![file("d/0", 2)],
            ..before.clone()
        };
        let all = before.differences(&now);
        let expected = [
            "model b was 'y', and is 'z'",
            "option datafusion.execution.time_zone was 'UTC', and is 'CET'",
            "the file 'file:///t/2' is gone",
            "the file 'file:///t/1' has changed: it had 1 bytes, etag 1, and has 2, etag 1",
            "the file 'file:///t/3' is new",
            "the file 'file:///d/0', with which all rows are joined, has changed: it had 1 bytes, etag 1, and \
             has 2, etag 1",
        ];
        assert_eq!(all, expected);
        let inputs = Pins { inputs: now.inputs.clone(), ..before.clone() };
        assert_eq!(before.fingerprint(), inputs.fingerprint());
        assert_ne!(before.fingerprint(), now.fingerprint());
    }

    #[test]
    fn what_is_made_of_staged_rows_changes_none_of_them() {
        let plain = Pins { target: "t".to_owned(), ..Pins::default() };
        let other = Pins { target: "u".to_owned(), ..plain.clone() };
        assert_ne!(plain.fingerprint(), other.fingerprint());
        assert_eq!(plain.rest_fingerprint(), None);
        let staged = |pins: &Pins| Pins { staged: "Int64".to_owned(), ..pins.clone() };
        let (before, elsewhere) = (staged(&plain), staged(&other));
        assert_ne!(before.fingerprint(), plain.fingerprint());
        let beside = Pins { rest: vec![file("d/0", 1)], ..before.clone() };
        for now in [elsewhere, beside] {
            assert_eq!(before.fingerprint(), now.fingerprint());
            assert_ne!(before.rest_fingerprint(), now.rest_fingerprint());
            assert_eq!(before.differences(&now).len(), 1);
        }
        let read = Pins { inputs: vec![file("t/0", 1)], ..before.clone() };
        assert_eq!(before.rest_fingerprint(), read.rest_fingerprint());
    }

    #[tokio::test]
    async fn a_copy_has_the_same_digest_each_time_that_it_is_planned() {
        let session = SessionContext::new();
        let digest = async |options: &str| {
            let sql = format!("COPY (SELECT 1 AS n) TO 't/' STORED AS CSV OPTIONS ({options})");
            Pins::digest_of(&session.state().create_logical_plan(&sql).await.unwrap())
        };
        let three =
            "'format.has_header' 'true', 'format.delimiter' ';', 'format.null_value' 'none'";
        let first = digest(three).await;
        for _ in 0..50 {
            assert_eq!(digest(three).await, first);
        }
        // Behind what people are shown of it.
        let of_view = async |end: &str| {
            let bytes = format!("X'00112233445566778899AABB{end}'");
            let view = format!("CREATE OR REPLACE VIEW v AS SELECT {bytes} AS b");
            session.sql(&view).await.unwrap().collect().await.unwrap();
            let sql = "COPY (SELECT * FROM v) TO 't/' STORED AS PARQUET";
            Pins::digest_of(&session.state().create_logical_plan(sql).await.unwrap())
        };
        let one = of_view("01").await;
        assert_eq!(of_view("01").await, one);
        assert_ne!(of_view("02").await, one);
        assert_ne!(digest(&three.replace(';', "|")).await, first);
        assert_ne!(digest("'format.has_header' 'true'").await, first);
    }
}
