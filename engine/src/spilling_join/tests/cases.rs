//! The rows of random joins.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Decimal128Array, DictionaryArray, Float64Array, Int64Array, ListArray,
    RecordBatch, StringArray, StringViewArray, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema, SchemaRef};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{JoinSide, JoinType, NullEquality, Result};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning, collect};
use datafusion::prelude::SessionConfig;
use proptest::prelude::*;

use crate::SpillingJoinExec;

pub(super) const ALL: [JoinType; 10] = [
    JoinType::Inner,
    JoinType::Left,
    JoinType::Right,
    JoinType::Full,
    JoinType::LeftSemi,
    JoinType::RightSemi,
    JoinType::LeftAnti,
    JoinType::RightAnti,
    JoinType::LeftMark,
    JoinType::RightMark,
];

/// Rows of a batch, and of a side's batches that are read at once.
const BATCH: usize = 200;

/// Another number for each number.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A join to be.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) seed: u64,
    pub(super) kind: JoinType,
    pub(super) mode: PartitionMode,
    pub(super) nulls_are_equal: bool,
    pub(super) with_filter: bool,
    /// Of the key: see [`keys`].
    pub(super) key: usize,
    /// The percentage of the build side's rows that have one key.
    pub(super) skew: u64,
    pub(super) build_rows: usize,
    pub(super) probe_rows: usize,
    pub(super) projected: bool,
    pub(super) limit: usize,
}

const KEYS: usize = 8;

/// The values of keys, as an array of one of all kinds.
fn keys(kind: usize, values: &[Option<i64>]) -> ArrayRef {
    let text = |value: &Option<i64>| value.map(|value| format!("a key of a row: {value}"));
    match kind {
        0 => Arc::new(Int64Array::from(values.to_vec())),
        1 => Arc::new(values.iter().map(text).collect::<StringArray>()),
        2 => Arc::new(values.iter().map(text).collect::<StringViewArray>()),
        3 => {
            let texts: Vec<Option<String>> = values.iter().map(text).collect();
            let texts = texts.iter().map(|text| text.as_deref());
            Arc::new(texts.collect::<DictionaryArray<Int32Type>>())
        }
        4 => {
            let value = |value: &Option<i64>| {
                value.map(|value| match value % 5 {
                    0 => f64::NAN,
                    1 => -0.0,
                    _ => value as f64 / 3.0,
                })
            };
            Arc::new(values.iter().map(value).collect::<Float64Array>())
        }
        5 => {
            let value = |value: &Option<i64>| value.map(|value| i128::from(value) << 70);
            let decimals = values.iter().map(value).collect::<Decimal128Array>();
            Arc::new(decimals.with_precision_and_scale(38, 3).unwrap())
        }
        6 => {
            let whole = NullBuffer::from_iter(values.iter().map(Option::is_some));
            let fields = vec![
                Arc::new(Field::new("n", DataType::Int64, true)),
                Arc::new(Field::new("s", DataType::Utf8, true)),
            ];
            let columns = vec![keys(0, values), keys(1, values)];
            Arc::new(StructArray::new(fields.into(), columns, Some(whole)))
        }
        _ => {
            let whole = NullBuffer::from_iter(values.iter().map(Option::is_some));
            let offsets = OffsetBuffer::from_lengths(values.iter().map(|_| 1));
            let field = Arc::new(Field::new_list_field(DataType::Int64, true));
            Arc::new(ListArray::new(field, offsets, keys(0, values), Some(whole)))
        }
    }
}

/// A key, a second key, a number of the row, and some text.
fn side(case: &Case, rows: usize, seed: u64, skew: u64) -> Vec<RecordBatch> {
    let value = |row: u64| match mix(seed ^ row << 8) % 100 {
        at if at < skew => Some(3),
        at if at % 10 == 9 => None,
        _ => Some((mix(seed ^ row) % 1500) as i64),
    };
    let batches = (0..rows).step_by(BATCH).map(|from| {
        let rows = from as u64..rows.min(from + BATCH) as u64;
        let values: Vec<Option<i64>> = rows.clone().map(value).collect();
        let second: ArrayRef =
            Arc::new(values.iter().map(|key| key.map(|key| key % 2)).collect::<Int64Array>());
        let numbers: ArrayRef =
            Arc::new(Int64Array::from_iter_values(rows.clone().map(|r| r as i64)));
        let text = |row| format!("{:x} is what else there is about row {row}", mix(row));
        let texts: ArrayRef = Arc::new(rows.map(text).map(Some).collect::<StringArray>());
        RecordBatch::try_from_iter_with_nullable([
            ("key", keys(case.key, &values), true),
            ("second", second, true),
            ("number", numbers, false),
            ("text", texts, false),
        ])
        .unwrap()
    });
    batches.collect()
}

/// So many partitions of batches.
fn scan(batches: Vec<RecordBatch>, partitions: usize) -> Arc<dyn ExecutionPlan> {
    let schema = batches[0].schema();
    let mut dealt = vec![vec![]; partitions];
    for (at, batch) in batches.into_iter().enumerate() {
        dealt[at % partitions].push(batch);
    }
    MemorySourceConfig::try_new_exec(&dealt, schema, None).unwrap()
}

fn by_hash(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let keys: Vec<Arc<dyn PhysicalExpr>> =
        vec![Arc::new(Column::new("key", 0)), Arc::new(Column::new("second", 1))];
    Arc::new(RepartitionExec::try_new(plan, Partitioning::Hash(keys, 3)).unwrap())
}

/// `build.number % 4096 < probe.number`, or something of this kind.
fn filter() -> JoinFilter {
    let number = |name: &str| Field::new(name, DataType::Int64, false);
    let schema = Schema::new(vec![number("build"), number("probe")]);
    let column = |name, at| Arc::new(Column::new(name, at)) as Arc<dyn PhysicalExpr>;
    let less = BinaryExpr::new(column("build", 0), Operator::Lt, column("probe", 1));
    let indices = vec![
        ColumnIndex { index: 2, side: JoinSide::Left },
        ColumnIndex { index: 2, side: JoinSide::Right },
    ];
    JoinFilter::new(Arc::new(less), indices, Arc::new(schema))
}

pub(super) fn join(case: &Case) -> HashJoinExec {
    let build = side(case, case.build_rows, case.seed, case.skew);
    let probe = side(case, case.probe_rows, case.seed ^ 77, 1);
    let (build, probe) = match case.mode {
        PartitionMode::Partitioned => (by_hash(scan(build, 2)), by_hash(scan(probe, 2))),
        _ => (scan(build, 1), scan(probe, 3)),
    };
    over(case, build, probe)
}

pub(super) fn over(
    case: &Case,
    build: Arc<dyn ExecutionPlan>,
    probe: Arc<dyn ExecutionPlan>,
) -> HashJoinExec {
    let key = |name, at| {
        let column = || Arc::new(Column::new(name, at)) as Arc<dyn PhysicalExpr>;
        (column(), column())
    };
    let nulls = match case.nulls_are_equal {
        true => NullEquality::NullEqualsNull,
        false => NullEquality::NullEqualsNothing,
    };
    let columns = HashJoinExec::try_new(
        Arc::clone(&build),
        Arc::clone(&probe),
        vec![key("key", 0)],
        None,
        &case.kind,
        None,
        case.mode,
        nulls,
        false,
    );
    let columns = columns.unwrap().schema().fields().len();
    let projection = case.projected.then(|| vec![columns - 1, 0, 2]);
    HashJoinExec::try_new(
        build,
        probe,
        vec![key("key", 0), key("second", 1)],
        case.with_filter.then(filter),
        &case.kind,
        projection,
        case.mode,
        nulls,
        false,
    )
    .unwrap()
}

pub(super) fn context(pool: Arc<dyn MemoryPool>) -> Arc<TaskContext> {
    let config = SessionConfig::new().with_batch_size(BATCH);
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().unwrap();
    Arc::new(TaskContext::default().with_session_config(config).with_runtime(runtime))
}

/// All rows, as bytes, sorted.
pub(super) fn sorted(batches: &[RecordBatch], schema: &SchemaRef) -> Vec<Vec<u8>> {
    let fields = schema.fields().iter().map(|field| SortField::new(field.data_type().clone()));
    let converter = RowConverter::new(fields.collect()).unwrap();
    let rows = batches.iter().flat_map(|batch| {
        let rows = converter.convert_columns(batch.columns()).unwrap();
        rows.iter().map(|row| row.data().to_vec()).collect::<Vec<_>>()
    });
    let mut rows: Vec<Vec<u8>> = rows.collect();
    rows.sort();
    rows
}

pub(super) fn measured(plan: &dyn ExecutionPlan, name: &str) -> usize {
    let metrics = plan.metrics().unwrap();
    let found = match name {
        "output_rows" => metrics.output_rows(),
        "spill_count" => metrics.spill_count(),
        "spilled_rows" => metrics.spilled_rows(),
        "spilled_bytes" => metrics.spilled_bytes(),
        _ => metrics.sum_by_name(name).map(|value| value.as_usize()),
    };
    found.unwrap_or(0)
}

/// The rows of DataFusion's join, and of ours with little memory, and the join.
async fn compare(case: &Case) -> Result<Arc<dyn ExecutionPlan>> {
    let plain: Arc<dyn ExecutionPlan> = Arc::new(join(case));
    let unbounded = context(Arc::new(UnboundedMemoryPool::default()));
    let expected = collect(Arc::clone(&plain), unbounded).await?;
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(case.limit));
    let ours: Arc<dyn ExecutionPlan> = Arc::new(SpillingJoinExec::try_new(&join(case))?);
    let found = collect(Arc::clone(&ours), context(Arc::clone(&pool))).await?;
    assert_eq!(ours.schema(), plain.schema());
    for batch in &found {
        assert_eq!(batch.schema(), plain.schema(), "{case:?}");
    }
    let (found, expected) = (sorted(&found, &plain.schema()), sorted(&expected, &plain.schema()));
    assert_eq!(found.len(), expected.len(), "{case:?}");
    assert!(found == expected, "{case:?}: as many rows, but others");
    assert_eq!(measured(ours.as_ref(), "output_rows"), expected.len(), "{case:?}");
    Ok(ours)
}

/// `NOT IN` by one key, with NULLs on either side, or none, or no row that it is not in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_in_knows_of_all_nulls() {
    let case = Case { mode: PartitionMode::CollectLeft, ..usual(JoinType::LeftAnti) };
    let without_nulls = |batches: Vec<RecordBatch>| {
        let whole = |batch: &RecordBatch| {
            let is_whole = arrow::compute::is_not_null(batch.column(0)).unwrap();
            arrow::compute::filter_record_batch(batch, &is_whole).unwrap()
        };
        batches.iter().map(whole).collect::<Vec<_>>()
    };
    let build = side(&case, case.build_rows, 1, 0);
    let probe = side(&case, 300, 2, 0);
    let few = without_nulls(probe.clone());
    let one_null = [few.clone(), vec![probe[0].slice(0, 60)]].concat();
    let none = vec![probe[0].slice(0, 0)];
    let mut counts = vec![];
    for probe in [few, one_null, none] {
        let join = || {
            let column = || Arc::new(Column::new("key", 0)) as Arc<dyn PhysicalExpr>;
            HashJoinExec::try_new(
                scan(build.clone(), 1),
                scan(probe.clone(), 3),
                vec![(column(), column())],
                None,
                &JoinType::LeftAnti,
                None,
                PartitionMode::CollectLeft,
                NullEquality::NullEqualsNothing,
                true,
            )
            .unwrap()
        };
        let unbounded = context(Arc::new(UnboundedMemoryPool::default()));
        let expected = collect(Arc::new(join()), unbounded).await.unwrap();
        let ours: Arc<dyn ExecutionPlan> = Arc::new(SpillingJoinExec::try_new(&join()).unwrap());
        let pool = Arc::new(GreedyMemoryPool::new(case.limit));
        let found = collect(Arc::clone(&ours), context(pool)).await.unwrap();
        let expected = sorted(&expected, &ours.schema());
        assert!(sorted(&found, &ours.schema()) == expected);
        assert!(measured(ours.as_ref(), "spill_count") > 0);
        counts.push(expected.len());
    }
    assert!(counts[0] > 2000 && counts[0] < 4000, "{counts:?}");
    assert_eq!(counts[1..], [0, 4000]);
}

fn usual(kind: JoinType) -> Case {
    Case {
        seed: 1,
        kind,
        mode: PartitionMode::Partitioned,
        nulls_are_equal: false,
        with_filter: false,
        key: 0,
        skew: 0,
        build_rows: 4000,
        probe_rows: 2000,
        projected: false,
        limit: 128 << 10,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_goes_to_disk_and_gives_the_same_rows() {
    for kind in ALL {
        for mode in [PartitionMode::Partitioned, PartitionMode::CollectLeft] {
            for with_filter in [false, true] {
                let case = Case { mode, with_filter, ..usual(kind) };
                let ours = compare(&case).await.unwrap();
                assert!(measured(ours.as_ref(), "spill_count") > 0, "{case:?}");
                assert!(measured(ours.as_ref(), "spilled_rows") >= 6000, "{case:?}");
                assert!(measured(ours.as_ref(), "spilled_bytes") > 300_000, "{case:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_are_parted_again() {
    for kind in ALL {
        let case = Case {
            mode: PartitionMode::CollectLeft,
            build_rows: 12_000,
            limit: 48 << 10,
            ..usual(kind)
        };
        let ours = compare(&case).await.unwrap();
        let rows = measured(ours.as_ref(), "spilled_rows");
        assert!(rows > 2 * case.build_rows, "{case:?}: {rows} rows were written");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_one_key_are_joined_in_pieces() {
    for kind in ALL {
        for mode in [PartitionMode::Partitioned, PartitionMode::CollectLeft] {
            for with_filter in [false, true] {
                let projected = with_filter;
                let case = Case { mode, with_filter, projected, skew: 100, ..usual(kind) };
                let ours = compare(&case).await.unwrap();
                assert!(measured(ours.as_ref(), "spill_count") > 0, "{case:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_all_types_meet_their_like() {
    for key in 0..KEYS {
        for nulls_are_equal in [false, true] {
            let case = Case { key, nulls_are_equal, probe_rows: 700, ..usual(JoinType::Full) };
            let ours = compare(&case).await.unwrap();
            assert!(measured(ours.as_ref(), "spill_count") > 0, "{case:?}");
        }
    }
}

#[tokio::test]
async fn what_fits_is_the_planned_join_alone() {
    let case = Case { limit: 64 << 20, ..usual(JoinType::Full) };
    let ours = compare(&case).await.unwrap();
    assert_eq!(measured(ours.as_ref(), "spill_count"), 0);
    assert_eq!(measured(ours.as_ref(), "build_input_rows"), case.build_rows);
    assert!(ours.is::<HashJoinExec>(), "it passes for one");
}

fn cases() -> impl Strategy<Value = Case> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let sizes = (0..KEYS, 0..4_u64, 1..5000_usize, 1..1500_usize, 24..300_usize);
    (any::<u64>(), 0..ALL.len(), flags, sizes).prop_map(|(seed, kind, flags, sizes)| {
        let (collects, nulls_are_equal, with_filter, projected) = flags;
        let (key, skew, build_rows, probe_rows, limit) = sizes;
        let mode = match collects {
            true => PartitionMode::CollectLeft,
            false => PartitionMode::Partitioned,
        };
        // NULLs that are equal are rows of one key; too many of them on both sides are too many pairs.
        let probe_rows = if nulls_are_equal { probe_rows.min(500) } else { probe_rows };
        Case {
            seed,
            kind: ALL[kind],
            mode,
            nulls_are_equal,
            with_filter,
            key,
            skew: [0, 0, 60, 97][skew as usize],
            build_rows,
            probe_rows,
            projected,
            limit: limit << 10,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn random_joins_give_the_rows_of_datafusion_s(case in cases()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let compared = runtime.block_on(compare(&case));
        prop_assert!(compared.is_ok(), "{case:?}: {}", compared.unwrap_err());
    }
}

/// A probe side whose numbers rise, as it says.
fn in_order(batches: Vec<RecordBatch>) -> Arc<dyn ExecutionPlan> {
    let schema = batches[0].schema();
    let by = |name: &str| {
        let at = schema.index_of(name).unwrap();
        PhysicalSortExpr::new_default(Arc::new(Column::new(name, at)))
    };
    let orders = vec![LexOrdering::new([by("number")]).unwrap()];
    let source = MemorySourceConfig::try_new(&[batches], schema, None).unwrap();
    let source = source.try_with_sort_information(orders).unwrap();
    datafusion::datasource::source::DataSourceExec::from_data_source(source)
}

#[tokio::test]
async fn an_order_that_is_claimed_is_kept() {
    for kind in [JoinType::Inner, JoinType::Right, JoinType::RightSemi, JoinType::RightAnti] {
        for skew in [0, 100] {
            let case = Case { skew, mode: PartitionMode::CollectLeft, ..usual(kind) };
            let build = side(&case, 9000, 1, skew);
            let probe = side(&case, case.probe_rows, 2, 1);
            let join = || over(&case, scan(build.clone(), 1), in_order(probe.clone()));
            let ours: Arc<dyn ExecutionPlan> =
                Arc::new(SpillingJoinExec::try_new(&join()).unwrap());
            assert!(ours.properties().output_ordering().is_some(), "{kind} claims none");
            let config = SessionConfig::new().with_batch_size(BATCH);
            let pool = Arc::new(GreedyMemoryPool::new(case.limit));
            let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().unwrap();
            let context =
                Arc::new(TaskContext::default().with_session_config(config).with_runtime(runtime));
            let found = collect(Arc::clone(&ours), context).await.unwrap();
            assert!(measured(ours.as_ref(), "spill_count") > 0, "{kind}");
            let at = ours.schema().fields().len() - 2;
            let numbers = found
                .iter()
                .flat_map(|batch| batch.column(at).as_primitive::<Int64Type>().values().to_vec());
            let numbers: Vec<i64> = numbers.collect();
            assert!(numbers.is_sorted(), "{kind}");
            let unbounded = self::context(Arc::new(UnboundedMemoryPool::default()));
            let expected = collect(Arc::new(join()), unbounded).await.unwrap();
            assert!(
                sorted(&found, &ours.schema()) == sorted(&expected, &ours.schema()),
                "{kind}: other rows"
            );
        }
    }
}
