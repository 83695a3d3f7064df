//! What is written and read of a hash shuffle, against DataFusion's own partitioning.

use std::fs;

use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray, Float64Array,
    Int64Array, LargeBinaryArray, ListArray, NullArray, StringArray, StringViewArray, StructArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{Field, Int8Type, Int32Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_plan::metrics::Time;
use datafusion::physical_plan::repartition::BatchPartitioner;
use datafusion::prelude::SessionConfig;
use forebay_engine::ErrorKind;
use forebay_testkit::random::Random;
use futures::TryStreamExt;
use tempfile::TempDir;

use super::*;
use crate::block::{BlockError, BlockReaderExec};
use crate::protocol::location::BlockLocation;

const JOB: &str = "job";

/// A worker, and what its tasks have of memory.
struct Setup {
    folder: TempDir,
    store: Arc<BlockStore>,
    pool: Arc<dyn MemoryPool>,
    context: Arc<TaskContext>,
}

impl Setup {
    fn new(pool: Arc<dyn MemoryPool>, bytes_max: u64) -> Self {
        let folder = TempDir::new().unwrap();
        let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), bytes_max);
        let store = Arc::new(store);
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool)).build_arc();
        let config = SessionConfig::new().with_extension(Arc::clone(&store));
        let context = TaskContext::default().with_session_config(config);
        let context = Arc::new(context.with_runtime(runtime.unwrap()));
        Self { folder, store, pool, context }
    }

    fn ample() -> Self {
        Self::new(Arc::new(UnboundedMemoryPool::default()), u64::MAX)
    }

    fn scarce(bytes: usize) -> Self {
        Self::new(Arc::new(GreedyMemoryPool::new(bytes)), u64::MAX)
    }

    async fn write(&self, dealt: &Dealt) -> Result<Vec<(FileId, Sealed)>> {
        let context = Arc::clone(&self.context);
        dealt.writer().write(&self.store, JOB, 1, 2, context, &|_, _| {}).await
    }

    async fn read(&self, dealt: &Dealt, blocks: Vec<BlockLocation>) -> Result<Vec<RecordBatch>> {
        let schema = dealt.batches[0].schema();
        let reader = BlockReaderExec::new(1, schema, vec![blocks]);
        reader.execute(0, Arc::clone(&self.context))?.try_collect().await
    }

    /// Writes everything, and compares what each partition then reads with what DataFusion gives it. The rounds.
    async fn check(&self, dealt: &Dealt) -> Vec<(FileId, Sealed)> {
        let rounds = self.write(dealt).await.unwrap();
        assert_eq!(self.pool.reserved(), 0, "it is written");
        let expected = dealt.expected();
        for (partition, expected) in (0..).zip(&expected) {
            let found = self.read(dealt, segments(&rounds, partition)).await.unwrap();
            assert_eq!(lines(&found), *expected, "partition {partition} of {dealt:?}");
        }
        let mut all = lines(&self.read(dealt, whole(&rounds)).await.unwrap());
        let mut expected: Vec<String> = expected.concat();
        all.sort();
        expected.sort();
        assert_eq!(all, expected, "read whole");
        let bytes: u64 = rounds.iter().map(|(_, sealed)| sealed.bytes).sum();
        assert_eq!(self.store.bytes(), bytes);
        rounds
    }

    fn files(&self) -> usize {
        let blocks = self.folder.path().join(JOB).join("1/blocks");
        fs::read_dir(blocks).map_or(0, Iterator::count)
    }
}

/// Rows that are dealt out.
struct Dealt {
    batches: Vec<RecordBatch>,
    keys: Vec<String>,
    partitions: u32,
    round_bytes: u64,
}

impl fmt::Debug for Dealt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<_> = self.batches.iter().map(RecordBatch::num_rows).collect();
        write!(f, "{rows:?} rows by {:?}, rounds of {}", self.keys, self.round_bytes)
    }
}

impl Dealt {
    fn new(batches: Vec<RecordBatch>, keys: &[&str], partitions: u32) -> Self {
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        Self { batches, keys, partitions, round_bytes: u64::MAX }
    }

    fn keys(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let schema = self.batches[0].schema();
        self.keys.iter().map(|key| col(key, &schema).unwrap()).collect()
    }

    fn writer(&self) -> HashWriterExec {
        let schema = self.batches[0].schema();
        let batches = self.batches.clone();
        let input = MemorySourceConfig::try_new_exec(&[batches], schema, None).unwrap();
        HashWriterExec::new(input, self.keys(), self.partitions, self.round_bytes)
    }

    /// The rows of each partition, as DataFusion's repartition deals them out.
    fn expected(&self) -> Vec<Vec<String>> {
        let partitions = self.partitions as usize;
        let mut all = vec![vec![]; partitions];
        let by_hash = BatchPartitioner::new_hash_partitioner(self.keys(), partitions, Time::new());
        let mut by_hash = by_hash.unwrap();
        for batch in &self.batches {
            let deal = |partition: usize, rows: RecordBatch| {
                all[partition].extend(lines(&[rows]));
                Ok(())
            };
            by_hash.partition(batch.clone(), deal).unwrap();
        }
        all
    }
}

fn location((id, sealed): &(FileId, Sealed)) -> BlockLocation {
    BlockLocation {
        job: JOB.to_owned(),
        id: *id,
        worker: "w".to_owned(),
        address: String::new(),
        bytes: sealed.bytes,
        rows: sealed.rows,
        checksum: sealed.checksum,
        segment_at: None,
    }
}

fn whole(rounds: &[(FileId, Sealed)]) -> Vec<BlockLocation> {
    rounds.iter().map(location).collect()
}

fn segments(rounds: &[(FileId, Sealed)], partition: u32) -> Vec<BlockLocation> {
    let segment = |round: &(FileId, Sealed)| {
        let segment = round.1.segments.as_ref().unwrap().of(partition)?;
        Some(BlockLocation {
            bytes: segment.bytes.into(),
            rows: segment.rows.into(),
            checksum: segment.checksum,
            segment_at: Some(segment.at.into()),
            ..location(round)
        })
    };
    rounds.iter().filter_map(segment).collect()
}

/// Rows as text.
fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::new().with_null("NULL");
    let mut lines = vec![];
    for batch in batches {
        let columns = batch.columns().iter();
        let columns: Vec<_> = columns
            .map(|column| ArrayFormatter::try_new(column.as_ref(), &options).unwrap())
            .collect();
        let row = |row: usize| {
            let cells = columns.iter().map(|column| format!("{}|", column.value(row)));
            cells.collect::<String>()
        };
        lines.extend((0..batch.num_rows()).map(row));
    }
    lines
}

/// Columns of many types, each of which has NULLs.
fn all_types(random: &mut Random, rows: usize) -> RecordBatch {
    let mut some = |most: u64| -> Vec<Option<u64>> {
        (0..rows).map(|_| (!random.chance(20)).then(|| random.below(most))).collect()
    };
    let text = |number: u64| format!("a text that is longer than a view: {number}");
    let floats = [f64::NAN, -f64::NAN, 0.0, -0.0, f64::INFINITY, 1.5];
    let float = |number: Option<u64>| number.map(|number| floats[number as usize]);
    let ints = |rows: Vec<Option<u64>>| -> Int64Array {
        rows.into_iter().map(|number| number.map(|number| number as i64 - 3)).collect()
    };
    let texts: Vec<Option<String>> = some(9).into_iter().map(|row| row.map(text)).collect();
    let lists = some(4)
        .into_iter()
        .map(|row| row.map(|length| (0..length as i32).map(|item| (item != 1).then_some(item))));
    let words: Vec<Option<String>> =
        some(3).into_iter().map(|row| row.map(|number| format!("w{number}"))).collect();
    let fixed: Vec<Option<Vec<u8>>> =
        some(5).into_iter().map(|row| row.map(|number| vec![number as u8; 3])).collect();
    let inner: ArrayRef = Arc::new(ints(some(6)));
    let outer: ArrayRef = Arc::new(StringArray::from(words.clone()));
    let fields = vec![
        (Arc::new(Field::new("a", inner.data_type().clone(), true)), inner),
        (Arc::new(Field::new("b", outer.data_type().clone(), true)), outer),
    ];
    let decimals: Decimal128Array =
        some(7).into_iter().map(|row| row.map(|number| i128::from(number) - 2)).collect();
    let words: Vec<Option<&str>> = words.iter().map(Option::as_deref).collect();
    let bools: BooleanArray = some(2).into_iter().map(|row| row.map(|n| n == 1)).collect();
    let bytes: Vec<_> = texts.iter().cloned().map(|row| row.map(String::into_bytes)).collect();
    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed.into_iter(), 3);
    let time = |row: Option<u64>| row.map(|number| number as i64 * 1_000_000_007);
    let times: TimestampMicrosecondArray = some(9).into_iter().map(time).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("int", Arc::new(ints(some(9)))),
        ("float", Arc::new(some(6).into_iter().map(float).collect::<Float64Array>())),
        ("text", Arc::new(StringArray::from(texts.clone()))),
        ("view", Arc::new(StringViewArray::from_iter(texts))),
        ("dictionary", Arc::new(words.into_iter().collect::<DictionaryArray<Int8Type>>())),
        ("decimal", Arc::new(decimals.with_precision_and_scale(20, 2).unwrap())),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ("struct", Arc::new(StructArray::from(fields))),
        ("null", Arc::new(NullArray::new(rows))),
        ("bool", Arc::new(bools)),
        ("binary", Arc::new(LargeBinaryArray::from_iter(bytes))),
        ("fixed", Arc::new(fixed.unwrap())),
        ("time", Arc::new(times.with_timezone("+05:45"))),
    ];
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

const KEYS: [&str; 9] =
    ["int", "float", "text", "view", "dictionary", "decimal", "list", "struct", "bool"];

fn numbers(rows: std::ops::Range<i64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(rows));
    RecordBatch::try_from_iter([("n", column)]).unwrap()
}

fn texts(rows: usize, bytes: usize, random: &mut Random) -> RecordBatch {
    let text = |row: usize, random: &mut Random| {
        let letters = random.bytes(bytes).into_iter().map(|byte| char::from(b'a' + byte % 26));
        format!("{row}:{}", letters.collect::<String>())
    };
    let column: Vec<String> = (0..rows).map(|row| text(row, random)).collect();
    let column: ArrayRef = Arc::new(StringArray::from(column));
    RecordBatch::try_from_iter([("text", column)]).unwrap()
}

/// Segments of all rounds.
fn segments_in(rounds: &[(FileId, Sealed)]) -> usize {
    rounds.iter().map(|(_, round)| round.segments.as_ref().unwrap().iter().count()).sum()
}

#[tokio::test]
async fn rows_of_all_types_are_where_datafusion_has_them() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let batches = (0..random.between(1, 6)).map(|_| {
            let (rows, from) = (random.below(60) as usize, random.below(10) as usize);
            let batch = all_types(&mut random, rows + from);
            // A part of a larger one, sometimes.
            batch.slice(from, rows)
        });
        let batches: Vec<_> = batches.collect();
        let keys: Vec<&str> =
            (0..random.between(1, 2)).map(|_| KEYS[random.index(KEYS.len())]).collect();
        let partitions = [1, 2, 3, 7, 64][random.index(5)];
        let round_bytes = [1, 1000, 10_000, u64::MAX][random.index(4)];
        let dealt = Dealt { round_bytes, ..Dealt::new(batches, &keys, partitions) };
        let setup = Setup::ample();
        let rounds = setup.check(&dealt).await;
        let batches = dealt.batches.iter().filter(|batch| batch.num_rows() > 0).count();
        // However many there were, they are small.
        assert_eq!((rounds.len(), setup.files()), (batches.min(1), batches.min(1)), "seed {seed}");
    }
}

/// Several tasks deal out by groups of partitions, and others merge what they have dealt out.
async fn merged(setup: &Setup, dealt: &Dealt, tasks: u32, groups: Groups) -> Vec<(FileId, Sealed)> {
    let schema = dealt.batches[0].schema();
    let mut rounds = vec![];
    for task in 0..tasks {
        let rows = dealt.batches.iter().skip(task as usize).step_by(tasks as usize);
        let rows: Vec<_> = rows.cloned().collect();
        let input = MemorySourceConfig::try_new_exec(&[rows], Arc::clone(&schema), None).unwrap();
        let writer = HashWriterExec::new(input, dealt.keys(), dealt.partitions, dealt.round_bytes);
        let writer = writer.in_groups(groups.of_unit(task));
        let context = Arc::clone(&setup.context);
        rounds.extend(writer.write(&setup.store, JOB, 1, task, context, &|_, _| {}).await.unwrap());
    }
    let mut all = vec![];
    for segment in 0..groups.segments(dealt.partitions) {
        let read = vec![segments(&rounds, segment)];
        let reader = Arc::new(BlockReaderExec::new(1, Arc::clone(&schema), read));
        let merge = HashWriterExec::new(reader, dealt.keys(), dealt.partitions, dealt.round_bytes);
        let context = Arc::clone(&setup.context);
        let of_group = merge.write(&setup.store, JOB, 2, segment, context, &|_, _| {}).await;
        for (id, sealed) in of_group.unwrap() {
            let group = segment / groups.slices;
            for found in sealed.segments.as_ref().unwrap().iter() {
                assert_eq!(found.partition / groups.width, group, "of another group");
            }
            all.push((id, sealed));
        }
    }
    all
}

#[tokio::test]
async fn rows_that_are_merged_are_where_datafusion_has_them() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let batches = (0..random.between(1, 9)).map(|_| {
            let rows = random.below(80) as usize;
            all_types(&mut random, rows)
        });
        let batches: Vec<_> = batches.collect();
        let keys: Vec<&str> =
            (0..random.between(1, 2)).map(|_| KEYS[random.index(KEYS.len())]).collect();
        let partitions = [4, 5, 7, 64, 300][random.index(5)];
        let round_bytes = [1, 1000, 10_000, u64::MAX][random.index(4)];
        let dealt = Dealt { round_bytes, ..Dealt::new(batches, &keys, partitions) };
        let width = random.between(2, u64::from(partitions)) as u32;
        let groups = Groups { width, slices: random.between(1, 3) as u32, slice: 0 };
        let setup = Setup::ample();
        let rounds = merged(&setup, &dealt, random.between(1, 4) as u32, groups).await;
        assert_eq!(setup.pool.reserved(), 0, "it is written");
        for (partition, mut expected) in (0..).zip(dealt.expected()) {
            let found = setup.read(&dealt, segments(&rounds, partition)).await.unwrap();
            let mut found = lines(&found);
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "seed {seed}, {partition} of {dealt:?}, {groups:?}");
        }
    }
}

/// Sixteen tasks and four hundred partitions: 6,400 segments, each to be read by itself.
#[tokio::test]
async fn what_is_merged_is_read_in_fewer_and_larger_pieces() {
    let batches: Vec<_> = (0..16).map(|at| numbers(at * 10_000..(at + 1) * 10_000)).collect();
    let dealt = Dealt::new(batches, &["n"], 400);
    let groups = Groups { width: 20, ..Groups::default() };
    let merged = merged(&Setup::ample(), &dealt, 16, groups).await;
    let of_partitions = segments_in(&merged);
    assert_eq!((merged.len(), of_partitions), (20, 400));
    let rows: u64 = merged.iter().map(|(_, sealed)| sealed.rows).sum();
    assert_eq!(rows, 160_000);
}

#[tokio::test]
async fn one_key_for_all_rows_is_one_segment_of_each_round() {
    let key: ArrayRef = Arc::new(Int64Array::from(vec![None::<i64>; 1000]));
    let batch = RecordBatch::try_from_iter_with_nullable([("n", key, true)]).unwrap();
    let dealt = Dealt { round_bytes: 1, ..Dealt::new(vec![batch; 3], &["n"], 16) };
    let rounds = Setup::ample().check(&dealt).await;
    assert_eq!((rounds.len(), segments_in(&rounds)), (1, 1));
}

#[tokio::test]
async fn rounds_with_large_segments_stay_and_small_ones_become_one() {
    let mut random = Random::new(11);
    let large: Vec<_> = (0..3).map(|_| texts(200, 5000, &mut random)).collect();
    let setup = Setup::ample();
    let dealt = Dealt { round_bytes: 1, ..Dealt::new(large, &["text"], 4) };
    let rounds = setup.check(&dealt).await;
    assert_eq!((rounds.len(), setup.files()), (3, 3));
    let small: Vec<_> = (0..30).map(|_| texts(20, 50, &mut random)).collect();
    let setup = Setup::ample();
    let dealt = Dealt { round_bytes: 1, ..Dealt::new(small, &["text"], 4) };
    let rounds = setup.check(&dealt).await;
    assert_eq!((rounds.len(), setup.files(), segments_in(&rounds)), (1, 1, 4));
    // Unless there is no room for them twice.
    let bytes = setup.store.bytes();
    let setup = Setup::new(Arc::new(UnboundedMemoryPool::default()), bytes + 30_000);
    let rounds = setup.check(&dealt).await;
    assert_eq!((rounds.len(), setup.files()), (30, 30));
}

#[tokio::test]
async fn ten_thousand_partitions_are_one_file_and_most_may_be_empty() {
    for rows in [30_000, 5] {
        let setup = Setup::ample();
        let dealt = Dealt::new(vec![numbers(0..rows), numbers(rows..rows + 7)], &["n"], 10_000);
        let rounds = setup.check(&dealt).await;
        assert_eq!((rounds.len(), setup.files()), (1, 1));
    }
}

#[tokio::test]
async fn no_rows_are_no_round() {
    let setup = Setup::ample();
    let rounds = setup.check(&Dealt::new(vec![numbers(0..0)], &["n"], 4)).await;
    assert_eq!((rounds.len(), setup.files()), (0, 0));
}

#[tokio::test]
async fn rows_of_some_megabytes_are_dealt_out_like_others() {
    let mut random = Random::new(7);
    let batch = texts(6, 3 << 20, &mut random);
    let dealt = Dealt { round_bytes: 4 << 20, ..Dealt::new(vec![batch], &["text"], 3) };
    let rounds = Setup::ample().check(&dealt).await;
    // Nobody waits for all of them: some are taken in at a time.
    assert!(rounds.len() > 1, "{}", rounds.len());
}

#[tokio::test]
async fn a_round_ends_when_the_pool_has_no_more() {
    let mut random = Random::new(3);
    let batches: Vec<_> = (0..40).map(|_| texts(100, 5000, &mut random)).collect();
    let dealt = Dealt::new(batches, &["text"], 4);
    let ample = Setup::ample().check(&dealt).await;
    assert_eq!(ample.len(), 1);
    // Of 20 MB.
    for (limit, least) in [(6 << 20, 2), (0, 4)] {
        let rounds = Setup::scarce(limit).check(&dealt).await;
        assert!((least..=6).contains(&rounds.len()), "{limit}: {} rounds", rounds.len());
    }
    let long: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(70 << 20)]));
    let long = RecordBatch::try_from_iter([("text", long)]).unwrap();
    let one_row = Dealt::new(vec![long], &["text"], 4);
    let error = Setup::scarce(1000).write(&one_row).await.unwrap_err();
    assert_eq!(ErrorKind::of(&error), ErrorKind::ResourceExhausted);
    assert!(error.to_string().contains("HashWriterExec: 70"), "{error}");
}

/// Keys of eight bits do not do for the values of all batches together.
#[tokio::test]
async fn dictionaries_that_cannot_be_one_stay_several() {
    let batch = |from: usize| {
        let words: Vec<String> = (from..from + 100).map(|word| format!("word {word}")).collect();
        let words = words.iter().map(|word| Some(word.as_str()));
        let column: ArrayRef = Arc::new(words.collect::<DictionaryArray<Int8Type>>());
        let list = ListArray::new(
            Arc::new(Field::new("item", column.data_type().clone(), true)),
            arrow::buffer::OffsetBuffer::from_lengths(vec![1; 100]),
            Arc::clone(&column),
            None,
        );
        RecordBatch::try_from_iter([("word", column), ("list", Arc::new(list) as ArrayRef)])
            .unwrap()
    };
    for partitions in [1, 2, 3] {
        let dealt = Dealt::new((0..5).map(|at| batch(at * 100)).collect(), &["word"], partitions);
        Setup::ample().check(&dealt).await;
    }
}

#[tokio::test]
async fn a_task_that_does_not_end_well_leaves_nothing() {
    let mut random = Random::new(5);
    let mut batches: Vec<_> = (0..4).map(|_| texts(100, 1000, &mut random)).collect();
    batches.push(texts(100, 6000, &mut random));
    let dealt = Dealt { round_bytes: 1, ..Dealt::new(batches, &["text"], 1) };
    let setup = Setup::new(Arc::new(UnboundedMemoryPool::default()), 500_000);
    let error = setup.write(&dealt).await.unwrap_err().to_string();
    for part in ["a task of a hash shuffle has no room", "of 500000 bytes", "raise --work-limit"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!((setup.store.bytes(), setup.files()), (0, 0), "there were some rounds before");
    // Nor one that is dropped.
    let setup = Setup::ample();
    {
        let mut write = std::pin::pin!(setup.write(&dealt));
        while setup.files() < 3 {
            assert!(futures::poll!(write.as_mut()).is_pending(), "it is over");
        }
    }
    assert_eq!((setup.store.bytes(), setup.files()), (0, 0));
}

#[tokio::test]
async fn a_damaged_segment_is_told_and_others_of_the_file_can_be_read() {
    let setup = Setup::ample();
    let dealt = Dealt::new(vec![numbers(0..10_000)], &["n"], 4);
    let rounds = setup.check(&dealt).await;
    let path = setup.folder.path().join(JOB).join("1/blocks/2-0.arrow");
    let bytes = fs::read(&path).unwrap();
    let damaged = rounds[0].1.segments.as_ref().unwrap().of(2).unwrap();
    let expected = dealt.expected();
    for at in [0, damaged.bytes / 2, damaged.bytes - 1] {
        let mut changed = bytes.clone();
        changed[(damaged.at + at) as usize] ^= 1;
        fs::write(&path, changed).unwrap();
        for partition in 0..4 {
            let read = setup.read(&dealt, segments(&rounds, partition)).await;
            if partition != 2 {
                assert_eq!(lines(&read.unwrap()), expected[partition as usize]);
                continue;
            }
            let error = read.unwrap_err();
            let lost = BlockError::find(&error).unwrap();
            assert_eq!((lost.id, lost.is_one_of_many), (rounds[0].0, false));
            assert!(lost.problem.contains("checksum"), "{error}");
        }
        let error = setup.read(&dealt, whole(&rounds)).await.unwrap_err();
        assert!(error.to_string().contains("checksum"), "{error}");
    }
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = setup.read(&dealt, segments(&rounds, 3)).await.unwrap_err().to_string();
    assert!(error.contains("are wanted"), "{error}");
    assert_eq!(lines(&setup.read(&dealt, segments(&rounds, 0)).await.unwrap()), expected[0]);
}
