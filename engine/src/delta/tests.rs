//! Commits of several writers to one table. The files that they name are nobody's to read here.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use object_store::path::Path;
use tempfile::TempDir;

use super::{CommitError, Log, NewFile, Transaction};
use crate::ErrorKind;

struct Table {
    home: TempDir,
    log: Log,
}

impl Table {
    async fn new() -> Self {
        let home = TempDir::new().unwrap();
        let folder = ListingTableUrl::parse(format!("{}/", home.path().display())).unwrap();
        let log = Log::new(&RuntimeEnv::default(), &folder).unwrap();
        assert!(!log.exists().await.unwrap());
        let error = log.snapshot(None).await.unwrap_err();
        assert_eq!(ErrorKind::of(&error), ErrorKind::NotFound, "{error}");
        let schema = Schema::new(vec![Field::new("n", DataType::Int64, true)]);
        log.create(&schema, &[]).await.unwrap();
        Self { home, log }
    }

    fn entry(&self, version: u64) -> PathBuf {
        self.home.path().join(format!("_delta_log/{version:020}.json"))
    }

    fn edit(&self, version: u64, edit: impl Fn(String) -> String) {
        let entry = self.entry(version);
        fs::write(&entry, edit(fs::read_to_string(&entry).unwrap())).unwrap();
    }

    async fn begin(&self, id: &str, overwrites: bool) -> Transaction {
        let version = self.log.snapshot(None).await.unwrap().version();
        Transaction::begin(self.log.clone(), version, id.to_owned(), overwrites).await.unwrap()
    }

    /// The version, and the names of the files that count.
    async fn state(&self) -> (u64, Vec<String>) {
        let snapshot = self.log.snapshot(None).await.unwrap();
        let files = snapshot.files(&Path::default()).await.unwrap().into_iter();
        let mut names: Vec<_> =
            files.map(|file| file.into_partitioned().object_meta.location.to_string()).collect();
        names.sort();
        (snapshot.version(), names)
    }
}

fn file(name: &str) -> Vec<NewFile> {
    let stats = Some(r#"{"numRecords":1,"minValues":{"n":1},"maxValues":{"n":2}}"#.to_owned());
    vec![NewFile { path: Path::from(name), folder: Path::default(), bytes: 1, stats }]
}

fn undone(result: Result<(), CommitError>) -> DataFusionError {
    match result {
        Err(CommitError::Undone(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_twice_counts_once() {
    let table = Table::new().await;
    let (first, twin) = (table.begin("job-1", false).await, table.begin("job-1", false).await);
    assert!(!first.is_done().await.unwrap());
    first.commit(&file("a")).await.unwrap();
    let expected = (1, vec!["a".to_owned()]);
    assert_eq!(table.state().await, expected);
    assert!(twin.is_done().await.unwrap());
    // One that has not looked, as when an answer of the store was lost.
    twin.commit(&file("b")).await.unwrap();
    first.commit(&file("a")).await.unwrap();
    assert_eq!(table.state().await, expected);
    // Another one's is another one.
    table.begin("job-2", false).await.commit(&file("c")).await.unwrap();
    assert_eq!(table.state().await.1, ["a", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_that_add_pass_each_other_and_of_two_that_overwrite_one_does() {
    let table = Table::new().await;
    let (one, other) = (table.begin("1", false).await, table.begin("2", false).await);
    other.commit(&file("b")).await.unwrap();
    one.commit(&file("a")).await.unwrap();
    assert_eq!(table.state().await, (2, vec!["a".to_owned(), "b".to_owned()]));
    let (one, other) = (table.begin("3", true).await, table.begin("4", true).await);
    let adds = table.begin("5", false).await;
    adds.commit(&file("e")).await.unwrap();
    one.commit(&file("c")).await.unwrap();
    let error = undone(other.commit(&file("d")).await);
    assert_eq!(ErrorKind::of(&error), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("run it again"), "{error}");
    assert!(!other.is_done().await.unwrap());
    // What was added meanwhile has not been taken away unread.
    assert_eq!(table.state().await, (4, vec!["c".to_owned(), "e".to_owned()]));
    // Nothing in, nothing out.
    table.begin("6", false).await.commit(&[]).await.unwrap();
    assert_eq!(table.state().await.0, 4);
    table.begin("7", true).await.commit(&[]).await.unwrap();
    assert_eq!(table.state().await, (5, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_log_is_an_error_and_no_panic() {
    let table = Table::new().await;
    table.begin("1", false).await.commit(&file("a")).await.unwrap();
    let path = table.entry(1);
    let whole = fs::read_to_string(&path).unwrap();
    let damages = [
        whole[..whole.len() / 2].to_owned(),
        "\u{0}\u{1}".to_owned(),
        "[]".to_owned(),
        whole.replace("\"size\":1", "\"size\":-1"),
        whole.replace("numRecords", "numRecord\\u0000s"),
        whole.replace("\"path\":\"a\"", "\"path\":\"../../etc/a\""),
        whole.replace("\"path\":\"a\"", "\"path\":\"s3://other/a\""),
    ];
    for damaged in damages {
        fs::write(&path, &damaged).unwrap();
        let read = async {
            let snapshot = table.log.snapshot(None).await?;
            snapshot.files(&Path::default()).await.map(|files| files.len())
        };
        match read.await {
            // Without statistics it is a file all the same.
            Ok(files) => assert!(files == 1 && damaged.contains("u0000s"), "{damaged}"),
            Err(error) => {
                let kind = ErrorKind::of(&error);
                let expected = [ErrorKind::FailedPrecondition, ErrorKind::Unimplemented];
                assert!(expected.contains(&kind), "{damaged}: {error}");
            }
        }
    }
}

/// Columns that cannot be those of a batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_without_a_counterpart_is_an_error_and_no_panic() {
    let table = Table::new().await;
    let ids = r#"\"metadata\":{\"delta.columnMapping.nested.ids\":\"x\"}"#;
    let kind = r#"{\"type\":\"array\",\"elementType\":\"long\",\"containsNull\":true}"#;
    table.edit(0, |log| {
        let edited = log.replace(r#"\"metadata\":{}"#, ids).replace(r#"\"long\""#, kind);
        assert_ne!(edited, log);
        edited
    });
    let error = table.log.snapshot(None).await.unwrap_err();
    assert_eq!(ErrorKind::of(&error), ErrorKind::FailedPrecondition, "{error}");
    assert!(error.to_string().contains("is broken"), "{error}");
}

/// Others may encode less than this build, or more.
#[tokio::test(flavor = "multi_thread")]
async fn files_are_removed_under_the_names_that_their_writer_gave_them() {
    let names = ["ä/b c.parquet", "%61.parquet", "x=50%25/d.parquet", "e%20f.parquet"];
    let table = Table::new().await;
    for (number, name) in names.into_iter().enumerate() {
        table.begin(&format!("{number}"), false).await.commit(&file("name")).await.unwrap();
        let name = format!("\"path\":\"{name}\"");
        table.edit(number as u64 + 1, |log| log.replace("\"path\":\"name\"", &name));
    }
    let (_, before) = table.state().await;
    assert_eq!(before, ["a.parquet", "e f.parquet", "x=50%/d.parquet", "ä/b c.parquet"]);
    table.begin("overwrites", true).await.commit(&file("new")).await.unwrap();
    assert_eq!(table.state().await, (5, vec!["new".to_owned()]));
    let entry = fs::read_to_string(table.entry(5)).unwrap();
    assert_eq!(entry.matches("{\"remove\":").count(), names.len(), "{entry}");
    for name in names {
        assert!(entry.contains(&format!("\"path\":\"{name}\"")), "{name}: {entry}");
    }
}

/// A table whose checkpoint is another one's, under a name. Gives back what is read of it.
async fn with_part(name: &str, is_inside: bool, other: &Table) -> Result<Vec<String>> {
    let table = Table::new().await;
    let schema = fs::read_to_string(table.entry(0)).unwrap();
    let metadata = schema.lines().find(|line| line.contains("\"metaData\"")).unwrap().to_owned();
    let protocol = r#"{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["v2Checkpoint"],"writerFeatures":["v2Checkpoint"]}}"#;
    table.edit(0, |_| format!("{protocol}\n{metadata}\n"));
    let home = table.home.path().join("_delta_log");
    let part = fs::read(checkpoint(other)).unwrap();
    if is_inside {
        fs::create_dir(home.join("_sidecars")).unwrap();
        fs::write(home.join("_sidecars").join(name), &part).unwrap();
    }
    let sidecar = format!(
        r#"{{"sidecar":{{"path":"{name}","sizeInBytes":{},"modificationTime":1}}}}"#,
        part.len()
    );
    let version = r#"{"checkpointMetadata":{"version":0}}"#;
    let id = "80a083e8-7026-4e79-81be-64bd76c43a11";
    let lines = [version, protocol, &metadata, &sidecar].join("\n");
    fs::write(home.join(format!("{:020}.checkpoint.{id}.json", 0)), lines).unwrap();
    let files = table.log.snapshot(None).await?.files(&Path::default()).await?;
    Ok(files
        .into_iter()
        .map(|file| file.into_partitioned().object_meta.location.to_string())
        .collect())
}

/// Of the last commit.
fn checkpoint(table: &Table) -> PathBuf {
    table.home.path().join("_delta_log/00000000000000000001.checkpoint.parquet")
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_checkpoints_that_lie_elsewhere_are_not_read() {
    let other = Table::new().await;
    let every = r#""configuration":{"delta.checkpointInterval":"1"}"#;
    other.edit(0, |log| log.replace(r#""configuration":{}"#, every));
    other.begin("1", false).await.commit(&file("secret")).await.unwrap();
    assert_eq!(with_part("part.parquet", true, &other).await.unwrap(), ["secret"]);
    let (listener, path) = (TcpListener::bind("127.0.0.1:0").unwrap(), checkpoint(&other));
    listener.set_nonblocking(true).unwrap();
    let folder = other.home.path().file_name().unwrap().to_str().unwrap();
    let place = format!("{folder}/_delta_log/00000000000000000001.checkpoint.parquet");
    let names = [
        format!("file://{}", path.display()),
        path.display().to_string(),
        format!("../../../{place}"),
        format!("..%2f..%2f..%2f{place}"),
        format!("http://{}{}?sp=1", listener.local_addr().unwrap(), path.display()),
    ];
    for name in names {
        let error = with_part(&name, false, &other).await.unwrap_err();
        assert!(!error.to_string().contains("panic"), "{name}: {error}");
        if name.contains("%2f") {
            continue; // No path at all.
        }
        assert_eq!(ErrorKind::of(&error), ErrorKind::FailedPrecondition, "{name}: {error}");
        assert!(error.to_string().contains("outside of the table's folder"), "{name}: {error}");
    }
    assert!(listener.accept().is_err(), "a web server was asked");
}
