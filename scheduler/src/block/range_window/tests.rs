//! Windows over ranges of sorted runs, against DataFusion's over all rows.

use arrow::array::Float64Array;
use arrow::compute::SortOptions;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::functions_window::rank::rank_udwf;
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::{WindowFrame, WindowFunctionDefinition};
use datafusion::physical_expr::expressions::{col, lit};
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::InputOrderMode;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, create_window_expr};
use datafusion::prelude::{SessionConfig, SessionContext};
use forebay_testkit::random::Random;
use futures::TryStreamExt;
use tempfile::TempDir;

use super::*;
use crate::block::open_block::Sealed;
use crate::block::{BlockSize, BlockStore, BlockWriterExec};
use crate::graph::{KeyRange, RowKey};
use crate::protocol::location::BlockLocation;

/// Rows of a run, and how they are told apart: few keys, so that many are equal.
const ROWS: usize = 300;
const OPTIONS: SortOptions = SortOptions { descending: true, nulls_first: false };

fn keys(random: &mut Random) -> RecordBatch {
    let odd = [None, Some(f64::NAN), Some(-0.0), Some(0.0), Some(f64::INFINITY)];
    let key = |_| match random.index(3) {
        0 => odd[random.index(odd.len())],
        1 => Some(1.0),
        _ => Some(random.index(40) as f64 / 4.0),
    };
    let keys: Float64Array = (0..ROWS).map(key).collect();
    RecordBatch::try_from_iter_with_nullable([("k", Arc::new(keys) as ArrayRef, true)]).unwrap()
}

fn order(schema: &Schema) -> LexOrdering {
    let key = PhysicalSortExpr::new(col("k", schema).unwrap(), OPTIONS);
    LexOrdering::new([key]).unwrap()
}

/// A run: its blocks, and the keys with which they begin.
async fn run(
    store: &Arc<BlockStore>,
    task: u32,
    rows: RecordBatch,
) -> Vec<(BlockLocation, RowKey)> {
    let (schema, order) = (rows.schema(), order(&rows.schema()));
    let input = MemorySourceConfig::try_new_exec(&[vec![rows]], schema, None).unwrap();
    let writer = BlockWriterExec::new(Arc::new(SortExec::new(order, input)), BlockSize::up_to(300));
    let writer = writer.with_keys(true);
    let written = writer.write(store, "job", 0, task, Arc::default(), &|_, _| {}).await.unwrap();
    let block = |(id, sealed): (_, Sealed)| {
        let location = BlockLocation {
            job: "job".to_owned(),
            id,
            worker: "w".to_owned(),
            bytes: sealed.bytes,
            rows: sealed.rows,
            checksum: sealed.checksum,
            ..BlockLocation::default()
        };
        (location, sealed.run.unwrap().key)
    };
    written.into_iter().map(block).collect()
}

/// What is to be completed, above a range of runs.
fn windows(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let schema = input.schema();
    let number = WindowFunctionDefinition::WindowUDF(row_number_udwf());
    let rank = WindowFunctionDefinition::WindowUDF(rank_udwf());
    let count = WindowFunctionDefinition::AggregateUDF(count_udaf());
    let functions = [&number, &rank, &count, &rank, &count, &number].into_iter().enumerate();
    let window = |(at, function): (usize, &WindowFunctionDefinition)| {
        let args = if *function == count { vec![lit(1_i64)] } else { vec![] };
        let (name, frame) = (format!("w{at}"), Arc::new(WindowFrame::new(Some(false))));
        let keys = order(&schema);
        let schema = Arc::clone(&schema);
        let none = (false, false, None);
        create_window_expr(function, name, &args, &[], &keys, frame, schema, none.0, none.1, none.2)
            .unwrap()
    };
    let mode = InputOrderMode::Sorted;
    let windows = functions.map(window).collect();
    Arc::new(BoundedWindowAggExec::try_new(windows, input, mode, false).unwrap())
}

const COLUMNS: [(usize, OverAll); 6] = [
    (1, OverAll::Counted),
    (2, OverAll::Counted),
    (3, OverAll::Counted),
    (4, OverAll::PercentRank),
    (5, OverAll::CumeDist),
    (6, OverAll::Ntile(7)),
];

fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let line = |batch: &RecordBatch, row: usize| {
        let values = batch.columns().iter();
        let values = values.map(|column| {
            ArrayFormatter::try_new(column, &options).unwrap().value(row).to_string()
        });
        values.collect::<Vec<_>>().join("|")
    };
    let lines = batches.iter().map(|batch| (0..batch.num_rows()).map(move |row| line(batch, row)));
    lines.flatten().collect()
}

#[tokio::test]
async fn ranges_together_are_windows_over_all_rows() {
    let mut random = Random::new(3);
    let folder = TempDir::new().unwrap();
    let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), u64::MAX);
    let store = Arc::new(store);
    let rows: Vec<_> = (0..3).map(|_| keys(&mut random)).collect();
    let schema = rows[0].schema();
    let mut runs = vec![];
    for (task, rows) in (0..).zip(&rows) {
        runs.push(run(&store, task, rows.clone()).await);
    }
    assert!(runs.iter().all(|run| run.len() > 5), "{runs:?}");
    let session = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    let all = rows.iter().map(RecordBatch::num_rows).sum::<usize>() as u64;
    session.register_batch("t", arrow::compute::concat_batches(&schema, &rows).unwrap()).unwrap();
    let query = "SELECT k, row_number() OVER w, rank() OVER w, count(*) OVER w, percent_rank() OVER w, \
                 cume_dist() OVER w, ntile(7) OVER w FROM t WINDOW w AS (ORDER BY k DESC NULLS LAST)";
    let expected = session.sql(query).await.unwrap();
    let types: Vec<_> =
        expected.schema().fields().iter().map(|field| field.data_type().clone()).collect();
    let expected = lines(&expected.collect().await.unwrap());

    // Keys of some blocks are borders, as the scheduler chooses them.
    let mut borders: Vec<_> = runs.iter().flatten().map(|(_, key)| key.clone()).collect();
    borders.sort();
    borders.dedup();
    borders.retain(|_| random.chance(60));
    let ends = borders.iter().cloned().map(Some).chain([None]);
    let (mut found, mut not_read) = (vec![], 0);
    for (from, to) in [None].into_iter().chain(borders.iter().cloned().map(Some)).zip(ends) {
        let mut before = 0;
        let read = runs.iter().map(|run| {
            let behind = |(_, key): &(_, RowKey)| from.as_ref().is_some_and(|from| key < from);
            let (left, read) = run.split_at(run.partition_point(behind).saturating_sub(1));
            before += left.iter().map(|(block, _)| block.rows).sum::<u64>();
            read.iter().map(|(block, _)| block.clone()).collect()
        });
        let reader = BlockReaderExec::new(0, Arc::clone(&schema), read.collect());
        let reader = reader.in_range(KeyRange { from: from.clone(), to }).merged_by(order(&schema));
        let merge = SortPreservingMergeExec::new(order(&schema), Arc::new(reader));
        let window = RangeWindowExec::try_new(windows(Arc::new(merge)), 0, COLUMNS.to_vec());
        let window = window.unwrap().with_rows(RowsOfRuns { before, all });
        let found_types: Vec<_> =
            window.schema().fields().iter().map(|field| field.data_type().clone()).collect();
        assert_eq!(found_types, types);
        let context = SessionConfig::new().with_extension(Arc::clone(&store));
        let context = SessionContext::new_with_config(context).task_ctx();
        let rows: Vec<_> = window.execute(0, context).unwrap().try_collect().await.unwrap();
        found.extend(lines(&rows));
        not_read += before;
    }
    assert!(borders.len() > 5 && not_read > 0, "{} borders", borders.len());
    assert_eq!(found, expected);
}

#[test]
fn tiles_are_as_equal_as_can_be() {
    for (all, tiles) in [(10, 4), (3, 7), (1, 1), (8, 4), (0, 3), (9, 0)] {
        let found: Vec<_> = (1..=all).map(|number| tile(number, tiles, all)).collect();
        assert!(found.is_sorted() && found.first().is_none_or(|first| *first == 1), "{found:?}");
        let sizes: Vec<_> = found.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{found:?}");
        let differ = sizes.iter().max().zip(sizes.iter().min());
        assert!(differ.is_none_or(|(max, min)| max - min <= 1), "{found:?}");
        assert_eq!(sizes.len() as u64, tiles.max(1).min(all), "{found:?}");
    }
    // More rows than there should be are no reason to panic.
    assert_eq!(tile(9, 3, 0), 9);
}

#[test]
fn what_is_no_number_is_refused() {
    let batch = keys(&mut Random::new(1));
    let (schema, rows) = (batch.schema(), vec![vec![batch]]);
    let input = MemorySourceConfig::try_new_exec(&rows, schema, None).unwrap();
    for at in [0, 7] {
        let columns = vec![(at, OverAll::Counted)];
        RangeWindowExec::try_new(Arc::<DataSourceExec>::clone(&input), 0, columns).unwrap_err();
    }
    let input = windows(input);
    RangeWindowExec::try_new(Arc::clone(&input), 0, vec![(3, OverAll::PercentRank)]).unwrap_err();
    let window = RangeWindowExec::try_new(input, 0, COLUMNS.to_vec()).unwrap();
    let error = window.execute(0, Arc::default()).err().unwrap().to_string();
    assert!(error.contains("nothing below it reads a range"), "{error}");
}
