//! Files and URLs that fail while a query runs.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::util::pretty::pretty_format_batches;
use datafusion::physical_plan::collect;
use datafusion::prelude::{CsvReadOptions, SessionConfig};
use forebay::{Catalog, ForebayContext, Inventory};
use forebay_testkit::web::Web;

fn session() -> ForebayContext {
    ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2))
        .with_config(SessionConfig::new().with_target_partitions(2))
        .build()
        .unwrap()
}

/// Three files, one of which is gone when they are read.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.bin", "b.bin", "c.bin"] {
        fs::write(folder.path().join(name), name).unwrap();
    }
    folder
}

async fn with_one_gone(forebay: &ForebayContext, select: &str) -> Result<String, String> {
    let folder = folder();
    let sql = select.replace("FOLDER", folder.path().to_str().unwrap());
    let frame = forebay.sql(&sql).await.unwrap();
    let plan = frame.create_physical_plan().await.unwrap();
    fs::remove_file(folder.path().join("b.bin")).unwrap();
    let context = forebay.session().task_ctx();
    let batches = collect(plan, context).await;
    let batches = batches.map_err(|error| error.to_string())?;
    Ok(pretty_format_batches(&batches).unwrap().to_string())
}

#[tokio::test]
async fn a_file_that_cannot_be_read_ends_the_query_or_is_null() {
    let forebay = session();
    let select =
        "SELECT count(*) AS files, count(bytes) AS contents FROM read_files('FOLDER/*.bin'";
    let error = with_one_gone(&forebay, &format!("{select})")).await.unwrap_err();
    assert!(error.contains("b.bin cannot be read; read_files(…, 'null') gives NULL"), "{error}");
    let rows = with_one_gone(&forebay, &format!("{select}, 'null')")).await.unwrap();
    assert!(rows.contains("| 3     | 2        |"), "{rows}");
    let analyzed = format!("EXPLAIN ANALYZE {select}, 'null')");
    let text = with_one_gone(&forebay, &analyzed).await.unwrap();
    assert!(text.contains("files_failed=1") && text.contains("files_read=2"), "{text}");
}

/// Compressed, in Arrow's stream format: one whose buffer claims to be larger than any memory.
fn write_arrow(path: &Path, claim: Option<i64>) {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    let zstd = Some(CompressionType::ZSTD);
    let options = IpcWriteOptions::default().try_with_compression(zstd).unwrap();
    let mut writer =
        StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    let mut bytes = writer.into_inner().unwrap();
    if let Some(claim) = claim {
        let at = bytes.windows(8).position(|bytes| bytes == 8000_i64.to_le_bytes()).unwrap();
        bytes[at..at + 8].copy_from_slice(&claim.to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_arrow_are_read_and_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let [good, bad] = ["good.arrow", "bad.arrow"].map(|name| folder.path().join(name));
    write_arrow(&good, None);
    write_arrow(&bad, Some(1 << 45));
    for forebay in [session(), ForebayContext::standalone().await.unwrap()] {
        let sum = |path: &Path| format!("SELECT sum(n) FROM '{}'", path.display());
        let rows = forebay.sql(&sum(&good)).await.unwrap().collect().await.unwrap();
        assert_eq!(rows[0].column(0).as_primitive::<Int64Type>().value(0), 499_500);
        let error = forebay.sql(&sum(&bad)).await.unwrap().collect().await.unwrap_err().to_string();
        assert!(error.contains("bad.arrow") && error.contains("claim 35184372088832"), "{error}");
    }
}

#[tokio::test]
async fn downloads_are_tried_again_and_end_in_time() {
    let forebay = session();
    let folder = folder();
    let web = Web::start(folder.path()).await;
    // Accepts and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let urls = [format!("{}/a.bin", web.url()), format!("{}/none.bin", web.url()), silent];
    let values: Vec<String> = urls.iter().map(|url| format!("('{url}')")).collect();
    let create = format!("CREATE TABLE links (url VARCHAR) AS VALUES {}", values.join(", "));
    forebay.sql(&create).await.unwrap().collect().await.unwrap();

    // Twice out of service is not for good.
    web.fail(2);
    let start = Instant::now();
    let select = "SELECT try_url_download(url, 1) AS content FROM links ORDER BY url = 'x', url";
    let batches = forebay.sql(select).await.unwrap().collect().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(web.failed(), 2);
    let found: Vec<Option<Vec<u8>>> = batches
        .iter()
        .flat_map(|batch| {
            let contents = batch.column(0).as_binary_view();
            contents.iter().map(|c| c.map(<[u8]>::to_vec)).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(found.len(), 3);
    assert_eq!(found.iter().flatten().collect::<Vec<_>>(), [b"a.bin"]);

    for (url, expected) in [
        (&urls[1], "none.bin: the server says 404 Not Found"),
        (&urls[2], "it took longer than 1 s (3 attempts)"),
    ] {
        let select = format!("SELECT url_download(url, 1) FROM links WHERE url = '{url}'");
        let error = forebay.sql(&select).await.unwrap().collect().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("try_url_download gives NULL"), "{error}");
    }
}

#[tokio::test]
async fn stores_that_there_are_not_are_named() {
    let forebay = session();
    for sql in [
        "SELECT * FROM read_files('az://box/x.csv')",
        "SELECT * FROM 'az://box/x.csv'",
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'az://box/x.csv'",
        "CREATE EXTERNAL TABLE t (x INT) STORED AS CSV LOCATION 'az://box/x.csv'",
        "CREATE MODEL m LOCATION 'az://box/x.csv'",
        "COPY (SELECT 1) TO 'az://box/x.csv'",
    ] {
        let done = async { forebay.sql(sql).await?.collect().await };
        let error = done.await.unwrap_err().to_string();
        assert!(error.contains("az://box/x.csv: 'az' is not a kind of store"), "{sql}: {error}");
    }
    let frame = forebay.session().read_csv("az://box/x.csv", CsvReadOptions::new()).await;
    let error = frame.unwrap_err().to_string();
    assert!(error.contains("'az' is not a kind of store"), "{error}");
}
