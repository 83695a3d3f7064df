//! SQL behaviour: every file in `tests/sql/` and every example in `sql-examples/`.
//!
//! Each file runs in a session of its own, with an empty catalog, two cores and one emulated
//! accelerator. It runs three times, and all results must be the same: as `sql/…`; as `wire/…`,
//! where every physical plan becomes bytes and a plan again before it runs; and as `cluster/…`, on
//! a scheduler and three workers in processes of their own. `FOREBAY_SLT_COMPLETE=1 cargo test
//! --test sql` writes the results that come back into the files, to be reviewed like code.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where at once")]

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::DataFusionError;
use forebay::{Catalog, ForebayContext, Inventory};
use forebay_testkit::cluster::Cluster;
use libtest_mimic::{Arguments, Failed, Trial};
use sqllogictest::{
    AsyncDB, DBOutput, DefaultColumnType, Runner, default_column_validator, default_normalizer,
    default_validator,
};

mod sql {
    pub(crate) mod wire;
}

/// What becomes of a physical plan before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Plans {
    AsTheyAre,
    Sent,
    /// They run on the cluster of the scheduler there.
    OnCluster(String),
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = vec![];
    let cluster = start_cluster();
    let on_cluster = Plans::OnCluster(cluster.address().to_owned());
    let all = [("sql", Plans::AsTheyAre), ("wire", Plans::Sent), ("cluster", on_cluster)];
    // The results to compare with are those of plans as they are.
    let kinds = if completes() { &all[..1] } else { &all };
    for (kind, plans) in kinds {
        for file in files(Path::new("tests/sql"), "slt") {
            let (name, plans) = (file.strip_prefix("tests/sql").unwrap().display(), plans.clone());
            trials.push(Trial::test(format!("{kind}/{name}"), move || {
                block_on(run_slt(&file, plans))
            }));
        }
        for file in files(Path::new("sql-examples"), "sql") {
            let (name, plans) = (format!("{kind}/{}", file.display()), plans.clone());
            trials.push(Trial::test(name, move || block_on(run_example(&file, plans))));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Two workers of one core, and one with an emulated accelerator, in processes of their own.
fn start_cluster() -> Cluster {
    let mut cluster = Cluster::start(env!("CARGO_BIN_EXE_forebay"), &[]);
    for accelerators in ["0", "0", "1"] {
        cluster.add_worker(&["--cpus", "1", "--emulated-accelerators", accelerators]);
    }
    cluster
}

/// Whether the results that come back become the expected ones.
fn completes() -> bool {
    std::env::var_os("FOREBAY_SLT_COMPLETE").is_some()
}

fn block_on(test: impl Future<Output = Result<(), Failed>>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(test)
}

/// Files below a folder, in order.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

async fn session(plans: &Plans) -> Result<ForebayContext, DataFusionError> {
    let inventory = Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30);
    let builder = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(inventory)
        .with_config(datafusion::prelude::SessionConfig::new().with_target_partitions(2));
    if let Plans::OnCluster(address) = plans {
        return builder.connect(address).await;
    }
    let forebay = builder.build()?;
    if *plans == Plans::Sent {
        sql::wire::send_plans(forebay.session());
    }
    Ok(forebay)
}

async fn run_slt(file: &Path, plans: Plans) -> Result<(), Failed> {
    let mut runner = Runner::new(|| async { Session::open(&plans).await.map_err(Error) });
    if completes() {
        runner
            .update_test_file(
                file,
                " ",
                default_validator,
                default_normalizer,
                default_column_validator,
            )
            .await
            .map_err(|e| e.to_string())?;
        return Ok(());
    }
    Ok(runner.run_file_async(file).await.map_err(|e| e.display(false).to_string())?)
}

/// Runs the statements of a file; the rows of its last query are in `<file>.expected`, if there.
async fn run_example(file: &Path, plans: Plans) -> Result<(), Failed> {
    let forebay = session(&plans).await?;
    let mut rows = vec![];
    for statement in forebay.parse(&fs::read_to_string(file)?)? {
        rows = text_rows(&forebay.execute(statement).await?.collect().await?)?;
    }
    let found: String = rows.iter().map(|row| row.join("\t") + "\n").collect();
    let expected = file.with_extension("expected");
    if completes() {
        fs::write(&expected, &found)?;
    }
    let wanted = fs::read_to_string(&expected)
        .map_err(|e| format!("{}: {e}; run with FOREBAY_SLT_COMPLETE=1", expected.display()))?;
    if found != wanted {
        return Err(format!("expected\n{wanted}\nfound\n{found}").into());
    }
    Ok(())
}

struct Session {
    forebay: ForebayContext,
    /// What `onlyif` and `skipif` call it.
    engine: &'static str,
}

/// Needed because `DataFusionError` is not `Clone` and sqllogictest wants its own type.
#[derive(Debug)]
struct Error(DataFusionError);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(&self.0.strip_backtrace()))
    }
}

impl std::error::Error for Error {}

impl Session {
    async fn open(plans: &Plans) -> Result<Self, DataFusionError> {
        let engine = match plans {
            Plans::OnCluster(_) => "cluster",
            Plans::Sent => "wire",
            Plans::AsTheyAre => "forebay",
        };
        Ok(Self { forebay: session(plans).await?, engine })
    }
}

#[async_trait::async_trait]
impl AsyncDB for Session {
    type Error = Error;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, text: &str) -> Result<DBOutput<DefaultColumnType>, Error> {
        let frame = self.forebay.sql(text).await.map_err(Error)?;
        let columns = frame.schema().fields().len();
        let mut batches = frame.collect().await.map_err(Error)?;
        if self.engine == "cluster" {
            batches = batches.iter().map(without_stages).collect();
        }
        if columns == 0 {
            return Ok(DBOutput::StatementComplete(0));
        }
        let rows = text_rows(&batches).map_err(|e| Error(e.into()))?;
        Ok(DBOutput::Rows { types: vec![DefaultColumnType::Any; columns], rows })
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        self.engine
    }
}

fn text_rows(batches: &[RecordBatch]) -> Result<Vec<Vec<String>>, arrow::error::ArrowError> {
    let options = FormatOptions::new().with_null("NULL");
    let mut rows = vec![];
    for batch in batches {
        let columns = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column.as_ref(), &options))
            .collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let text = |column: &ArrayFormatter| match column.value(row).to_string() {
                empty if empty.is_empty() => "(empty)".to_owned(),
                text => redact(&text),
            };
            rows.extend(lines(columns.iter().map(text).collect()));
        }
    }
    Ok(rows)
}

/// What EXPLAIN says, without the stages: what they are depends on the cluster. Tested in `tests/api`.
fn without_stages(rows: &RecordBatch) -> RecordBatch {
    let Some(kinds) = rows.column_by_name("plan_type") else { return rows.clone() };
    let kinds = kinds.as_string::<i32>();
    let kept = kinds.iter().map(|kind| Some(kind != Some("stages"))).collect();
    filter_record_batch(rows, &kept).unwrap()
}

/// A plan without the node below which it runs on a cluster.
fn without_cluster(plan: &str) -> String {
    match plan.strip_prefix("ClusterExec\n") {
        Some(plan) => plan
            .lines()
            .map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned() + "\n")
            .collect(),
        None => plan.to_owned(),
    }
}

/// A row whose last cell has several lines (a plan) as that many rows, indented by dashes:
/// sqllogictest compares line by line and folds white space.
fn lines(mut row: Vec<String>) -> Vec<Vec<String>> {
    let last = without_cluster(&row.pop().unwrap_or_default());
    let mut rows: Vec<Vec<String>> = vec![];
    for line in last.lines() {
        let text = line.trim_start();
        let line = format!("{}{text}", "-".repeat(line.len() - text.len()));
        rows.push([std::mem::take(&mut row), vec![line]].concat());
    }
    rows
}

/// What differs between machines and runs, and why:
/// - the checkout's folder, in locations of packages and tables
fn redact(text: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    text.replace(root, "<root>/").replace(root.trim_start_matches('/'), "<root>/")
}
