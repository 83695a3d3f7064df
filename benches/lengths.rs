//! Texts of very different lengths, in one run: the engine against sentence-transformers' `encode`
//! (which sorts by length too), without and with duplicates, and against itself with batches in
//! order of arrival.
//!
//! Lengths are log-normal, as those of reviews and web pages are. Both sides have the texts in
//! memory and the model loaded; rounds are interleaved, medians compared, and the sums of the first
//! coordinates must agree.
//!
//! `cargo bench --bench lengths` (needs the exporter's Python environment: `make setup`)

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark that cannot run should say why at once, and prints its result"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::Float64Type;
use datafusion::datasource::MemTable;
use forebay::prelude::*;
use forebay::{Catalog, Inventory};
use forebay_testkit::random::Random;

const PACKAGE: &str = ".forebay/models/all-minilm-l6-v2";
const SOURCE: &str = ".forebay/models/source/all-minilm-l6-v2";
const WORDS: &str = "sql-examples/data/wordnet.parquet";
const ROWS: usize = 1_500;
const ROUNDS: usize = 3;
/// Share of the rows that are copies of other rows.
const COPIES: f64 = 0.15;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run());
}

async fn run() {
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect())
        .build()
        .unwrap();
    forebay.register_model("minilm", PACKAGE).await.unwrap();
    let mut random = Random::new(42);
    let unique = texts(&forebay, &mut random).await;
    let copied = with_copies(&unique, &mut random);
    let mut peer = Peer::start();

    let grouped = "MAP {'determinism': 'deterministic'}";
    // 32 rows as they come, padded to the longest of them: what an operator without a window does.
    let arrival = "MAP {'max_batch_rows': '32', 'max_batch_tokens': '1000000', \
                   'batch_window_rows': '32'}";
    for (name, texts) in [("15% duplicates", &copied), ("no duplicates", &unique)] {
        table(&forebay, texts);
        peer.load(texts);
        let (mut ours, mut theirs) = (vec![], vec![]);
        for round in 0..=ROUNDS {
            let (seconds, sum) = embed(&forebay, grouped).await;
            let (peer_seconds, peer_sum) = peer.encode();
            assert!((sum - peer_sum).abs() < 1e-2, "{sum} {peer_sum}");
            if round > 0 {
                ours.push(seconds);
                theirs.push(peer_seconds);
            }
        }
        let [ours, theirs] = [ours, theirs].map(|mut times| median(&mut times));
        println!(
            "{{\"name\": \"log-normal lengths, {name}\", \"rows\": {ROWS}, \"seconds\": {ours:.3}, \
             \"seconds_sentence_transformers\": {theirs:.3}, \"speed_up\": {:.3}}}",
            theirs / ours
        );
    }
    // The table has the texts without duplicates now.
    let (mut grouped_times, mut arrival_times) = (vec![], vec![]);
    for _ in 0..2 {
        grouped_times.push(embed(&forebay, grouped).await.0);
        arrival_times.push(embed(&forebay, arrival).await.0);
    }
    let (ours, unsorted) = (median(&mut grouped_times), median(&mut arrival_times));
    println!(
        "{{\"name\": \"log-normal lengths, batches by length against order of arrival\", \
         \"seconds\": {ours:.3}, \"seconds_arrival_order\": {unsorted:.3}, \"speed_up\": {:.3}}}",
        unsorted / ours
    );
}

/// Seconds, and the sum of the first coordinates.
async fn embed(forebay: &ForebayContext, options: &str) -> (f64, f64) {
    let sql = format!(
        "SELECT sum(CAST(embedding[1] AS DOUBLE)) \
         FROM ml_predict(TABLE texts, MODEL minilm, DESCRIPTOR(text), {options})"
    );
    let start = Instant::now();
    let batches = forebay.sql(&sql).await.unwrap().collect().await.unwrap();
    let seconds = start.elapsed().as_secs_f64();
    (seconds, batches[0].column(0).as_primitive::<Float64Type>().value(0))
}

fn table(forebay: &ForebayContext, texts: &[String]) {
    let column: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    let batch = RecordBatch::try_from_iter([("text", column)]).unwrap();
    let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap();
    forebay.session().deregister_table("texts").unwrap();
    forebay.session().register_table("texts", Arc::new(table)).unwrap();
}

/// Texts of real words whose number is log-normal, at most what the model reads.
async fn texts(forebay: &ForebayContext, random: &mut Random) -> Vec<String> {
    let sql = format!("SELECT gloss FROM '{WORDS}'");
    let batches = forebay.sql(&sql).await.unwrap().collect().await.unwrap();
    let mut words: Vec<String> = vec![];
    for batch in &batches {
        let column = arrow::compute::cast(batch.column(0), &arrow::datatypes::DataType::Utf8);
        let glosses = column.unwrap();
        let glosses = glosses.as_string::<i32>().iter().flatten();
        words.extend(glosses.flat_map(|gloss| gloss.split_whitespace()).map(str::to_owned));
    }
    let text = |_| {
        let count = (3.0 + normal(random)).exp().clamp(1.0, 200.0) as usize;
        let start = random.index(words.len() - count);
        words[start..start + count].join(" ")
    };
    (0..ROWS).map(text).collect()
}

/// The same texts, of which a share is replaced by copies of others.
fn with_copies(texts: &[String], random: &mut Random) -> Vec<String> {
    let mut texts = texts.to_vec();
    for at in 0..texts.len() {
        if random.fraction() < COPIES {
            texts[at] = texts[random.index(texts.len())].clone();
        }
    }
    texts
}

/// sentence-transformers in a process of its own, with the model loaded.
struct Peer {
    _process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl Peer {
    fn start() -> Self {
        let mut process = Command::new("tools/python")
            .args(["benches/encode.py", SOURCE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let folder = tempfile::tempdir().unwrap();
        Self { _process: process, input, output: BufReader::new(output), folder }
    }

    fn load(&mut self, texts: &[String]) {
        let path = self.folder.path().join("texts.txt");
        std::fs::write(&path, texts.join("\n")).unwrap();
        self.ask(&format!("load {}", path.display()));
    }

    fn encode(&mut self) -> (f64, f64) {
        let answer = self.ask("encode");
        let mut numbers = answer.split_whitespace().map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "benches/encode.py has ended");
        answer
    }
}

/// A number of the normal distribution, by Box and Muller's method.
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.fraction()).ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * random.fraction()).cos()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
