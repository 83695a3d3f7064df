//! Merges of random runs, against a sort of all their rows by arrow.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BinaryArray, BinaryViewArray, DictionaryArray, Float64Array, Int64Array,
    RecordBatch, StringArray, StringViewArray,
};
use arrow::compute::{
    SortColumn, SortOptions, concat_batches, lexsort_to_indices, take_record_batch,
};
use arrow::datatypes::{Int32Type, Int64Type};
use datafusion::common::DataFusionError;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_expr::expressions::{CastExpr, col};
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use proptest::prelude::*;

use super::*;

const COLUMNS: [&str; 6] = ["text", "view", "bytes", "byte view", "word", "float"];
const FLOAT: usize = 5;
/// How many different values a column has.
const VALUES: u8 = 18;

/// Long ones that differ behind what a prefix has, short ones that a prefix fills with zeros, and no UTF-8.
fn bytes(value: u8) -> Vec<u8> {
    match value {
        0 => vec![],
        1 => vec![0],
        2 => vec![0; 16],
        3 => vec![0; 17],
        4 => vec![0xff; 16],
        5 => vec![0xff; 40],
        6..9 => [b"a text of sixteen".as_slice(), &[value]].concat(),
        // Shorter than a prefix, and than the half of one.
        9..12 => b"abcdefghij"[..usize::from(value) - 2].to_vec(),
        12..16 => b"abcdefghijklmno"[..usize::from(value)].to_vec(),
        _ => vec![b'a', value],
    }
}

fn text(value: u8) -> String {
    let letter = |byte: &u8| char::from(byte & 0x7f);
    bytes(value).iter().map(letter).collect()
}

fn float(value: u8) -> f64 {
    let nan = f64::from_bits(0xfff8_0000_0000_0001);
    [f64::NAN, nan, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY]
        .get(value as usize)
        .copied()
        .unwrap_or(value.into())
}

/// Rows by the values of their columns, with a number of their own.
fn batch(rows: &[(i64, [Option<u8>; 6])]) -> RecordBatch {
    let of = |at: usize| rows.iter().map(move |(_, values)| values[at]);
    let texts: StringArray = of(0).map(|value| value.map(text)).collect();
    let views: StringViewArray = of(1).map(|value| value.map(text)).collect();
    let binary: BinaryArray = of(2).map(|value| value.map(bytes)).collect();
    let binary_views: BinaryViewArray = of(3).map(|value| value.map(bytes)).collect();
    let words: Vec<_> = of(4).map(|value| value.map(text)).collect();
    let words: DictionaryArray<Int32Type> = words.iter().map(Option::as_deref).collect();
    let floats: Float64Array = of(5).map(|value| value.map(float)).collect();
    let numbers: Int64Array = rows.iter().map(|(number, _)| *number).collect();
    let columns: [ArrayRef; 7] = [
        Arc::new(texts),
        Arc::new(views),
        Arc::new(binary),
        Arc::new(binary_views),
        Arc::new(words),
        Arc::new(floats),
        Arc::new(numbers),
    ];
    let columns = COLUMNS.into_iter().chain(["number"]).zip(columns);
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, of)| (name, of, true))).unwrap()
}

/// By these columns, and what is then equal by its number.
fn sorted(rows: &RecordBatch, keys: &[(usize, SortOptions)]) -> RecordBatch {
    let last = [(COLUMNS.len(), SortOptions::default())];
    let column = |(at, options): &(usize, SortOptions)| SortColumn {
        values: Arc::clone(rows.column(*at)),
        options: Some(*options),
    };
    let columns: Vec<_> = keys.iter().chain(&last).map(column).collect();
    take_record_batch(rows, &lexsort_to_indices(&columns, None).unwrap()).unwrap()
}

fn numbers(batches: &[RecordBatch]) -> Vec<i64> {
    let of = |batch: &RecordBatch| batch.column(6).as_primitive::<Int64Type>().values().to_vec();
    batches.iter().flat_map(of).collect()
}

/// A merge of sorted partitions, in batches of so many rows.
fn merge(partitions: &[Vec<RecordBatch>], keys: &[(usize, SortOptions)]) -> Plan {
    let schema = batch(&[]).schema();
    let key = |(at, options): &(usize, SortOptions)| {
        PhysicalSortExpr::new(col(COLUMNS[*at], &schema).unwrap(), *options)
    };
    let order = LexOrdering::new(keys.iter().map(key)).unwrap();
    let input = MemorySourceConfig::try_new_exec(partitions, Arc::clone(&schema), None).unwrap();
    let merge = RunMergeExec::in_place_of(Arc::new(SortPreservingMergeExec::new(order, input)));
    assert!(merge.transformed);
    merge.data
}

fn run(merge: Plan, batch_size: usize, pool: Arc<dyn MemoryPool>) -> Result<Vec<RecordBatch>> {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?;
    let config = SessionConfig::new().with_batch_size(batch_size);
    let context = TaskContext::default().with_runtime(runtime).with_session_config(config);
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    threads.block_on(collect(merge, Arc::new(context)))
}

/// A column, whether it is descending, and whether NULLs are first.
fn keys() -> impl Strategy<Value = Vec<(usize, SortOptions)>> {
    let key = (0..COLUMNS.len(), any::<bool>(), any::<bool>());
    let key =
        key.prop_map(|(at, descending, nulls_first)| (at, SortOptions { descending, nulls_first }));
    let is_new = |keys: &[(usize, SortOptions)]| {
        keys.iter().enumerate().all(|(at, key)| keys[..at].iter().all(|other| other.0 != key.0))
    };
    let is_by_number = |keys: &[(usize, SortOptions)]| keys.len() == 1 && keys[0].0 == FLOAT;
    prop::collection::vec(key, 1..4).prop_filter("a column twice, or a number alone", move |keys| {
        is_new(keys) && !is_by_number(keys)
    })
}

proptest! {
    #[test]
    fn merges_give_what_a_sort_of_all_rows_gives(
        runs in prop::collection::vec(
            prop::collection::vec(prop::array::uniform6(prop::option::weighted(0.9, 0..VALUES)), 0..150),
            2..9,
        ),
        keys in keys(),
        rows_of_batch in 1..120_usize,
        batch_size in 1..50_usize,
    ) {
        let mut number = 0..;
        let mut partitions = vec![];
        for run in runs {
            let rows: Vec<_> = number.by_ref().zip(run).collect();
            let run = sorted(&batch(&rows), &keys);
            let starts = (0..run.num_rows()).step_by(rows_of_batch);
            let slice = |start| run.slice(start, rows_of_batch.min(run.num_rows() - start));
            // Between them are batches without rows.
            let batches = starts.flat_map(|start| [slice(start), run.slice(0, 0)]);
            partitions.push(batches.collect::<Vec<_>>());
        }
        let all = concat_batches(&batch(&[]).schema(), partitions.iter().flatten()).unwrap();
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let plan = merge(&partitions, &keys);
        let merged = run(Arc::clone(&plan), batch_size, Arc::clone(&pool)).unwrap();
        let expected = sorted(&all, &keys);
        prop_assert_eq!(numbers(&merged), numbers(std::slice::from_ref(&expected)));
        let found = concat_batches(&all.schema(), &merged).unwrap();
        for column in 0..COLUMNS.len() {
            let (found, expected) = (found.column(column), expected.column(column));
            let values = |of: &ArrayRef| match of.as_any_dictionary_opt() {
                Some(words) => arrow::compute::take(words.values(), words.keys(), None).unwrap(),
                None => Arc::clone(of),
            };
            prop_assert_eq!(&values(found), &values(expected));
        }
        let (last, full) = merged.split_last().map_or((None, &[][..]), |(last, full)| (Some(last), full));
        prop_assert!(full.iter().all(|batch| batch.num_rows() == batch_size));
        prop_assert!(last.is_none_or(|last| last.num_rows() <= batch_size));
        prop_assert_eq!(plan.metrics().and_then(|of| of.output_rows()), Some(all.num_rows()));
        prop_assert_eq!(pool.reserved(), 0);
    }
}

fn text_runs() -> Vec<Vec<RecordBatch>> {
    let rows: Vec<_> = (0..200).map(|number| (number, [Some(9); 6])).collect();
    vec![vec![batch(&rows)]; 3]
}

const BY_TEXT: [(usize, SortOptions); 1] =
    [(0, SortOptions { descending: false, nulls_first: true })];

#[test]
fn a_pool_without_room_is_an_error_that_names_the_merge() {
    let pool = Arc::new(GreedyMemoryPool::new(10_000));
    let error = run(merge(&text_runs(), &BY_TEXT), 10, pool).unwrap_err();
    assert_eq!(crate::ErrorKind::of(&error), crate::ErrorKind::ResourceExhausted);
    assert!(error.to_string().contains("SortPreservingMergeExec[0]"), "{error}");
}

/// A merge that keeps the first rows only is DataFusion's, and one by a number.
#[test]
fn other_plans_stay_as_they_are() {
    let all = merge(&text_runs(), &BY_TEXT);
    let input = Arc::clone(merge(&text_runs(), &BY_TEXT).children()[0]);
    let again = replace_children_if_necessary(Arc::clone(&all), vec![input]).unwrap();
    assert!(format!("{again:?}").starts_with("RunMergeExec"), "{again:?}");
    let first = all.downcast_ref::<SortPreservingMergeExec>().unwrap().with_fetch(Some(3)).unwrap();
    assert!(!RunMergeExec::in_place_of(first).transformed);
    let input = Arc::clone(all.children()[0]);
    let by_number = [PhysicalSortExpr::new_default(col("number", &input.schema()).unwrap())];
    let by_number = SortPreservingMergeExec::new(by_number.into(), Arc::clone(&input));
    assert!(!RunMergeExec::in_place_of(Arc::new(by_number)).transformed);
    assert!(!RunMergeExec::in_place_of(input).transformed);
}

/// Texts of 2.4 GB are more than a column has room for; the rows before them are not.
#[test]
fn of_texts_that_are_too_many_for_a_column_the_first_are_taken() {
    const ROWS: usize = 4096;
    let long = "x".repeat(600_000);
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", &long]));
    let batch = RecordBatch::try_from_iter([("text", texts)]).unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let memory = MemoryConsumer::new("test").register(&pool);
    let mut picked = Picked::new(batch.schema(), 1, 2 * ROWS);
    picked.hold(0, batch, &memory).unwrap();
    (0..2 * ROWS).for_each(|row| picked.pick(0, row / ROWS).unwrap());
    picked.end(0);
    picked.pick(0, 0).unwrap_err();
    let first = picked.take().unwrap().unwrap();
    assert_eq!(first.num_rows(), ROWS);
    assert!(first.column(0).as_string::<i32>().iter().all(|text| text == Some("a")));
    assert_eq!(picked.len(), ROWS, "the others are still there");
    assert!(pool.reserved() >= long.len());
}

/// An input that fails in its second batch, when rows of the first are out.
#[tokio::test]
async fn the_error_of_an_input_comes_behind_the_rows_before_it() {
    let rows = &text_runs()[0][0];
    let failed = DataFusionError::ResourcesExhausted("no more".to_owned());
    let input = |batches: Vec<Result<RecordBatch>>| -> SendableRecordBatchStream {
        let batches = futures::stream::iter(batches);
        Box::pin(RecordBatchStreamAdapter::new(rows.schema(), batches))
    };
    let inputs = vec![input(vec![Ok(rows.clone()), Err(failed)]), input(vec![Ok(rows.clone())])];
    let key = PhysicalSortExpr::new_default(col("text", &rows.schema()).unwrap());
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let merge = Merge {
        order: KeyOrder::try_new(&[key].into(), &rows.schema()).unwrap(),
        picked: Picked::new(rows.schema(), inputs.len(), 150),
        inputs,
        batch_size: 150,
        memory: MemoryConsumer::new("test").register(&pool),
        metrics: BaselineMetrics::new(&ExecutionPlanMetricsSet::new(), 0),
    };
    let found: Vec<_> = merge.into_batches().collect().await;
    let [Ok(first), Err(error)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(numbers(std::slice::from_ref(first)), (0..150).collect::<Vec<_>>());
    assert_eq!(crate::ErrorKind::of(error), crate::ErrorKind::ResourceExhausted);
    assert_eq!(pool.reserved(), 0);
}

/// Columns of other widths than those above, and keys that are computed.
#[test]
fn texts_of_all_kinds_are_keys_and_what_is_computed_is_counted() {
    use arrow::datatypes::DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
    let texts = StringArray::from(vec![None, Some(""), Some("b"), Some("ba"), Some("c")]);
    for kind in [Utf8, LargeUtf8, Utf8View, Binary, LargeBinary, BinaryView] {
        let column = arrow::compute::cast(&texts, &kind).unwrap();
        let batch = RecordBatch::try_from_iter_with_nullable([("text", column, true)]).unwrap();
        let column = col("text", &batch.schema()).unwrap();
        let computed = CastExpr::new(Arc::clone(&column), LargeUtf8, None);
        for (key, size) in [(column, 0), (Arc::new(computed) as Arc<dyn PhysicalExpr>, 1)] {
            let order = [PhysicalSortExpr::new_default(key)].into();
            let order = KeyOrder::try_new(&order, &batch.schema()).unwrap();
            assert!(matches!(order, KeyOrder::Texts { .. }), "{kind}");
            let keys = order.keys_of(&batch).unwrap();
            assert!(keys.size >= size && (size > 0 || keys.size == 0), "{kind}: {}", keys.size);
            let mut prefixes = vec![];
            keys.prefixes(0..batch.num_rows(), &mut prefixes);
            let of = |text: &str| text.bytes().fold(0, |all, byte| (all << 8) | u128::from(byte));
            assert_eq!(prefixes, [0, 0, of("b") << 120, of("ba") << 112, of("c") << 120], "{kind}");
            let before = (1..batch.num_rows()).map(|row| keys.compare(row - 1, &keys, row));
            assert!(before.into_iter().all(std::cmp::Ordering::is_lt), "{kind}");
        }
    }
}
