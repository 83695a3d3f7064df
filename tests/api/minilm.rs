//! The demo's model with its real weights, against sentence-transformers.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Float32Type;
use forebay::prelude::*;
use forebay::{Catalog, Inventory};
use forebay_testkit::random::Random;

const PACKAGE: &str = ".forebay/models/all-minilm-l6-v2";
const SOURCE: &str = ".forebay/models/source/all-minilm-l6-v2";
const DIMENSIONS: usize = 384;
/// Largest difference of one component, in fp32.
const TOLERANCE: f32 = 1e-5;

async fn session(cpus: u32) -> ForebayContext {
    assert!(Path::new(PACKAGE).exists(), "{PACKAGE} is missing: run `make setup`");
    session_with(PACKAGE, cpus).await
}

async fn session_with(package: &str, cpus: u32) -> ForebayContext {
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(cpus))
        .build()
        .unwrap();
    forebay.register_model("minilm", package).await.unwrap();
    forebay
}

/// Embeddings in the order of the texts, through SQL's operators, in several partitions.
async fn embed(forebay: &ForebayContext, texts: &[String], options: &[(&str, &str)]) -> Vec<f32> {
    let batch = |from: usize, texts: &[String]| {
        let ids = (from..from + texts.len()).map(|id| id as i64).collect::<Int64Array>();
        let texts = StringArray::from_iter_values(texts);
        let columns: Vec<(&str, ArrayRef)> = vec![("id", Arc::new(ids)), ("text", Arc::new(texts))];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let half = texts.len() / 2;
    let batches = [batch(0, &texts[..half]), batch(half, &texts[half..])];
    let frame = forebay.session().read_batches(batches).unwrap();
    let frame = frame.ml_predict("minilm", &["text"], options).unwrap();
    let frame = frame.sort_by(vec![col("id")]).unwrap();
    let rows = frame.select_columns(&["embedding"]).unwrap().collect().await.unwrap();
    rows.iter()
        .flat_map(|batch| {
            let vectors = batch.column(0).as_fixed_size_list();
            assert_eq!(vectors.value_length() as usize, DIMENSIONS);
            vectors.values().as_primitive::<Float32Type>().values().to_vec()
        })
        .collect()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let worst = found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0, f32::max);
    assert!(worst <= TOLERANCE, "largest difference {worst}");
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn golden_embeddings() {
    golden_values(PACKAGE).await;
}

/// A package of the model gives the values that sentence-transformers gave.
pub(super) async fn golden_values(package: &str) {
    let texts: Vec<String> = fs::read_to_string("tests/golden/minilm.jsonl")
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let expected = floats(&fs::read("tests/golden/minilm.f32").unwrap());
    for cpus in [1, 2] {
        let forebay = session_with(package, cpus).await;
        for options in [
            &[][..],
            &[("max_batch_rows", "1")],
            &[("max_batch_rows", "7"), ("batch_window_rows", "10")],
            &[("max_batch_tokens", "4096"), ("max_batch_rows", "64")],
        ] {
            assert_close(&embed(&forebay, &texts, options).await, &expected);
        }
    }
}

/// 1,000 mixed texts against the real thing, computed now; the golden values otherwise stand alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_texts_against_sentence_transformers() {
    if !Path::new(".forebay/python").exists() {
        eprintln!("no Python environment (`make setup` makes it): golden values only");
        return;
    }
    let texts = mixed_texts(1_000);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("reference.f32");
    let mut python = Command::new("tools/python")
        .args(["-m", "forebay.export.reference", "--source", SOURCE, "--output"])
        .arg(&output)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let lines: String = texts.iter().map(|t| serde_json::to_string(t).unwrap() + "\n").collect();
    python.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(python.wait().unwrap().success());
    let expected = floats(&fs::read(output).unwrap());

    for (cpus, options) in [(1, &[][..]), (2, &[("max_batch_tokens", "2048")])] {
        let forebay = session(cpus).await;
        assert_close(&embed(&forebay, &texts, options).await, &expected);
    }
}

/// Texts of 0 to 200 words in several scripts, some twice; the same at every run.
fn mixed_texts(count: usize) -> Vec<String> {
    const WORDS: [&str; 16] = [
        "turbine",
        "a",
        "Stream,",
        "überfließen",
        "水",
        "ночь",
        "GPU",
        "3.14",
        "naïve",
        "🌊",
        "the",
        "of",
        "(dam)",
        "reservoir",
        "don't",
        "e-mail@example.org",
    ];
    let mut random = Random::new(7);
    let mut texts: Vec<String> = vec![];
    while texts.len() < count {
        let words_max = if random.chance(5) { 200 } else { 25 };
        let words = random.below(words_max);
        let word = |_| WORDS[random.index(WORDS.len())];
        texts.push((0..words).map(word).collect::<Vec<_>>().join(" "));
    }
    texts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_very_long_text_is_truncated_not_refused() {
    let forebay = session(1).await;
    let long = "forebay ".repeat(100_000);
    let same = "forebay ".repeat(1_000);
    let found = embed(&forebay, &[long, same], &[]).await;
    assert_close(&found[..DIMENSIONS], &found[DIMENSIONS..]);
}
