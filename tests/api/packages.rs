//! What exported packages say of themselves, and what happens where they say nothing.

use std::fs;
use std::path::{Path, PathBuf};

use arrow::array::AsArray;
use forebay::prelude::*;
use forebay::{Catalog, Inventory};

const FIXTURES: &str = ".forebay/fixtures";

async fn session() -> ForebayContext {
    ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2))
        .build()
        .unwrap()
}

/// The rows of DESCRIBE MODEL of these kinds.
async fn described(package: &Path, kinds: &[&str]) -> Vec<[String; 3]> {
    let forebay = session().await;
    forebay.register_model("m", package.to_str().unwrap()).await.unwrap();
    let batches = forebay.sql("DESCRIBE MODEL m").await.unwrap().collect().await.unwrap();
    let rows = batches.iter().flat_map(|batch| {
        (0..batch.num_rows()).map(|row| {
            [0, 1, 2].map(|at| batch.column(at).as_string::<i32>().value(row).to_owned())
        })
    });
    rows.filter(|row| kinds.contains(&row[0].as_str())).collect()
}

#[tokio::test]
async fn prompts_are_described() {
    let rows = described(&fixture("xlm-roberta"), &["prompt"]).await;
    let expected = [("document", ""), ("passage", "passage: "), ("query", "query: ")];
    let expected = expected.map(|(name, text)| ["prompt", name, text].map(str::to_owned));
    assert_eq!(rows, expected);
}

#[tokio::test]
async fn precisions_are_described() {
    let rows = described(&fixture("bert"), &["precision"]).await;
    let names: Vec<&str> = rows.iter().map(|row| row[1].as_str()).collect();
    assert_eq!(names, ["bf16", "fp16"]);
    assert!(rows[0][2].starts_with("differs from fp32 by "), "{rows:?}");
}

#[tokio::test]
async fn what_the_program_does_not_hold_is_refused_when_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    changed(folder.path(), |text| with_precisions(text, "[precisions]"));
    assert!(described(folder.path(), &["precision"]).await.is_empty());
    let create = format!(
        "CREATE MODEL half LOCATION '{}' WITH ('precision' = 'bf16')",
        folder.path().display()
    );
    let error = session().await.sql(&create).await.unwrap_err().to_string();
    let expected = "invalid value 'bf16' for 'precision': expected fp32, because the program of model \
                    'half' failed in another when it was exported";
    assert!(error.contains(expected), "{error}");
}

#[tokio::test]
async fn an_onnx_model_is_described_by_its_own_files() {
    let forebay = session().await;
    let statement = format!(
        "CREATE MODEL m LOCATION '{FIXTURES}/onnx/quantised/model' WITH ('precision' = 'int8')"
    );
    forebay.sql(&statement).await.unwrap().collect().await.unwrap();
    let batches = forebay.sql("DESCRIBE MODEL m").await.unwrap().collect().await.unwrap();
    let text = arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string();
    for expected in [
        ["input", "text", "STRING"],
        ["output", "embedding", "FLOAT[32]"],
        ["option", "precision", "int8"],
        ["option", "determinism", "volatile"],
        ["package", "runtime", "onnx"],
        ["package", "program", "onnx/model_quantized.onnx"],
    ] {
        let has_all = |line: &str| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            cells.get(1..4).is_some_and(|cells| cells == expected)
        };
        assert!(text.lines().any(has_all), "{expected:?}: {text}");
    }
    let batches = forebay.sql("SHOW CREATE MODEL m").await.unwrap().collect().await.unwrap();
    let text = arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string();
    assert!(text.contains("'precision' = 'int8'"), "{text}");
}

fn fixture(package: &str) -> PathBuf {
    Path::new(FIXTURES).join(package).join("package")
}

/// A description that says `said` of half precisions.
fn with_precisions(text: &str, said: &str) -> String {
    let start = text.find("[precisions]\n").unwrap();
    let end = start + text[start..].find("\n\n").unwrap();
    format!("{}{said}{}", &text[..start], &text[end..])
}

/// A package that describes itself in another way.
fn changed(folder: &Path, change: impl FnOnce(&str) -> String) {
    let package = fixture("bert");
    for file in ["model.pt", "tokenizer.json"] {
        fs::copy(package.join(file), folder.join(file)).unwrap();
    }
    let description = fs::read_to_string(package.join("model.toml")).unwrap();
    let other = change(&description);
    assert_ne!(other, description);
    fs::write(folder.join("model.toml"), other).unwrap();
}

#[tokio::test]
async fn a_program_that_fails_on_any_row_fails_the_query() {
    let folder = tempfile::tempdir().unwrap();
    // It says nothing of precisions, as packages of older versions, and not all that the program takes.
    changed(folder.path(), |text| {
        with_precisions(text, "").replace(r#"["input_ids", "attention_mask"]"#, r#"["input_ids"]"#)
    });
    let forebay = session().await;
    forebay.register_model("m", folder.path().to_str().unwrap()).await.unwrap();
    for on_error in ["fail", "null", "route"] {
        let query = format!(
            "SELECT * FROM ml_predict((SELECT 'a cat' AS text UNION ALL SELECT 'a dog'), MODEL m,
             precision => 'fp16', on_error => '{on_error}')"
        );
        let result = forebay.sql(&query).await.unwrap().collect().await;
        let error = result.map(|batches| batches[0].num_rows()).unwrap_err().to_string();
        assert!(error.contains("it would on any row: try precision = 'fp32'"), "{error}");
        assert!(!error.contains("finds the rows at fault"), "{error}");
    }
}
