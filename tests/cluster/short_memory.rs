//! Operators that work on ten times the memory of their worker: what does not fit is on its disk meanwhile.

use std::path::{Path, PathBuf};

use datafusion::prelude::{SessionConfig, SessionContext};
use forebay::ForebayContext;

use super::setup::{CPU, Stage, run, text};

/// What a worker may hold.
const LIMIT: &str = "16MB";

/// Rows of a table, each of which has a text of 4,000 letters: ten times the limit.
const ROWS: usize = 40_000;

/// One in ten rows has the same key, and as many have none; the others have a key each.
const COLUMNS: &str = "
    value AS id,
    CASE WHEN value % 10 = 0 THEN -1 WHEN value % 10 = 5 THEN NULL ELSE value * 7919 % 80000 END AS key,
    concat(md5(CAST(value AS VARCHAR)), repeat('.', 3968)) AS text";

/// A worker with little memory, and two tables, in batches of half a megabyte.
struct Scarce {
    stage: Stage,
    tables: PathBuf,
    plain: SessionContext,
}

impl Scarce {
    async fn new() -> Self {
        let stage = Stage::new(60, &[&[CPU, &["--memory-limit", LIMIT]].concat()]);
        let tables = stage.folder().join("large");
        let session = stage.local().await;
        for (table, from) in [("a", 0), ("b", ROWS / 2)] {
            for file in 0..2 {
                let (from, to) = (from + file * ROWS / 2, from + (file + 1) * ROWS / 2);
                // Of table b hardly a row has the key that many of table a have.
                let columns = match table {
                    "a" => COLUMNS.to_owned(),
                    _ => COLUMNS.replace("value % 10 = 0 THEN", "value % 8000 = 0 THEN"),
                };
                let copy = format!(
                    "COPY (SELECT {columns} FROM range({from}, {to})) TO '{}/{table}/{file}.parquet' \
                     STORED AS PARQUET",
                    tables.display()
                );
                run(&session, &copy).await.unwrap();
            }
        }
        let config = SessionConfig::new().with_target_partitions(2);
        let plain = SessionContext::new_with_config(config);
        for create in create(&tables) {
            plain.sql(&create).await.unwrap();
        }
        Self { stage, tables, plain }
    }

    async fn session(&self) -> ForebayContext {
        let session = self.stage.session().await;
        for statement in create(&self.tables) {
            run(&session, &statement).await.unwrap();
        }
        let options = [
            "datafusion.execution.target_partitions = 2",
            "datafusion.execution.batch_size = 128",
            "datafusion.execution.sort_spill_reservation_bytes = 1000000",
            "forebay.block_bytes = 1000000",
            "forebay.edge_budget = 4000000",
        ];
        for option in options {
            run(&session, &format!("SET {option}")).await.unwrap();
        }
        session
    }

    /// The rows are those of DataFusion with all the memory that there is.
    async fn compare(&self, session: &ForebayContext, query: &str) {
        let rows = self.stage.run(session, query).await;
        let rows =
            rows.unwrap_or_else(|error| panic!("{query}: {error}\n{}", self.stage.cluster.said()));
        let expected = text(&self.plain.sql(query).await.unwrap().collect().await.unwrap());
        assert_eq!(rows.len(), expected.len(), "{query}");
        assert!(rows == expected, "{query}: other rows");
    }
}

fn create(tables: &Path) -> [String; 2] {
    ["a", "b"].map(|table| {
        let place = tables.join(table);
        format!("CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{}/'", place.display())
    })
}

/// The texts of both sides are needed behind the join.
const BOTH: &str = "a.id, b.id, concat(substr(a.text, 1 + CAST(b.id % 30 AS INT), 3), \
                    substr(b.text, 1 + CAST(a.id % 30 AS INT), 3))";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_of_ten_times_the_memory_finish() {
    let scarce = Scarce::new().await;
    let session = scarce.session().await;
    scarce.compare(&session, &format!("SELECT {BOTH} FROM a JOIN b ON a.key = b.key")).await;
    scarce.compare(&session, &format!("SELECT {BOTH} FROM a FULL JOIN b ON a.key = b.key")).await;
    let unmet = "SELECT id, left(text, 9) FROM a WHERE NOT EXISTS
      (SELECT 1 FROM b WHERE a.key = b.key AND left(a.text, 2) < right(left(b.text, 12), 4))";
    scarce.compare(&session, unmet).await;
    // A side that each task reads whole.
    for bound in
        ["hash_join_single_partition_threshold", "hash_join_single_partition_threshold_rows"]
    {
        run(&session, &format!("SET datafusion.optimizer.{bound} = 1000000000")).await.unwrap();
    }
    scarce.compare(&session, &format!("SELECT {BOTH} FROM a JOIN b ON a.key = b.key")).await;
    scarce.compare(&session, &format!("SELECT {BOTH} FROM a LEFT JOIN b ON a.key = b.key")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_dealt_out_finishes_too() {
    let scarce = Scarce::new().await;
    let session = scarce.session().await;
    scarce.compare(&session, &format!("SELECT {BOTH} FROM a JOIN b ON a.key = b.key")).await;
    let groups = "SELECT left(text, 20), count(*), max(id) FROM a GROUP BY text";
    scarce.compare(&session, groups).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregations_and_sorts_of_ten_times_the_memory_finish() {
    let scarce = Scarce::new().await;
    let session = scarce.session().await;
    let groups = "SELECT left(text, 20), c, m FROM
      (SELECT text, count(*) AS c, max(id) AS m FROM (SELECT * FROM a UNION ALL SELECT * FROM b) GROUP BY text)";
    scarce.compare(&session, groups).await;
    let sorted = "SELECT id, row_number() OVER (ORDER BY text) FROM a";
    scarce.compare(&session, sorted).await;
}
