//! Joins and sorts in one process that have less memory than they work on, in SQL.

use std::path::Path;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::{SessionConfig, SessionContext};
use forebay::{Catalog, ForebayContext};
use forebay_engine::ErrorKind;
use tempfile::TempDir;

/// Of some 6 MB per table.
const ROWS: usize = 20_000;

/// Less than one side of a join takes.
const LIMIT: usize = 4 << 20;

const COLUMNS: &str = "
    value AS id,
    CASE WHEN value % 11 = 3 THEN NULL ELSE value * 7919 % 30011 END AS key,
    concat(md5(CAST(value AS VARCHAR)), repeat('.', 260)) AS text";

async fn tables(folder: &Path) -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(3);
    let plain = SessionContext::new_with_config(config);
    for (table, from) in [("a", 0), ("b", 7_000)] {
        let copy = format!(
            "COPY (SELECT {COLUMNS} FROM range({from}, {})) TO '{}/{table}.parquet' STORED AS PARQUET",
            from + ROWS,
            folder.display()
        );
        plain.sql(&copy).await.unwrap().collect().await.unwrap();
    }
    for create in create(folder) {
        plain.sql(&create).await.unwrap();
    }
    plain
}

fn create(folder: &Path) -> [String; 2] {
    ["a", "b"].map(|table| {
        let file = folder.join(table).with_extension("parquet");
        format!("CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{}'", file.display())
    })
}

async fn session(folder: &Path, limit: usize) -> ForebayContext {
    let config = SessionConfig::new()
        .with_target_partitions(3)
        .with_batch_size(512)
        .with_sort_spill_reservation_bytes(8 << 10);
    let session = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_config(config)
        .with_memory_limit(limit)
        .build()
        .unwrap();
    for create in create(folder) {
        session.sql(&create).await.unwrap().collect().await.unwrap();
    }
    session
}

async fn rows(session: &ForebayContext, query: &str) -> Vec<RecordBatch> {
    let frame = session.sql(query).await.unwrap();
    frame.collect().await.unwrap_or_else(|error| panic!("{query}: {error}"))
}

/// As text, sorted unless their order counts.
fn text(rows: &[RecordBatch], in_order: bool) -> Vec<String> {
    let table = pretty_format_batches(rows).unwrap().to_string();
    let mut lines: Vec<String> = table.lines().skip(3).map(str::to_owned).collect();
    if !in_order {
        lines.sort();
    }
    lines
}

/// Both texts are needed behind the join, so both go through it.
const BOTH: &str = "a.id, b.id AS other, concat(substr(a.text, 1 + CAST(b.id % 30 AS INT), 3), \
                    substr(b.text, 1 + CAST(a.id % 30 AS INT), 3)) AS both";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_with_joins_give_the_rows_that_they_give_with_much_memory() {
    let folder = TempDir::new().unwrap();
    let plain = tables(folder.path()).await;
    let session = session(folder.path(), LIMIT).await;
    let semi = "SELECT id, left(text, 9) FROM a WHERE NOT EXISTS (SELECT 1 FROM b \
                WHERE a.key = b.key AND left(a.text, 2) < right(left(b.text, 12), 4))";
    let not_in = "SELECT id, left(text, 9) FROM a WHERE key NOT IN (SELECT key FROM b WHERE id % 11 <> 3 AND id % 3 = 0)";
    for (query, in_order) in [
        (format!("SELECT {BOTH} FROM a JOIN b ON a.key = b.key"), false),
        (format!("SELECT {BOTH} FROM a LEFT JOIN b ON a.key = b.key AND a.id < b.id"), false),
        (format!("SELECT {BOTH} FROM a FULL JOIN b ON a.key = b.key AND a.id < b.id"), false),
        (format!("SELECT {BOTH} FROM a JOIN b ON a.key = b.key ORDER BY b.id, a.id"), true),
        (
            format!(
                "SELECT {BOTH} FROM a RIGHT JOIN b ON a.key = b.key ORDER BY b.id, a.id LIMIT 50"
            ),
            true,
        ),
        (semi.to_owned(), false),
        (not_in.to_owned(), false),
        // Three tables, one of which is not written to disk twice over.
        (
            "SELECT a.id, count(*), max(substr(c.text, 1 + CAST(b.id % 30 AS INT), 3)) FROM a JOIN b ON a.key = b.key \
             JOIN a AS c ON c.key = b.key + 1 GROUP BY a.id"
                .to_owned(),
            false,
        ),
    ] {
        let found = text(&rows(&session, &query).await, in_order);
        let expected = plain.sql(&query).await.unwrap().collect().await.unwrap();
        let expected = text(&expected, in_order);
        assert!(expected.len() > 40, "{query}: {} rows", expected.len());
        assert_eq!(found.len(), expected.len(), "{query}");
        assert!(found == expected, "{query}: other rows");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_say_what_went_to_disk_and_else_nothing_of_it() {
    let folder = TempDir::new().unwrap();
    tables(folder.path()).await;
    let query = format!("SELECT {BOTH} FROM a JOIN b ON a.key = b.key");
    let analyzed = format!("EXPLAIN ANALYZE {query}");
    let scarce = session(folder.path(), LIMIT).await;
    let found = text(&rows(&scarce, &analyzed).await, true).join("\n");
    let join = found.lines().find(|line| line.contains("HashJoinExec")).unwrap();
    for metric in ["spill_count=", "spilled_bytes=", "spilled_rows=", "build_mem_used="] {
        assert!(join.contains(metric), "{metric}: {found}");
    }
    let ample = session(folder.path(), 1 << 30).await;
    let found = text(&rows(&ample, &analyzed).await, true).join("\n");
    let join = found.lines().find(|line| line.contains("HashJoinExec")).unwrap();
    assert!(join.contains("build_mem_used=") && !join.contains("spill"), "{found}");
    // To whoever looks at a plan it is DataFusion's join.
    let plan = text(&rows(&scarce, &format!("EXPLAIN {query}")).await, true).join("\n");
    assert!(plan.contains("HashJoinExec: mode=CollectLeft, join_type=Inner"), "{plan}");
    assert!(!plan.contains("Spilling") && !plan.contains("SideExec"), "{plan}");
}

/// Pages of these texts have the rows of many batches.
const TEXTS: &str = "SELECT left(md5(CAST(value AS VARCHAR)), 10) AS key, md5(CAST(value + 1 AS VARCHAR)) AS text, \
                     CASE WHEN value % 7 = 0 THEN NULL ELSE arrow_cast(md5(CAST(value + 2 AS VARCHAR)), 'Binary') END AS bytes, \
                     value AS id FROM range(50000)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sorts_count_the_texts_that_they_hold_and_no_pages() {
    let folder = TempDir::new().unwrap();
    let plain = tables(folder.path()).await;
    let file = folder.path().join("texts.parquet");
    let copy = format!("COPY ({TEXTS}) TO '{}' STORED AS PARQUET", file.display());
    plain.sql(&copy).await.unwrap().collect().await.unwrap();
    let create =
        format!("CREATE EXTERNAL TABLE texts STORED AS PARQUET LOCATION '{}'", file.display());
    plain.sql(&create).await.unwrap();
    // All rows take 5 MB.
    for limit in [LIMIT, AMPLE] {
        let session = session(folder.path(), limit).await;
        session.sql(&create).await.unwrap();
        // A key that is computed is computed of what it was planned for.
        for keys in ["key", "text DESC, key", "bytes DESC NULLS LAST, id", "upper(text), key"] {
            let query = format!("SELECT key, text, bytes, id FROM texts ORDER BY {keys}");
            let found = text(&rows(&session, &query).await, true);
            let expected = plain.sql(&query).await.unwrap().collect().await.unwrap();
            assert!(found == text(&expected, true), "{keys}: {} rows", found.len());
            let analyzed = text(&rows(&session, &format!("EXPLAIN ANALYZE {query}")).await, true);
            let sort = analyzed.iter().find(|line| line.contains("SortExec: expr")).unwrap();
            assert_eq!(sort.contains("spill_count=0"), limit == AMPLE, "{keys}: {sort}");
        }
    }
}

/// For those texts, twice and with their keys.
const AMPLE: usize = 64 << 20;

/// Ten rows, beside which the other side of a join is held.
const FEW: &str = "(SELECT id AS few_id, text AS few_text FROM b WHERE id % 2000 = 0) AS few";

/// Joins hold the side that they are given.
async fn without_reordering(session: &SessionContext) {
    let set = "SET datafusion.optimizer.join_reordering = false";
    session.sql(set).await.unwrap().collect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_without_keys_finish_where_their_side_can_be_read_again() {
    let folder = TempDir::new().unwrap();
    let plain = tables(folder.path()).await;
    let session = session(folder.path(), LIMIT).await;
    without_reordering(&plain).await;
    without_reordering(session.session()).await;
    // Nothing above them that holds memory: what is on disk of them leaves none.
    for query in [
        format!("SELECT a.id, few_id FROM a JOIN {FEW} ON a.text < few_text"),
        format!("SELECT a.id, few_id FROM a RIGHT JOIN {FEW} ON a.text > few_text"),
    ] {
        let found = text(&rows(&session, &query).await, false);
        let expected = plain.sql(&query).await.unwrap().collect().await.unwrap();
        assert!(found == text(&expected, false), "{query}: {} rows", found.len());
        let analyzed = text(&rows(&session, &format!("EXPLAIN ANALYZE {query}")).await, true);
        let joins = |line: &&String| line.contains("Join") && line.contains("spill_count=");
        let join = analyzed.iter().find(joins).unwrap_or_else(|| panic!("{analyzed:#?}"));
        assert!(!join.contains("spill_count=0,"), "{join}");
    }
}

/// Where it would run an operator twice that cannot be, or give rows once for each partition, a join ends with an
/// error that says what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_go_to_disk_names_the_operator_its_size_and_the_option() {
    let folder = TempDir::new().unwrap();
    tables(folder.path()).await;
    let session = session(folder.path(), LIMIT).await;
    without_reordering(session.session()).await;
    for (query, join) in [
        (
            "SELECT max(a.text || b.text) FROM a LEFT JOIN b ON a.text < b.text".to_owned(),
            "NestedLoopJoinExec",
        ),
        (
            "SELECT max(a.text || b.text) FROM a FULL JOIN b ON a.text < b.text".to_owned(),
            "NestedLoopJoinExec",
        ),
        (format!("SELECT max(a.text || few_text) FROM a CROSS JOIN {FEW}"), "CrossJoinExec"),
    ] {
        let error = session.sql(&query).await.unwrap().collect().await.unwrap_err();
        assert_eq!(ErrorKind::of(&error), ErrorKind::ResourceExhausted, "{query}: {error}");
        let error = error.strip_backtrace();
        for part in
            [join, "MiB of the side that it holds", "limit of 4.0 MiB", "raise --memory-limit"]
        {
            assert!(error.contains(part), "{query}: {part}: {error}");
        }
    }
}
