//! Plans with joins and sorts, cut.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use ballista_core::config::BallistaConfig;
use datafusion::config::ExtensionOptions;
use datafusion::datasource::MemTable;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};
use datafusion::prelude::{SessionConfig, SessionContext};
use forebay_engine::WriteExec;
use forebay_engine::write::Target;
use forebay_planner::ForebayConfig;

use super::{StagedPlan, cut};
use crate::graph::EdgeKind;

/// The stages of a query. Sides of joins are read whole by all tasks up to so many rows.
async fn staged(query: &str, read_whole_max: u64) -> StagedPlan {
    let session = session(read_whole_max);
    let plan = session.sql(query).await.unwrap().create_physical_plan().await.unwrap();
    planned(&session, plan)
}

/// The names of its stages.
async fn stages(query: &str, read_whole_max: u64) -> Vec<String> {
    names(staged(query, read_whole_max).await)
}

/// The names of the stages of a write of a query's rows.
async fn stages_of_write(query: &str, is_direct: bool) -> Vec<String> {
    let session = session(0);
    let copy = format!("COPY ({query}) TO 'never/' STORED AS PARQUET");
    let plan = session.sql(&copy).await.unwrap().create_physical_plan().await.unwrap();
    let sink = plan.downcast_ref::<DataSinkExec>().unwrap();
    let target = Arc::new(Target::of(sink, 1 << 20).unwrap());
    let rows = Arc::clone(sink.input().children()[0]);
    let write = WriteExec::new(rows, target).with_direct(is_direct);
    names(planned(&session, Arc::new(write)))
}

fn planned(session: &SessionContext, plan: Arc<dyn ExecutionPlan>) -> StagedPlan {
    let options = session.copied_config();
    cut(&"job".into(), plan, options.options()).unwrap()
}

fn names(staged: StagedPlan) -> Vec<String> {
    let stages = staged.spec.stages.into_iter();
    stages.map(|stage| stage.name).filter(|name| name.contains(" < ")).collect()
}

/// With tables `few (k, a)` and `many (k, b)`, of four partitions each.
fn session(read_whole_max: u64) -> SessionContext {
    const PARTITIONS: i64 = 4;
    let config = SessionConfig::new()
        .with_target_partitions(PARTITIONS as usize)
        .with_round_robin_repartition(false)
        .with_option_extension(BallistaConfig::default())
        .set_bool("datafusion.optimizer.enable_dynamic_filter_pushdown", false)
        .set_u64("datafusion.optimizer.hash_join_single_partition_threshold", read_whole_max * 8)
        .set_u64("datafusion.optimizer.hash_join_single_partition_threshold_rows", read_whole_max);
    let session = SessionContext::new_with_config(config);
    for (name, column, rows) in [("few", "a", 10), ("many", "b", 1000)] {
        let part = |at: i64| {
            let rows = at * rows..(at + 1) * rows;
            let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.clone()));
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(rows));
            vec![RecordBatch::try_from_iter([("k", keys), (column, numbers)]).unwrap()]
        };
        let parts: Vec<_> = (0..PARTITIONS).map(part).collect();
        let table = MemTable::try_new(parts[0][0].schema(), parts).unwrap();
        session.register_table(name, Arc::new(table)).unwrap();
    }
    session
}

const BY_HASH: [&str; 3] = [
    "HashWriter < DataSource",
    "HashWriter < DataSource",
    "BlockWriter < HashJoin < ShuffleReader < ShuffleReader",
];

#[tokio::test]
async fn what_is_dealt_out_is_written_in_blocks() {
    let found = staged("SELECT few.a, many.b FROM few JOIN many ON few.k = many.k", 0).await;
    let kinds: Vec<_> = found.spec.edges.iter().map(|edge| edge.kind).collect();
    assert_eq!(kinds[..2], [EdgeKind::Hash, EdgeKind::Hash]);
    assert_eq!(found.spec.stages[2].partitions, 4);
    let pipelined = |found: &StagedPlan| found.spec.edges.iter().any(|edge| edge.is_pipelined);
    assert!(!pipelined(&found), "sides are chosen when all is there");
    assert_eq!(names(found), BY_HASH);
    let found = staged("SELECT k, count(*) FROM many GROUP BY k", 0).await;
    assert!(pipelined(&found));
    let grouped = [
        "HashWriter < Aggregate < DataSource",
        "BlockWriter < Projection < Aggregate < ShuffleReader",
    ];
    assert_eq!(stages("SELECT k, count(*) FROM many GROUP BY k", 0).await, grouped);
}

/// The stages of a query, in which shuffles of so many segments are merged.
async fn merged_from(query: &str, segments: u64) -> StagedPlan {
    let session = session(0);
    let mut config = ForebayConfig::default();
    config.set("merge_segments_from", &segments.to_string()).unwrap();
    let options = session.copied_config().with_option_extension(config);
    let plan = session.sql(query).await.unwrap().create_physical_plan().await.unwrap();
    cut(&"job".into(), plan, options.options()).unwrap()
}

#[tokio::test]
async fn many_small_segments_are_merged_and_few_are_not() {
    let query = "SELECT few.a, many.b FROM few JOIN many ON few.k = many.k";
    // Four tasks, four partitions.
    let found = merged_from(query, 16).await;
    let edges = found.spec.edges.iter();
    let edges: Vec<_> = edges
        .map(|edge| (edge.from.0, edge.to.0, edge.is_pipelined, edge.lies_together))
        .take(4)
        .collect();
    let [map, reduce] = [(true, false), (false, true)];
    assert_eq!(
        edges,
        [
            (0, 1, map.0, map.1),
            (2, 3, map.0, map.1),
            (1, 4, reduce.0, reduce.1),
            (3, 4, reduce.0, reduce.1)
        ]
    );
    let partitions: Vec<_> = found.spec.stages.iter().map(|stage| stage.partitions).collect();
    assert_eq!(partitions[..5], [4, 2, 4, 2, 4]);
    assert_eq!(found.spec.limits.kept_bytes_max, u64::MAX, "what was merged may be merged again");
    let [deals, merges, joins] =
        [BY_HASH[0], "HashWriter < ShuffleReader", BY_HASH[2]].map(str::to_owned);
    assert_eq!(names(found), [deals.clone(), merges.clone(), deals, merges.clone(), joins]);
    assert_eq!(names(merged_from(query, 17).await), BY_HASH);

    // What is above other stages is expected to have what these have.
    let groups = format!("SELECT a % 7, count(*) FROM ({query}) GROUP BY a % 7");
    let found = names(merged_from(&groups, 16).await);
    assert_eq!(found.iter().filter(|name| **name == merges).count(), 3, "{found:?}");
    assert_eq!(names(merged_from(&groups, 17).await).len(), 4);
}

/// A table of 4 files, by the tasks that sort its rows.
#[tokio::test]
async fn sorts_of_large_files_have_a_task_for_what_it_can_sort_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(0);
    let table = folder.path().display().to_string();
    let rows = "SELECT k, b, repeat(CAST(b AS VARCHAR), 20) AS text FROM many";
    let copy = format!("COPY ({rows}) TO '{table}/' STORED AS CSV");
    session.sql(&copy).await.unwrap().collect().await.unwrap();
    let create = format!("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{table}/'");
    session.sql(&create).await.unwrap();
    session.sql("SET datafusion.optimizer.repartition_file_min_size = 1").await.unwrap();
    let sizes =
        std::fs::read_dir(&table).unwrap().map(|file| file.unwrap().metadata().unwrap().len());
    let bytes: u64 = sizes.sum();
    for (query, range_bytes, tasks) in [
        ("SELECT * FROM t ORDER BY b", bytes, 4..=4),
        ("SELECT * FROM t ORDER BY b", bytes.div_ceil(20), 10..=10),
        ("SELECT k + 1 AS k FROM t WHERE b > 3 ORDER BY k DESC", bytes.div_ceil(20), 10..=10),
        ("SELECT * FROM t ORDER BY b", 1, 1000..=1024),
        // One task merges all.
        ("SELECT * FROM t ORDER BY b", 0, 4..=4),
        ("SELECT * FROM t ORDER BY b LIMIT 5", 1, 4..=4),
        // Not of the rows of files.
        ("SELECT k, count(*) FROM t GROUP BY k ORDER BY k", 1, 4..=4),
    ] {
        let mut config = ForebayConfig::default();
        config.set("range_bytes", &range_bytes.to_string()).unwrap();
        let options = session.copied_config().with_option_extension(config);
        let plan = session.sql(query).await.unwrap().create_physical_plan().await.unwrap();
        let staged = cut(&"job".into(), plan, options.options()).unwrap();
        let found = staged.spec.stages[0].partitions;
        assert!(tasks.contains(&found), "{query} in ranges of {range_bytes}: {found}");
    }
}

#[tokio::test]
async fn sides_that_are_dealt_out_are_not_read_whole() {
    let query = "SELECT few.a, many.b FROM few JOIN many ON few.k = many.k";
    assert_eq!(stages(query, 0).await, BY_HASH);
    let read_whole =
        ["BlockWriter < DataSource", "BlockWriter < HashJoin < BlockReader < DataSource"];
    assert_eq!(stages(query, 1_000_000).await, read_whole);
}

/// Which rows of `few` there are, no task could say that has a part of `many`.
#[tokio::test]
async fn a_side_that_cannot_be_read_whole_is_dealt_out_where_it_is_made() {
    let query = "SELECT * FROM few WHERE EXISTS (SELECT * FROM many WHERE many.k = few.k)";
    for read_whole_max in [0, 1_000_000] {
        assert_eq!(stages(query, read_whole_max).await, BY_HASH);
    }
}

/// A run that is made again must have its rows where they were.
#[tokio::test]
async fn what_may_come_otherwise_is_not_merged_in_ranges() {
    const NUMBERED: &str =
        "(SELECT k, b, row_number() OVER (PARTITION BY k % 3 ORDER BY k % 2) AS n FROM many)";
    for (query, ranges) in [
        ("SELECT k, b FROM many ORDER BY b", true),
        ("SELECT k, string_agg(b::VARCHAR, ',') FROM many GROUP BY k ORDER BY k", true),
        ("SELECT k, b FROM many WHERE random() < 2 ORDER BY b", false),
        (format!("SELECT * FROM {NUMBERED} ORDER BY n").as_str(), false),
        (format!("SELECT k FROM {NUMBERED} WHERE n < 300 ORDER BY b").as_str(), false),
        ("SELECT b, sum(b) OVER (PARTITION BY k % 3) AS n FROM many ORDER BY b", false),
    ] {
        let edges = staged(query, 0).await.spec.edges;
        let kinds: Vec<_> = edges.iter().map(|edge| edge.kind).collect();
        assert!(kinds.len() > 1, "{query}: {kinds:?}");
        assert_eq!(kinds.contains(&EdgeKind::Ranges), ranges, "{query}: {kinds:?}");
    }
}

#[tokio::test]
async fn a_write_that_is_direct_is_part_of_the_tasks_that_make_its_rows() {
    let query = "SELECT k, a + 1 AS b FROM few";
    let direct = ["BlockWriter < Write < Projection < DataSource"];
    assert_eq!(stages_of_write(query, true).await, direct);
    let through_blocks =
        ["BlockWriter < Projection < DataSource", "BlockWriter < Write < BlockReader"];
    assert_eq!(stages_of_write(query, false).await, through_blocks);
}

/// Nobody knows how many rows such a task will read.
#[tokio::test]
async fn a_write_of_what_streams_in_is_not_part_of_its_tasks() {
    let query = "SELECT k FROM few UNION ALL SELECT max(k) FROM few";
    let through_blocks = stages_of_write(query, false).await;
    assert_eq!(stages_of_write(query, true).await, through_blocks);
    assert_eq!(through_blocks.last().unwrap(), "BlockWriter < Write < BlockReader");
}

/// Of what is numbered by several tasks, each knows how many rows there are before its own, and nothing of their
/// values.
#[tokio::test]
async fn windows_are_computed_in_ranges_if_they_follow_from_how_many_rows_there_are() {
    let filtered = "SELECT k, b, row_number() OVER (ORDER BY b) AS n FROM many WHERE k % 3 = 0";
    let outer = |functions: &str| format!("SELECT {functions} FROM ({filtered}) WHERE n % 2 = 0");
    for (query, ranges) in [
        ("SELECT k, row_number() OVER (ORDER BY b) FROM many", true),
        ("SELECT k, row_number() OVER (ORDER BY b) AS n FROM many ORDER BY n", true),
        ("SELECT rank() OVER (ORDER BY k), ntile(3) OVER (ORDER BY k) FROM many", true),
        (
            "SELECT percent_rank() OVER (ORDER BY k DESC), cume_dist() OVER (ORDER BY k DESC) FROM many",
            true,
        ),
        ("SELECT count(*) OVER (ORDER BY k) FROM many", true),
        ("SELECT count(*) OVER (ORDER BY k ROWS UNBOUNDED PRECEDING) FROM many", true),
        (
            "SELECT row_number() OVER (ORDER BY k), rank() OVER (ORDER BY k, b),
               count(*) OVER (ORDER BY k ROWS UNBOUNDED PRECEDING) FROM many",
            true,
        ),
        (outer("k, n").as_str(), true),
        // Equal rows may be in several ranges, or rows have been left out.
        ("SELECT rank() OVER (ORDER BY k), row_number() OVER (ORDER BY k, b) FROM many", false),
        ("SELECT count(*) OVER (ORDER BY k), rank() OVER (ORDER BY k, b) FROM many", false),
        (outer("row_number() OVER (ORDER BY b)").as_str(), false),
        // Values of other rows.
        ("SELECT sum(b) OVER (ORDER BY k) FROM many", false),
        ("SELECT rank() OVER (ORDER BY k), dense_rank() OVER (ORDER BY k) FROM many", false),
        ("SELECT lag(b) OVER (ORDER BY k) FROM many", false),
        ("SELECT first_value(b) OVER (ORDER BY k) FROM many", false),
        ("SELECT count(*) FILTER (WHERE b > 3) OVER (ORDER BY k) FROM many", false),
        ("SELECT count(DISTINCT b % 2) OVER (ORDER BY k) FROM many", false),
        ("SELECT count(nullif(b, 3)) OVER (ORDER BY k) FROM many", false),
        ("SELECT count(*) OVER (ORDER BY k ROWS 3 PRECEDING) FROM many", false),
        (
            "SELECT count(*) OVER (ORDER BY k ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING) FROM many",
            false,
        ),
        ("SELECT count(*) OVER (ORDER BY k GROUPS UNBOUNDED PRECEDING) FROM many", false),
        // Other orders, or not in the last stage, or not all rows.
        ("SELECT row_number() OVER (ORDER BY k), row_number() OVER (ORDER BY b) FROM many", false),
        ("SELECT b, row_number() OVER (ORDER BY k) FROM many ORDER BY b", false),
        ("SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY b) AS n FROM many)", false),
        ("SELECT row_number() OVER (ORDER BY b) FROM many LIMIT 3", false),
        ("SELECT row_number() OVER (ORDER BY random()) FROM many", false),
        ("SELECT row_number() OVER (PARTITION BY k % 3 ORDER BY b) FROM many", false),
    ] {
        let found = staged(query, 0).await;
        let kinds: Vec<_> = found.spec.edges.iter().map(|edge| edge.kind).collect();
        assert_eq!(kinds.contains(&EdgeKind::Ranges), ranges, "{query}: {kinds:?}");
        let last = names(found).pop().unwrap();
        let is_completed = last.contains("RangeWindow < BoundedWindowAgg");
        assert_eq!(is_completed, ranges, "{query}: {last}");
    }
}

/// The stages of a join whose rows are dealt out once more, by a column of these names, in so many partitions.
async fn dealt_again(columns: &str, key: &str, partitions: usize) -> Vec<String> {
    let session = session(0);
    let join = format!("SELECT {columns} FROM few JOIN many ON few.k = many.k");
    let join = session.sql(&join).await.unwrap().create_physical_plan().await.unwrap();
    let key = Arc::new(Column::new_with_schema(key, &join.schema()).unwrap());
    let dealt = RepartitionExec::try_new(join, Partitioning::Hash(vec![key], partitions)).unwrap();
    names(planned(&session, Arc::new(dealt)))
}

/// As Ballista's planner does it with both sides of a join, of which one is the rows of another join by the same keys.
#[tokio::test]
async fn rows_are_not_dealt_out_as_they_are_already() {
    let read = "BlockWriter < ShuffleReader";
    let joined = "HashWriter < HashJoin < ShuffleReader < ShuffleReader";
    let again = [BY_HASH[0], BY_HASH[1], joined, read];
    assert_eq!(dealt_again("few.k, b", "k", 4).await, BY_HASH);
    assert_eq!(dealt_again("many.k, b", "k", 4).await, BY_HASH, "the other side's key is equal");
    assert_eq!(dealt_again("few.k, b", "b", 4).await, again, "another column");
    assert_eq!(dealt_again("few.k, b", "k", 5).await, again, "another number of partitions");
    let session = session(0);
    let scan = session.sql("SELECT k, b FROM many").await.unwrap();
    let scan = scan.create_physical_plan().await.unwrap();
    let key = Arc::new(Column::new("k", 0));
    let dealt = RepartitionExec::try_new(scan, Partitioning::Hash(vec![key], 4)).unwrap();
    let stages = names(planned(&session, Arc::new(dealt)));
    assert_eq!(stages, [BY_HASH[0], read], "nobody has dealt it out before");
}
