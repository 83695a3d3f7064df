//! Workers that may keep different amounts of what tasks write: each is given what it has room for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::ForebayContext;
use futures::TryStreamExt;

use super::history;
use super::setup::{CPU, Stage, begin, run, text};

/// Tasks of the query, and rows of each.
const FILES: usize = 32;
const ROWS: usize = 200;

const SMALL: u64 = 400_000;
const LARGE: u64 = 1_200_000;

/// Rows of a thousand letters, of which at least half are left when they are compressed: a task writes from a quarter
/// of what the small worker may keep to half of it, and all together more than both.
fn query() -> String {
    let texts: Vec<_> =
        (0..32).map(|part| format!("md5(concat(CAST(id AS VARCHAR), '-{part}'))")).collect();
    format!("SELECT id, concat({}) AS text FROM many", texts.join(", "))
}

async fn write_table(session: &ForebayContext, folder: &Path) {
    for file in 0..FILES {
        let (from, to) = (file * ROWS, (file + 1) * ROWS);
        let copy = format!(
            "COPY (SELECT value AS id FROM range({from}, {to})) TO '{}/{file}.parquet' \
             STORED AS PARQUET",
            folder.display()
        );
        run(session, &copy).await.unwrap();
    }
}

async fn create_table(session: &ForebayContext, folder: &Path) {
    let folder = folder.display();
    let create = format!("CREATE EXTERNAL TABLE many STORED AS PARQUET LOCATION '{folder}/'");
    run(session, &create).await.unwrap();
}

struct Rooms {
    stage: Stage,
    table: PathBuf,
    small: String,
    large: String,
}

impl Rooms {
    async fn new() -> Self {
        let limits = [SMALL, LARGE].map(|limit| limit.to_string());
        let workers = limits.each_ref().map(|limit| [CPU, &["--work-limit", limit]].concat());
        let mut stage = Stage::new(60, &[&workers[0], &workers[1]]);
        let table = stage.folder().join("many");
        let local = stage.local().await;
        write_table(&local, &table).await;
        let [small, large] = [0, 1].map(|at| stage.cluster.worker(at).name().to_owned());
        Self { stage, table, small, large }
    }

    /// No budget but that of workers holds anything back, and a first guess is no less than what a task writes.
    async fn session(&self) -> ForebayContext {
        let session = self.stage.session().await;
        create_table(&session, &self.table).await;
        for option in [
            format!("datafusion.execution.target_partitions = {FILES}"),
            "forebay.block_bytes = 300000".to_owned(),
            "forebay.edge_budget = 64000000".to_owned(),
        ] {
            run(&session, &format!("SET {option}")).await.unwrap();
        }
        session
    }

    async fn expected(&self) -> Vec<String> {
        let local = self.stage.local().await;
        create_table(&local, &self.table).await;
        run(&local, &query()).await.unwrap()
    }
}

/// A number of each worker.
async fn by_worker(session: &ForebayContext, query: &str) -> BTreeMap<String, u64> {
    let rows = run(session, query).await.unwrap();
    let pair = |row: &String| {
        let (worker, number) = row.split_once('|').unwrap();
        (worker.to_owned(), number.parse().unwrap())
    };
    rows.iter().map(pair).collect()
}

/// The client reads the first rows and no more: what is written then stays where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_worker_holds_what_it_may_keep_and_no_more() {
    let rooms = Rooms::new().await;
    let (stage, session) = (&rooms.stage, rooms.session().await);
    let mut stream = begin(&session, &query()).await;
    let mut batches = vec![stage.bounded(stream.try_next()).await.unwrap().unwrap()];
    let job = history::last_job(&session).await;
    // Nothing more begins while another query runs from its beginning to its end on the same workers.
    let (mut before, mut begun) = (usize::MAX, 0);
    while before != begun {
        before = history::tasks(&session, &job).await.len();
        assert_eq!(stage.run(&session, "SELECT sum(id) FROM many").await.unwrap().len(), 1);
        let tasks = history::tasks(&session, &job).await;
        begun = if tasks.iter().any(|task| task.state == "running") { 0 } else { tasks.len() };
    }
    assert!(begun < FILES, "all {FILES} tasks have begun");
    let lies = format!(
        "SELECT worker_id, sum(bytes) FROM forebay.blocks \
         WHERE job_id = '{job}' AND state IN ('sealed', 'assigned') GROUP BY worker_id"
    );
    let used = "SELECT worker_id, work_used FROM forebay.workers";
    // The other query's blocks are deleted when its client has gone.
    let lies = stage.bounded(async {
        loop {
            let found = by_worker(&session, &lies).await;
            if by_worker(&session, used).await == found {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let lies = lies.await;
    let limits = by_worker(&session, "SELECT worker_id, work_limit FROM forebay.workers").await;
    assert_eq!(
        limits,
        BTreeMap::from([(rooms.small.clone(), SMALL), (rooms.large.clone(), LARGE)])
    );
    assert!((SMALL / 4..=SMALL).contains(&lies[&rooms.small]), "{lies:?}");
    assert!((SMALL + 1..=LARGE).contains(&lies[&rooms.large]), "{lies:?}");
    batches.extend(stage.bounded(stream.try_collect::<Vec<_>>()).await.unwrap());
    assert!(text(&batches) == rooms.expected().await);
    let tasks = history::tasks(&session, &job).await;
    assert!(tasks.iter().all(|task| task.state == "finished"), "{tasks:#?}");
}

/// Its disk is full, and its task waits there for room, as long as nobody holds tasks back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_admission_a_small_worker_is_given_more_than_it_may_keep() {
    let rooms = Rooms::new().await;
    let (stage, session) = (&rooms.stage, rooms.session().await);
    run(&session, "SET forebay.admission = 'off'").await.unwrap();
    let mut stream = begin(&session, &query()).await;
    let mut batches = vec![stage.bounded(stream.try_next()).await.unwrap().unwrap()];
    let is_over = format!(
        "SELECT work_used > work_limit FROM forebay.workers WHERE worker_id = '{}'",
        rooms.small
    );
    let over = async {
        while run(&session, &is_over).await.unwrap() != ["true"] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    stage.bounded(over).await;
    batches.extend(stage.bounded(stream.try_collect::<Vec<_>>()).await.unwrap());
    assert!(text(&batches) == rooms.expected().await);
}
