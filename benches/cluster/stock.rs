//! Stock Ballista in this process, and queries that run there and on Forebay's cluster.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::extension::{SessionConfigExt, SessionStateExt};
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use datafusion::common::Result as DataFusionResult;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use tempfile::TempDir;

use super::median;

/// A scheduler and executors of Ballista's as they come, in this process.
pub(super) struct Stock {
    session: SessionContext,
    _running: Vec<SpawnedTask<()>>,
    _folder: TempDir,
}

impl Stock {
    /// With executors of so many cores, and a session that plans with so many partitions. Without a limit of memory.
    pub(super) async fn start(executors: &[usize], partitions: usize) -> Self {
        let config = SessionConfig::new_with_ballista().with_target_partitions(partitions);
        Self::start_with(executors, 0, config).await
    }

    /// Each executor has so many bytes of memory; 0 for no limit.
    async fn start_with(executors: &[usize], memory: u64, session: SessionConfig) -> Self {
        let [scheduler_port] = free_ports();
        let config = SchedulerConfig {
            bind_port: scheduler_port,
            ..SchedulerConfig::default().with_scheduler_policy(TaskSchedulingPolicy::PushStaged)
        };
        let cluster = BallistaCluster::new_from_config(&config).await.unwrap();
        let address = (Ipv4Addr::LOCALHOST, scheduler_port).into();
        let mut running = vec![SpawnedTask::spawn(async move {
            start_server(cluster, address, Arc::new(config)).await.unwrap();
        })];
        let folder = TempDir::new().unwrap();
        for (number, cores) in executors.iter().enumerate() {
            let work_dir = folder.path().join(number.to_string());
            fs::create_dir(&work_dir).unwrap();
            let [port, grpc_port] = free_ports();
            let executor = ExecutorProcessConfig {
                port,
                grpc_port,
                scheduler_host: Ipv4Addr::LOCALHOST.to_string(),
                scheduler_port,
                scheduler_connect_timeout_seconds: 10,
                vcores: *cores,
                task_scheduling_policy: TaskSchedulingPolicy::PushStaged,
                work_dir: Some(work_dir.to_str().unwrap().to_owned()),
                memory_pool_size: Some(memory),
                ..ExecutorProcessConfig::default()
            };
            running.push(SpawnedTask::spawn(async move {
                Box::pin(start_executor_process(Arc::new(executor))).await.unwrap();
            }));
        }
        // They say to nobody here when they are ready; the first query waits for them.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let state = SessionStateBuilder::new().with_default_features().with_config(session).build();
        let state = state.upgrade_for_ballista(format!("http://127.0.0.1:{scheduler_port}"));
        let session = SessionContext::new_with_state(state.unwrap());
        Self { session, _running: running, _folder: folder }
    }

    pub(super) fn session(&self) -> &SessionContext {
        &self.session
    }
}

/// Runs the statements on standard input, one a line, with a stock scheduler and an executor per core, each with
/// `FOREBAY_STOCK_MEMORY` bytes (no limit). Writes the rows of each as CSV, or `error: ` and why there are none, and
/// then a line that says `end`: for `benches/peers`. All options are Ballista's.
pub(super) async fn shell() {
    let memory = std::env::var("FOREBAY_STOCK_MEMORY").map_or(0, |bytes| bytes.parse().unwrap());
    let cores = std::thread::available_parallelism().unwrap().get();
    let config = SessionConfig::new_with_ballista();
    let stock = Stock::start_with(&vec![1; cores], memory, config).await;
    for statement in std::io::stdin().lines() {
        let mut csv = vec![];
        match run(&stock.session, &statement.unwrap()).await {
            Ok(batches) => {
                let mut writer = arrow::csv::Writer::new(&mut csv);
                batches.iter().for_each(|batch| writer.write(batch).unwrap());
            }
            Err(error) => csv = format!("error: {error}").replace('\n', " ").into_bytes(),
        }
        println!("{}\nend", String::from_utf8(csv).unwrap().trim_end());
    }
}

async fn run(session: &SessionContext, statement: &str) -> DataFusionResult<Vec<RecordBatch>> {
    session.sql(statement).await?.collect().await
}

/// Ports that nobody has at this moment.
fn free_ports<const N: usize>() -> [u16; N] {
    let held = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    held.map(|port| port.local_addr().unwrap().port())
}

/// Seconds, and seconds of CPU time of this process, in which everything runs.
type Took = [f64; 2];

/// Each query on Forebay and on stock Ballista, in turn; prints the medians, and their ratios. CPU time says
/// what is to be expected of a machine that others use, too.
pub(super) async fn compare(
    kind: &str,
    data: &str,
    queries: &[(String, String)],
    sessions: [&SessionContext; 2],
    rounds: usize,
) {
    let mut took: BTreeMap<(&str, usize), Vec<Took>> = BTreeMap::new();
    for round in 0..=rounds {
        for (query, sql) in queries {
            let mut results = vec![];
            for (at, session) in sessions.into_iter().enumerate() {
                let (start, cpu) = (Instant::now(), cpu_seconds());
                let batches = session.sql(sql).await.unwrap().collect().await.unwrap();
                let seconds = [start.elapsed().as_secs_f64(), cpu_seconds() - cpu];
                results.push(text(&batches));
                // The first round warms both up.
                if round > 0 {
                    took.entry((query, at)).or_default().push(seconds);
                }
            }
            assert!(!results[0].is_empty(), "query {query} gives nothing");
            assert_eq!(results[0], results[1], "query {query}");
        }
    }
    let mut all = [[0.0; 2]; 2];
    for (query, _) in queries {
        let medians = [0, 1].map(|at| {
            [0, 1].map(|kind| {
                let values: Vec<f64> =
                    took[&(query.as_str(), at)].iter().map(|t| t[kind]).collect();
                median(&values)
            })
        });
        print(&format!("{kind}, query {query}"), data, medians);
        for (all, one) in all.iter_mut().flatten().zip(medians.iter().flatten()) {
            *all += one;
        }
    }
    print(&format!("{kind}, all queries"), data, all);
}

fn print(name: &str, data: &str, [forebay, stock]: [Took; 2]) {
    println!(
        "{{\"name\": \"cluster, {name}\", {data}, \"seconds\": {:.3}, \"seconds_stock_ballista\": \
         {:.3}, \"ratio\": {:.3}, \"cpu_seconds\": {:.2}, \"cpu_seconds_stock_ballista\": {:.2}, \
         \"cpu_ratio\": {:.3}}}",
        forebay[0],
        stock[0],
        forebay[0] / stock[0],
        forebay[1],
        stock[1],
        forebay[1] / stock[1]
    );
}

/// Of user and system, of this process, from the kernel's account.
pub(super) fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = after_name.split(' ').collect();
    let ticks: u64 = [11, 12].map(|at: usize| fields[at].parse::<u64>().unwrap()).iter().sum();
    // 100 ticks a second, on every Linux of the last decades.
    ticks as f64 / 100.0
}

/// Rows as text, in no order: what is equal in the order may come in any.
pub(super) fn text(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::default();
    let mut rows = vec![];
    for batch in batches {
        let columns = batch.columns().iter();
        let columns: Vec<_> =
            columns.map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
        let row = |row| columns.iter().map(|column| column.value(row).to_string() + "|").collect();
        rows.extend((0..batch.num_rows()).map(row));
    }
    rows.sort();
    rows
}
