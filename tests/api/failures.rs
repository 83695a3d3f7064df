//! Damage, cancellation and limits: a clear error, and nothing left behind.

use std::fs;
use std::path::Path;

use datafusion::error::DataFusionError;
use forebay::prelude::*;
use forebay::{Catalog, Inventory};
use futures::StreamExt;

fn session() -> ForebayContext {
    ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30))
        .with_config(SessionConfig::new().with_target_partitions(2))
        .build()
        .unwrap()
}

/// A copy of a fixture package that a test may damage.
fn package() -> tempfile::TempDir {
    let source = Path::new(".forebay/fixtures/bert/package");
    assert!(source.exists(), "{} is missing: run `make setup`", source.display());
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(source).unwrap().flatten() {
        if file.path().is_file() {
            fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
    }
    copy
}

async fn error_of(forebay: &ForebayContext, sql: &str) -> String {
    let result = async { forebay.sql(sql).await?.collect().await };
    let error: DataFusionError = result.await.unwrap_err();
    error.strip_backtrace()
}

const PREDICT: &str = "SELECT ml_predict(MODEL m, 'text') AS e";

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_weight_file_is_named() {
    let (forebay, package) = (session(), package());
    forebay.register_model("m", package.path().to_str().unwrap()).await.unwrap();
    let mut weights = fs::read(package.path().join("model.pt")).unwrap();
    let middle = weights.len() / 2;
    weights[middle] ^= 1;
    fs::write(package.path().join("model.pt"), weights).unwrap();
    let error = error_of(&forebay, PREDICT).await;
    assert!(error.contains("model.pt") && error.contains("changed"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_file_is_named() {
    let (forebay, package) = (session(), package());
    forebay.register_model("m", package.path().to_str().unwrap()).await.unwrap();
    fs::remove_file(package.path().join("tokenizer.json")).unwrap();
    let error = error_of(&forebay, PREDICT).await;
    assert!(error.contains("tokenizer.json") && error.contains("missing"), "{error}");
}

/// A corrupt program under a right hash: as if it had been exported that way.
#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_program_is_an_error_not_a_crash() {
    let (forebay, package) = (session(), package());
    let program = package.path().join("model.pt");
    let weights = fs::read(&program).unwrap();
    fs::write(&program, &weights[..weights.len() / 3]).unwrap();
    rehash(package.path(), "model.pt");
    forebay.register_model("m", package.path().to_str().unwrap()).await.unwrap();
    let error = error_of(&forebay, PREDICT).await;
    assert!(error.contains("'m'") && error.contains("model.pt"), "{error}");
    assert!(error.len() < 600, "a C++ stack trace is no message: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_of_another_shape_is_named() {
    let (forebay, package) = (session(), package());
    let manifest = package.path().join("model.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    let at = text.find("FLOAT[").unwrap();
    let end = at + text[at..].find(']').unwrap() + 1;
    fs::write(&manifest, format!("{}FLOAT[7]{}", &text[..at], &text[end..])).unwrap();
    forebay.register_model("m", package.path().to_str().unwrap()).await.unwrap();
    let error = error_of(&forebay, PREDICT).await;
    assert!(error.contains("FLOAT[7]") && error.contains("'m'"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_not_there_is_refused_with_the_reason() {
    let (forebay, package) = (session(), package());
    if forebay.devices().cuda().is_ok_and(|devices| !devices.is_empty()) {
        eprintln!("this machine has a GPU: nothing to refuse");
        return;
    }
    forebay.register_model("m", package.path().to_str().unwrap()).await.unwrap();
    for option in ["'device': 'cuda'", "'gpus': '1'", "'device': 'cuda:7'"] {
        let sql = format!("SELECT ml_predict(MODEL m, 'text', MAP {{{option}}})");
        let error = error_of(&forebay, &sql).await;
        assert!(error.contains("'m'") && error.contains("no NVIDIA driver"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_query_gives_everything_back() {
    let forebay = session();
    forebay.register_model("echo", "tests/models/echo").await.unwrap();
    let sql = "SELECT ml_predict(MODEL echo, value) FROM generate_series(1, 1000000) AS t(value)";
    let mut rows = forebay.sql(sql).await.unwrap().execute_stream().await.unwrap();
    assert!(rows.next().await.unwrap().unwrap().num_rows() > 0);
    drop(rows);
    // Tasks end when they are next polled; a batch in flight ends first.
    let pool = &forebay.session().runtime_env().memory_pool;
    while pool.reserved() > 0 || forebay.devices().leased_millis(EMULATED) > 0 {
        tokio::task::yield_now().await;
    }
}

const EMULATED: forebay_udf::runtime::Device = forebay_udf::runtime::Device::Emulated(0);

#[tokio::test(flavor = "multi_thread")]
async fn invalid_utf8_in_a_csv_is_an_error() {
    let forebay = session();
    forebay.register_model("m", package().path().to_str().unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.csv");
    fs::write(&file, b"text\ngood\n\xff\xfe bad\n").unwrap();
    let sql = format!("SELECT ml_predict(MODEL m, text) FROM '{}'", file.display());
    let error = error_of(&forebay, &sql).await;
    assert!(error.to_lowercase().contains("utf"), "{error}");
}

/// Writes the true hash of a file into the package's description.
fn rehash(package: &Path, file: &str) {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(fs::read(package.join(file)).unwrap());
    let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let manifest = package.join("model.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    let line = |line: &str| match line.starts_with(&format!("\"{file}\"")) {
        true => format!("\"{file}\" = \"{hash}\""),
        false => line.to_owned(),
    };
    fs::write(&manifest, text.lines().map(line).collect::<Vec<_>>().join("\n")).unwrap();
}

/// A package of an emulated model, written by the test.
fn emulated(runtime: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let echo = fs::read_to_string("tests/models/echo/model.toml").unwrap();
    fs::write(dir.path().join("model.toml"), echo.replace("service_ms = 1", runtime)).unwrap();
    dir
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_never_returns_is_named_after_the_limit() {
    let (forebay, package) = (session(), emulated("service_ms = 3600000"));
    forebay.register_model("stuck", package.path().to_str().unwrap()).await.unwrap();
    forebay.sql("SET forebay.no_progress_limit_s = 1").await.unwrap();
    let error = error_of(&forebay, "SELECT ml_predict(MODEL stuck, 1)").await;
    assert!(
        error.contains("InferenceExec of model 'stuck' has made no progress for 1 s"),
        "{error}"
    );
    assert!(error.contains("a batch on emulated:0 has not returned"), "{error}");
    // Its thread cannot be stopped, so it keeps its share; the next query says so.
    let error = error_of(&forebay, "SELECT ml_predict(MODEL stuck, 2)").await;
    assert!(error.contains("has not"), "{error}");
}
