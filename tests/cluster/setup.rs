//! A cluster, a table in Parquet files, a model, and a query that lasts.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionConfig;
use forebay::{Catalog, ForebayContext, Inventory, Tls};
use forebay_testkit::cluster::Cluster;
use forebay_testkit::random::Random;
use futures::StreamExt;
use tempfile::TempDir;

/// No query of these tests may take longer, whatever happens to it.
const HANGS_AFTER: Duration = Duration::from_secs(300);

/// Rows of the table, in files of equal size.
pub(super) fn rows() -> usize {
    if is_long() { 3000 } else { 1500 }
}

pub(super) const FILES: usize = 6;

/// Every row, with what a model says of it. Its text is made on CPU workers, in many blocks.
pub(super) const QUERY: &str = "
    SELECT id, text, label, score FROM ml_predict(
      (SELECT id, concat(upper(word), ' ', CAST(id AS VARCHAR), repeat('.', 40)) AS text FROM words),
      MODEL slow, DESCRIPTOR(text))";

/// The folder of models that take their time, and that of the same ones which do not.
pub(super) const SLOW: &str = "models";
const QUICK: &str = "quick";

/// A worker of one core.
pub(super) const CPU: &[&str] = &["--cpus", "1", "--gpus", "none"];
/// The same, which is reached by the name by which the first one is: they read each other's files. Otherwise the second worker
/// of a cluster [is none of its neighbours](Cluster::add_worker).
pub(super) const NEIGHBOUR: &[&str] = &["--cpus", "1", "--gpus", "none", "--host", "127.0.0.1"];
/// A worker of one core and one emulated accelerator.
pub(super) const ACCELERATOR: &[&str] =
    &["--cpus", "1", "--gpus", "none", "--emulated-accelerators", "1"];

/// Moments of the long set.
const MOMENTS: usize = 10;

/// The parts of the undisturbed work after which something happens: these, or in the long set
/// random ones, the same in every run unless `FOREBAY_CHAOS_SEED` says otherwise.
pub(super) fn moments(short: &[f64]) -> Vec<f64> {
    if !is_long() {
        return short.to_vec();
    }
    let mut random = random();
    (0..MOMENTS).map(|_| 0.05 + 0.85 * random.fraction()).collect()
}

/// What is left to chance, the same in every run unless `FOREBAY_CHAOS_SEED` says otherwise.
pub(super) fn random() -> Random {
    let seed = std::env::var("FOREBAY_CHAOS_SEED").unwrap_or("1".to_owned());
    if is_long() {
        report(&format!("FOREBAY_CHAOS_SEED={seed}"));
    }
    Random::new(seed.parse().unwrap())
}

/// Says what the long set measured, past those who keep what tests print that end well.
pub(super) fn report(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

pub(super) fn is_long() -> bool {
    std::env::var("FOREBAY_CHAOS").is_ok_and(|set| set == "long")
}

/// Processes, and what they work on.
pub(super) struct Stage {
    pub(super) cluster: Cluster,
    folder: TempDir,
    /// Who its sessions are.
    tls: Option<Tls>,
}

/// Rows as text, sorted.
pub(super) type Rows = Vec<String>;

impl Stage {
    /// A scheduler that takes a worker for lost after `timeout_s`, and these workers.
    pub(super) fn new(timeout_s: u64, workers: &[&[&str]]) -> Self {
        Self::with_service(if is_long() { 25 } else { 12 }, timeout_s, workers)
    }

    /// The same, with a model that takes so many milliseconds for 16 rows.
    pub(super) fn with_service(service_ms: u32, timeout_s: u64, workers: &[&[&str]]) -> Self {
        let scheduler = ["--worker-timeout", &timeout_s.to_string()];
        Self::open(service_ms, &scheduler, workers, None)
    }

    /// A scheduler with these arguments, these workers, and sessions that reach them with `tls`.
    pub(super) fn open(
        service_ms: u32,
        scheduler: &[&str],
        workers: &[&[&str]],
        tls: Option<Tls>,
    ) -> Self {
        let cluster = Cluster::start(env!("CARGO_BIN_EXE_forebay"), scheduler);
        Self::on(cluster, service_ms, workers, tls)
    }

    /// The same on a cluster without workers.
    pub(super) fn on(
        mut cluster: Cluster,
        service_ms: u32,
        workers: &[&[&str]],
        tls: Option<Tls>,
    ) -> Self {
        let folder = TempDir::new().unwrap();
        workers.iter().for_each(|arguments| {
            cluster.add_worker(arguments);
        });
        let stage = Self { cluster, folder, tls };
        stage.add_model("slow", service_ms, None);
        stage
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A session on the cluster, with the table and the models. Blocks are small, and few may wait:
    /// CPU workers have something to do until shortly before the end.
    pub(super) async fn session(&self) -> ForebayContext {
        let mut builder = ForebayContext::builder()
            .with_catalog(Catalog::in_memory())
            .with_config(SessionConfig::new().with_target_partitions(FILES));
        if let Some(tls) = &self.tls {
            builder = builder.with_tls(tls.clone());
        }
        let session = builder.connect(self.cluster.address()).await.unwrap();
        for option in ["block_bytes = 8192", "edge_budget = 49152"] {
            run(&session, &format!("SET forebay.{option}")).await.unwrap();
        }
        self.fill(&session, SLOW).await;
        session
    }

    /// The same without a cluster. Its models say the same and take no time.
    pub(super) async fn local(&self) -> ForebayContext {
        let inventory = Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30);
        let builder = ForebayContext::builder()
            .with_catalog(Catalog::in_memory())
            .with_inventory(inventory)
            .with_config(SessionConfig::new().with_target_partitions(FILES));
        let session = builder.build().unwrap();
        self.fill(&session, QUICK).await;
        session
    }

    async fn fill(&self, session: &ForebayContext, models: &str) {
        let table = self.folder.path().join("words");
        if !table.exists() {
            write_table(&table).await;
        }
        let create = format!(
            "CREATE EXTERNAL TABLE words STORED AS PARQUET LOCATION '{}/'",
            table.display()
        );
        run(session, &create).await.unwrap();
        for package in fs::read_dir(self.folder.path().join(models)).unwrap().flatten() {
            let name = package.file_name().into_string().unwrap();
            session.register_model(&name, package.path().to_str().unwrap()).await.unwrap();
        }
    }

    /// A package of an emulated model.
    pub(super) fn add_model(&self, name: &str, service_ms: u32, fail_on: Option<&str>) {
        write_model(&self.folder.path().join(SLOW), name, service_ms, fail_on);
        write_model(&self.folder.path().join(QUICK), name, 0, fail_on);
    }

    /// Runs a query to its end. One that hangs fails the test with what the cluster did.
    pub(super) async fn run(
        &self,
        session: &ForebayContext,
        query: &str,
    ) -> Result<Rows, DataFusionError> {
        self.bounded(run(session, query)).await
    }

    /// What the query gives undisturbed, as in one process, and how long it takes.
    pub(super) async fn undisturbed(&self, session: &ForebayContext) -> Undisturbed {
        let (begun, since) = (self.cluster.tasks_begun(), Instant::now());
        let rows = self.run(session, QUERY).await.unwrap();
        let took = since.elapsed();
        assert_eq!(rows.len(), self::rows());
        assert_eq!(rows, run(&self.local().await, QUERY).await.unwrap());
        self.nothing_ran_again(session).await;
        Undisturbed { rows, took, tasks: self.cluster.tasks_begun() - begun }
    }

    /// Nobody was lost, so nothing that was done was done again: if it was, a worker was taken for gone that only
    /// was not heard in time.
    pub(super) async fn nothing_ran_again(&self, session: &ForebayContext) {
        let again = run(session, "SELECT * FROM forebay.recomputed").await.unwrap();
        assert!(again.is_empty(), "{again:?}\n{}", self.cluster.said());
    }

    /// Starts a query, to be disturbed.
    pub(super) fn start(&self, session: &ForebayContext, query: &str) -> Running {
        let (session, query) = (session.clone(), query.to_owned());
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let begun_before = self.cluster.tasks_begun();
        let task = SpawnedTask::spawn(async move {
            let rows = run(&session, &query).await;
            ends.store(true, Ordering::Release);
            rows
        });
        Running { task, over, begun_before }
    }

    /// Waits until a query has begun a part of the tasks that it takes undisturbed: the same point of
    /// its work, however busy the machine is.
    pub(super) async fn reach(&self, running: &Running, moment: f64, undisturbed: &Undisturbed) {
        let tasks = (undisturbed.tasks as f64 * moment).ceil() as usize;
        let reached = async {
            while self.cluster.tasks_begun() < running.begun_before + tasks && !running.is_over() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        self.bounded(reached).await;
    }

    /// The rows of a query that was started.
    pub(super) async fn end(&self, running: Running) -> Result<Rows, DataFusionError> {
        self.bounded(async { running.task.join().await.unwrap() }).await
    }

    pub(super) async fn bounded<T>(&self, work: impl Future<Output = T>) -> T {
        match tokio::time::timeout(HANGS_AFTER, work).await {
            Ok(done) => done,
            Err(_) => panic!("nothing for {HANGS_AFTER:?}:\n{}", self.cluster.said()),
        }
    }

    /// Waits until something holds of the cluster.
    pub(super) async fn until(
        &mut self,
        what: &str,
        bound: Duration,
        mut holds: impl FnMut(&mut Cluster) -> bool,
    ) {
        let since = Instant::now();
        while !holds(&mut self.cluster) {
            assert!(since.elapsed() < bound, "{what}: not for {bound:?}\n{}", self.cluster.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until so many tasks have begun, in all queries so far.
    pub(super) async fn until_tasks_run(&mut self, tasks: usize) {
        let bound = Duration::from_secs(30);
        self.until("tasks", bound, move |cluster| cluster.tasks_begun() >= tasks).await;
    }

    /// Waits until several blocks of the result are there and have not been read.
    pub(super) async fn until_result_waits(&self, session: &ForebayContext) {
        let waits = "SELECT count(*) > 1 FROM forebay.blocks b JOIN forebay.jobs j USING (job_id) \
                     WHERE j.state = 'running' AND b.state IN ('sealed', 'assigned') AND \
                     b.stage_id = j.stages - 1";
        let waits = async {
            while run(session, waits).await.unwrap() != ["true"] {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        self.bounded(waits).await;
    }

    /// Waits until no worker has blocks or tasks.
    pub(super) async fn until_nothing_is_left(&mut self, workers: &[usize]) {
        let workers = workers.to_vec();
        self.until("nothing left on workers", Duration::from_secs(30), move |cluster| {
            workers.iter().all(|at| cluster.blocks(*at).is_empty()) && cluster.tasks_running() == 0
        })
        .await;
    }
}

/// What a query gives when nothing happens to it.
pub(super) struct Undisturbed {
    pub(super) rows: Rows,
    pub(super) took: Duration,
    pub(super) tasks: usize,
}

/// A query that runs.
pub(super) struct Running {
    task: SpawnedTask<Result<Rows, DataFusionError>>,
    over: Arc<AtomicBool>,
    /// Tasks that had begun before it.
    begun_before: usize,
}

impl Running {
    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// Runs a query.
pub(super) async fn run(session: &ForebayContext, query: &str) -> Result<Rows, DataFusionError> {
    Ok(text(&session.sql(query).await?.collect().await?))
}

/// Reads the first rows of a query, which then waits to be read or dropped.
pub(super) async fn begin(
    session: &ForebayContext,
    query: &str,
) -> datafusion::execution::SendableRecordBatchStream {
    session.sql(query).await.unwrap().execute_stream().await.unwrap()
}

/// Polls a stream for a while; says whether it gave anything.
pub(super) async fn poll_for(
    rows: &mut datafusion::execution::SendableRecordBatchStream,
    time: Duration,
) -> bool {
    tokio::time::timeout(time, rows.next()).await.is_ok()
}

/// The rows of batches, sorted.
pub(super) fn text(batches: &[RecordBatch]) -> Rows {
    let mut rows = lines(batches);
    rows.sort();
    rows
}

/// The rows of batches as they come.
pub(super) fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let options = datafusion::arrow::util::display::FormatOptions::new().with_null("NULL");
    let mut rows = vec![];
    for batch in batches {
        let columns: Vec<_> = batch
            .columns()
            .iter()
            .map(|column| {
                datafusion::arrow::util::display::ArrayFormatter::try_new(column, &options).unwrap()
            })
            .collect();
        for row in 0..batch.num_rows() {
            let cells: Vec<_> =
                columns.iter().map(|column| column.value(row).to_string()).collect();
            rows.push(cells.join("|"));
        }
    }
    rows
}

/// Rows in no order: an order that a table has is kept, by one task that sees all rows.
async fn write_table(folder: &Path) {
    let session = ForebayContext::builder().with_catalog(Catalog::in_memory()).build().unwrap();
    let (rows, part) = (rows(), rows() / FILES);
    for file in 0..FILES {
        let (from, to) = (file * part, (file + 1) * part);
        let copy = format!(
            "COPY \
             (SELECT value * 7919 % {rows} AS id, md5(CAST(value AS VARCHAR)) AS word \
              FROM range({from}, {to})) \
             TO '{}/{file}.parquet' STORED AS PARQUET",
            folder.display()
        );
        run(&session, &copy).await.unwrap();
    }
}

/// An emulated model that has an accelerator for itself and takes 16 rows at a time.
pub(super) fn write_model(folder: &Path, name: &str, service_ms: u32, fail_on: Option<&str>) {
    let stock = fs::read_to_string("tests/models/sentiment/model.toml").unwrap();
    let fail_on = fail_on.map(|text| format!("\nfail_on = \"{text}\"")).unwrap_or_default();
    let manifest = stock
        .replace("name = \"sentiment\"", &format!("name = \"{name}\""))
        .replace("service_ms = 1", &format!("service_ms = {service_ms}{fail_on}"))
        .replace("gpus = 0.5", "gpus = 1")
        .replace("max_rows = 4\nwindow_rows = 16", "max_rows = 16\nwindow_rows = 64");
    let package = folder.join(name);
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("model.toml"), manifest).unwrap();
}
