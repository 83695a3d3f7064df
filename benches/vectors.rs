//! The distance functions over `FLOAT[384]`, against DataFusion's own of the same names and against
//! a plain loop over the same numbers in single precision, all on one thread and in turns.
//!
//! `cargo bench --bench vectors`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark that cannot run should say why at once, and prints its result"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch};
use arrow::datatypes::{DataType, Field};
use datafusion::datasource::MemTable;
use datafusion::logical_expr::ScalarUDF;
use datafusion::prelude::{SessionConfig, SessionContext};

const DIMENSIONS: usize = 384;
const BATCH_ROWS: usize = 8192;
const BATCHES: usize = 5;
const ROUNDS: usize = 9;

/// A function, and the same as a loop over two vectors.
type Function = (&'static str, fn(&[f32], &[f32]) -> f32);

const FUNCTIONS: [Function; 3] = [
    ("cosine_distance", |a, b| {
        let [ab, aa, bb] = sums(a, b, |a, b| [a * b, a * a, b * b]);
        1.0 - ab / (aa.sqrt() * bb.sqrt())
    }),
    ("inner_product", |a, b| sums(a, b, |a, b| [a * b])[0]),
    ("array_distance", |a, b| sums(a, b, |a, b| [(a - b) * (a - b)])[0].sqrt()),
];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let values = [0, 1].map(numbers);
    let [ours, theirs] = [true, false].map(|ours| context(ours, &values));
    for (name, one) in FUNCTIONS {
        for (of, second) in
            [("two columns", "b"), ("a column and a constant", "(SELECT c FROM one)")]
        {
            let sql = format!("SELECT sum({name}(a, {second})) FROM t");
            let mut times: [Vec<f64>; 3] = Default::default();
            for round in 0..=ROUNDS {
                let found = [
                    timed(|| runtime.block_on(query(&ours, &sql))),
                    timed(|| runtime.block_on(query(&theirs, &sql))),
                    timed(|| plain_loop(&values, second != "b", one)),
                ];
                // All must have computed the same.
                let (expected, _) = found[1];
                for (at, (sum, seconds)) in found.into_iter().enumerate() {
                    assert!((sum / expected - 1.0).abs() < 1e-3, "{sql}: {sum} {expected}");
                    if round > 0 {
                        times[at].push(seconds);
                    }
                }
            }
            let [ours, theirs, plain] = times.map(median);
            println!(
                "{{\"name\": \"{name} of {of}, FLOAT[{DIMENSIONS}]\", \"rows\": {}, \
                 \"seconds\": {ours:.4}, \"seconds_datafusion\": {theirs:.4}, \
                 \"seconds_plain_loop\": {plain:.4}, \"speed_up\": {:.1}, \"ratio_to_loop\": {:.2}}}",
                BATCHES * BATCH_ROWS,
                theirs / ours,
                ours / plain
            );
        }
    }
}

/// A column's batches of vectors, one after the other.
fn numbers(column: usize) -> Vec<Vec<f32>> {
    let number = |at: usize| ((at * 2 + column) as f32 * 0.37).sin() + 0.1;
    let batch = |batch: usize| {
        let start = batch * BATCH_ROWS * DIMENSIONS;
        (start..start + BATCH_ROWS * DIMENSIONS).map(number).collect()
    };
    (0..BATCHES).map(batch).collect()
}

/// `t (a, b)`, and `one (c)` with the first vector of `b`.
fn context(ours: bool, values: &[Vec<Vec<f32>>; 2]) -> SessionContext {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    if ours {
        for function in forebay_udf::feature::functions() {
            context.register_udf(ScalarUDF::clone(&function));
        }
    }
    let vectors = |values: &[f32]| -> ArrayRef {
        let item = Arc::new(Field::new_list_field(DataType::Float32, true));
        let values = Arc::new(Float32Array::from(values.to_vec()));
        Arc::new(FixedSizeListArray::new(item, DIMENSIONS as i32, values, None))
    };
    let [a, b] = values;
    let batch = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        RecordBatch::try_from_iter([("a", vectors(a)), ("b", vectors(b))]).unwrap()
    };
    let batches: Vec<_> = a.iter().zip(b).map(batch).collect();
    let table = MemTable::try_new(batches[0].schema(), vec![batches]).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    let one = RecordBatch::try_from_iter([("c", vectors(&b[0][..DIMENSIONS]))]).unwrap();
    context.register_batch("one", one).unwrap();
    context
}

async fn query(context: &SessionContext, sql: &str) -> f64 {
    use arrow::array::AsArray;
    let batches = context.sql(sql).await.unwrap().collect().await.unwrap();
    batches[0].column(0).as_primitive::<arrow::datatypes::Float64Type>().value(0)
}

fn plain_loop(values: &[Vec<Vec<f32>>; 2], constant: bool, one: fn(&[f32], &[f32]) -> f32) -> f64 {
    let [a, b] = values;
    let mut sum = 0.0;
    for (a, b_batch) in a.iter().zip(b) {
        for (row, a) in a.chunks_exact(DIMENSIONS).enumerate() {
            let start = row * DIMENSIONS;
            let b =
                if constant { &b[0][..DIMENSIONS] } else { &b_batch[start..start + DIMENSIONS] };
            sum += f64::from(one(black_box(a), b));
        }
    }
    sum
}

/// Sums of `N` terms over pairs of numbers, sixteen at a time.
fn sums<const N: usize>(a: &[f32], b: &[f32], terms: impl Fn(f32, f32) -> [f32; N]) -> [f32; N] {
    const LANES: usize = 16;
    let mut lanes = [[0.0; LANES]; N];
    let (a, b) = (a.as_chunks::<LANES>().0, b.as_chunks::<LANES>().0);
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            for (sum, term) in terms(a[lane], b[lane]).into_iter().enumerate() {
                lanes[sum][lane] += term;
            }
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

fn timed(compute: impl FnOnce() -> f64) -> (f64, f64) {
    let start = Instant::now();
    let value = compute();
    (value, start.elapsed().as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
