//! Runs a query in all ways, and says what is wrong.
//!
//! The reference is the same text with a list in place of each call: what the model gives is looked up
//! in it, by DataFusion alone, in one process and with no option set.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::DataFusionError;
use forebay::ForebayContext;

use super::count::Judge;
use super::results::Results;
use super::second::Second;
use super::settings::{self, Choice};
use super::writer::{By, Writer, Written};

/// No query takes nearly as long, unless it hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// The numbers of a query, and its options.
#[derive(Clone, Debug)]
pub(in crate::api) struct Case {
    pub(in crate::api) query: Vec<u16>,
    pub(in crate::api) settings: Vec<Choice>,
    /// Whether every plan becomes bytes and a plan again before it runs, in one process.
    pub(in crate::api) is_sent: bool,
}

/// Where queries run.
pub(super) struct World {
    /// One process, and DataFusion alone as far as the reference goes.
    pub(super) here: ForebayContext,
    /// Where the model computes.
    pub(super) there: ForebayContext,
    /// Whether that is a cluster.
    pub(super) is_cluster: bool,
    pub(super) results: Results,
    /// Another engine for the reference.
    pub(super) second: Option<Mutex<Second>>,
}

pub(in crate::api) enum Verdict {
    Equal,
    /// DataFusion cannot run the reference.
    Refused(String),
    /// DataFusion by itself gives other rows for the reference under these options, or fails, or
    /// another engine gives other rows.
    NotOurs(Finding),
    Wrong(Finding),
}

/// What is wrong with a query.
pub(in crate::api) struct Finding {
    /// Findings with other words are other findings.
    pub(in crate::api) kind: String,
    pub(in crate::api) text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The rows as text, or why there are none.
pub(in crate::api) type Rows = Result<Vec<String>, String>;

impl Judge for World {
    async fn judge(&self, case: &Case) -> Verdict {
        let [model, lookup] =
            [By::Model, By::Lookup].map(|by| Writer::write(&case.query, by, &self.results));
        let expected = match rows(&self.here, &[], &lookup, false).await {
            Ok(rows) => rows,
            Err(error) => return Verdict::Refused(format!("{}\n{error}", model.sql)),
        };
        let [options, of_clusters] = self.options(&case.settings);
        let all = [&options[..], &of_clusters[..]].concat();
        let find = |written: &Written, options: &[Choice], found: Rows| {
            (found.as_ref() != Ok(&expected)).then(|| finding(written, options, &expected, found))
        };
        // DataFusion's codec does not know recursion, and forgets that a column of a UNION can be NULL.
        let is_kept = ["RECURSIVE", "UNION"].iter().all(|word| !model.sql.contains(word));
        let is_sent = case.is_sent && !self.is_cluster && is_kept;
        let mut wrong = find(&model, &all, rows(&self.there, &all, &model, is_sent).await);
        if wrong.is_none() && self.is_cluster {
            wrong = find(&lookup, &all, rows(&self.there, &all, &lookup, false).await);
        }
        if let Some(another) = self.ask_second(&lookup, &expected) {
            return Verdict::NotOurs(another);
        }
        let Some(wrong) = wrong else { return Verdict::Equal };
        // With the options that are DataFusion's, and without those that are ours.
        let alone = find(&lookup, &options, rows(&self.here, &options, &lookup, is_sent).await);
        match alone {
            Some(alone) => Verdict::NotOurs(alone),
            None => Verdict::Wrong(wrong),
        }
    }
}

impl World {
    fn ask_second(&self, lookup: &Written, expected: &[String]) -> Option<Finding> {
        let rows = self.second.as_ref()?.lock().unwrap().rows(lookup).ok()?;
        (rows != expected).then(|| finding(lookup, &[], &rows, Ok(expected.to_vec())))
    }

    /// For all sessions, and for those of clusters.
    fn options(&self, settings: &[Choice]) -> [Vec<Choice>; 2] {
        let (options, of_clusters): (Vec<Choice>, Vec<Choice>) =
            settings.iter().partition(|choice| settings::SETTINGS.contains(choice));
        [options, if self.is_cluster { of_clusters } else { vec![] }]
    }
}

pub(in crate::api) fn finding(
    query: &Written,
    options: &[Choice],
    expected: &[String],
    found: Rows,
) -> Finding {
    let (kind, what) = match found {
        Ok(found) => {
            let mut lines = String::new();
            lines.push_str(&format!("{} rows instead of {}\n", found.len(), expected.len()));
            for row in difference(&found, expected) {
                lines.push_str(&format!("  not expected: {row}\n"));
            }
            for row in difference(expected, &found) {
                lines.push_str(&format!("  missing:      {row}\n"));
            }
            if lines.lines().count() == 1 {
                lines.push_str("  in another order\n");
            }
            ("other rows".to_owned(), lines)
        }
        Err(error) => {
            // Names and numbers differ from query to query.
            let kind = error.chars().filter(|c| c.is_alphabetic()).take(60).collect();
            (kind, shortened(&error))
        }
    };
    let options: String =
        options.iter().map(|(name, value)| format!("SET {name} = {value};\n")).collect();
    Finding { kind, text: format!("{options}{};\n{what}", query.sql) }
}

/// Some quote a whole plan before they say what is wrong with it.
fn shortened(error: &str) -> String {
    let letters: Vec<char> = error.chars().collect();
    match letters.len() {
        0..=2000 => error.to_owned(),
        length => letters[..1000].iter().chain(&['…']).chain(&letters[length - 1000..]).collect(),
    }
}

/// A few of the rows that the others lack.
fn difference(rows: &[String], others: &[String]) -> Vec<String> {
    let mut others = others.to_vec();
    let lacking = rows.iter().filter(|row| match others.iter().position(|other| other == *row) {
        Some(at) => {
            others.swap_remove(at);
            false
        }
        None => true,
    });
    lacking.take(5).cloned().collect()
}

/// The rows as text, sorted unless the query says in which order they come.
async fn rows(forebay: &ForebayContext, options: &[Choice], query: &Written, sends: bool) -> Rows {
    let session = forebay.new_session().map_err(|error| error.to_string())?;
    if sends {
        crate::api::sending::send_plans(session.session());
    }
    let state = session.session().state_ref();
    for (name, value) in options {
        state.write().config_mut().options_mut().set(name, value).unwrap();
    }
    let sql = query.sql.clone();
    let batches = bounded(async move { session.sql(&sql).await?.collect().await }).await?;
    let mut rows: Vec<String> = batches.iter().flat_map(texts).collect();
    if !query.is_ordered {
        rows.sort_unstable();
    }
    Ok(rows)
}

/// A panic is an error of its query, and so is an end that does not come.
pub(in crate::api) async fn bounded<T: Send + 'static>(
    query: impl Future<Output = Result<T, DataFusionError>> + Send + 'static,
) -> Result<T, String> {
    match tokio::time::timeout(HANGS_AFTER, SpawnedTask::spawn(query)).await {
        Ok(Ok(rows)) => rows.map_err(|error| error.to_string()),
        Ok(Err(panic)) => Err(format!("panics: {panic}")),
        Err(_) => Err(format!("has not ended after {HANGS_AFTER:?}")),
    }
}

fn texts(batch: &RecordBatch) -> Vec<String> {
    let row = |row: usize| {
        let values = batch.columns().iter().map(|column| match column.is_null(row) {
            true => "NULL".to_owned(),
            false => array_value_to_string(column, row).unwrap(),
        });
        values.collect::<Vec<_>>().join(" ")
    };
    (0..batch.num_rows()).map(row).collect()
}
