//! The session options under `forebay.`: `SET forebay.byte_budget = 33554432`.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use datafusion::common::config_field;
use datafusion::common::{
    DataFusionError, Result, extensions_options, plan_datafusion_err, plan_err,
};
use datafusion::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use forebay_udf::error::nearest_hint;

extensions_options! {
    /// Options of one session.
    pub struct Options {
        /// Bytes that one exchange may hold between its producers and its replicas. Where the size of batches
        /// is learned and this is not set, four batches if that is more.
        pub byte_budget: usize, default = 64 * 1024 * 1024

        /// Whether to put exchanges in front of inference; off only to compare.
        pub exchange: bool, default = true

        /// Whether exchanges keep their input's order where somebody relies on it. If not, rows are
        /// sorted again where they must be. Off on a cluster, where one task would do all of it.
        pub ordered_exchanges: bool, default = true

        /// Seconds after which a query that makes no progress fails; 0 for never.
        pub no_progress_limit_s: u64, default = 600

        /// Whether rows with equal model inputs are computed once, within a window and unless the
        /// model is volatile.
        pub share_equal_inputs: bool, default = true

        /// Whether conditions that need no model's output run before the model.
        pub push_filters_below_inference: bool, default = true

        /// Whether a LIMIT without ORDER BY bounds the rows that a model sees.
        pub push_limits_below_inference: bool, default = true

        /// Whether ORDER BY with LIMIT over columns that no model computes runs before the model.
        pub push_topk_below_inference: bool, default = true

        /// Whether IN and EXISTS over columns that no model computes run before the model.
        pub push_semi_joins_below_inference: bool, default = true

        /// Whether the same model over the same columns runs once in a query.
        pub merge_equal_inferences: bool, default = true

        /// Whether inference drops the columns and outputs that nobody needs, and itself if none is
        /// needed.
        pub prune_unused_columns: bool, default = true

        /// Whether conditions on models run one after the other, the smallest model first.
        pub order_filters_by_cost: bool, default = true

        /// Bytes of Arrow data in one file that COPY or INSERT writes into a folder.
        pub file_bytes: usize, default = 256 * 1024 * 1024

        /// Whether COPY and INSERT that are submitted can be resumed, when they fail or their server does.
        pub resumable: bool, default = false

        /// Whether of such a job with GROUP BY, ORDER BY and the like what models give below is staged and kept,
        /// and the rest made of it at the end; if not, it is refused.
        pub stage_models: bool, default = false

        /// Bytes of input files whose rows such a job writes and keeps at a time.
        pub part_bytes: usize, default = 64 * 1024 * 1024

        /// On a cluster: whether workers write the files of COPY and INSERT; if not, the session does.
        pub write_on_workers: bool, default = true

        /// On a cluster: bytes of Arrow data in one block at most. The first blocks of a task are
        /// smaller, so that work above it starts early.
        pub block_bytes: usize, default = 128 * 1024 * 1024

        /// On a cluster: bytes of sorted rows that one task merges for ORDER BY, and for window functions over all
        /// rows; up to four times that where there are very many. With fewer rows one task merges all, and for 0
        /// always.
        pub range_bytes: usize, default = 64 * 1024 * 1024

        /// On a cluster: bytes of rows of files that a hash shuffle deals out into one partition, as far as statistics
        /// tell, if it then has more partitions than `datafusion.execution.target_partitions`; 0 for never.
        pub partition_bytes: usize, default = 256 * 1024 * 1024

        /// On a cluster: a hash shuffle whose segments would have fewer bytes than this on average goes through tasks
        /// that merge them, if they are many; 0 for never.
        pub merge_segments_below: usize, default = 256 * 1024

        /// On a cluster: how many segments a hash shuffle must have for that.
        pub merge_segments_from: usize, default = 256 * 1024

        /// On a cluster: bytes that may wait between two stages.
        pub edge_budget: usize, default = 1024 * 1024 * 1024

        /// On a cluster: bytes that may wait between all stages of a query. An eighth of it is kept
        /// after it has been read, for when a worker is lost.
        pub job_budget: usize, default = 16 * 1024 * 1024 * 1024

        /// On a cluster: whether a task writes many blocks, each of which can be read when it is
        /// complete; if not, it writes one. Off only to compare.
        pub dynamic_blocks: bool, default = true

        /// On a cluster: how producers are held back, so that what is written and not read stays
        /// within the budgets: reserve, paper or off.
        pub admission: Admission, default = Admission::Reserve

        /// On a cluster: whether a stage starts when its first input is there; off only to compare.
        pub stream_stages: bool, default = true

        /// On a cluster: this query's part of it, relative to the weights of the others.
        pub weight: u32, default = 1
    }
}

/// How producers on a cluster are held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// A producer starts if what is sealed and not consumed, what running producers are expected
    /// to add, and what it is expected to add itself fit into the edge's budget, and into what its worker may keep.
    #[default]
    Reserve,
    /// The policy of the streaming batch model (arXiv 2501.12407, section 4): sources start at the
    /// rate at which the slowest operators take in their output.
    Paper,
    /// Never. To compare with.
    Off,
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reserve => "reserve",
            Self::Paper => "paper",
            Self::Off => "off",
        })
    }
}

impl FromStr for Admission {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::Reserve, Self::Paper, Self::Off];
        let found = all.into_iter().find(|one| one.to_string().eq_ignore_ascii_case(text));
        found.ok_or_else(|| plan_datafusion_err!("'{text}' is none of {ADMISSIONS}"))
    }
}

const ADMISSIONS: &str = "reserve, paper, off";

config_field!(Admission);

impl Options {
    /// After how long a query that makes no progress fails.
    pub fn no_progress_limit(&self) -> Option<Duration> {
        (self.no_progress_limit_s > 0).then(|| Duration::from_secs(self.no_progress_limit_s))
    }
}

/// The value that `RESET forebay.key` gives back.
///
/// # Errors
/// Names the nearest option.
pub(crate) fn default_value(key: &str) -> Result<String> {
    Ok(default_entry(key)?.value.unwrap_or_default())
}

/// The option of this name, with its default as its value.
fn default_entry(key: &str) -> Result<ConfigEntry> {
    let mut entries = Options::default().entries();
    if let Some(found) = entries.iter().position(|entry| entry.key == key) {
        return Ok(entries.swap_remove(found));
    }
    let names: Vec<String> = entries.into_iter().map(|entry| entry.key).collect();
    plan_err!(
        "unknown option 'forebay.{key}'{}; the options are {}",
        nearest_hint(key, names.iter().map(String::as_str)),
        names.join(", ")
    )
}

/// The value of `SET forebay.key = value` as the option stores it: sizes may have a unit.
///
/// # Errors
/// Names the nearest option, or what the option expects.
pub(crate) fn checked_value(key: &str, value: &str) -> Result<String> {
    let entry = default_entry(key)?;
    let is_size = matches!(
        key,
        "byte_budget"
            | "block_bytes"
            | "edge_budget"
            | "file_bytes"
            | "job_budget"
            | "merge_segments_below"
            | "part_bytes"
            | "partition_bytes"
            | "range_bytes"
    );
    let value = match value.parse::<ByteSize>() {
        Ok(size) if is_size => size.as_u64().to_string(),
        _ => value.to_owned(),
    };
    if Options::default().set(key, &value).is_ok() {
        return Ok(value);
    }
    let expected = match entry.value.as_deref() {
        Some("true" | "false") => "true or false",
        _ if key == "admission" => ADMISSIONS,
        _ if is_size => "a number of bytes, such as 33554432 or 32MiB",
        _ => "a whole number of at least 0",
    };
    plan_err!("invalid value '{value}' for 'forebay.{key}': expected {expected}")
}

/// The [`Options`], listed by `SHOW` under their full names.
#[derive(Clone, Debug, Default)]
pub struct ForebayConfig(Options);

impl Deref for ForebayConfig {
    type Target = Options;

    fn deref(&self) -> &Options {
        &self.0
    }
}

impl ExtensionOptions for ForebayConfig {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        self.0.set(key, value)
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let mut entries = self.0.entries();
        for entry in &mut entries {
            entry.key = format!("{}.{}", Self::PREFIX, entry.key);
        }
        entries
    }
}

impl ConfigExtension for ForebayConfig {
    const PREFIX: &'static str = "forebay";
}
