//! Commits of several writers to one table. The files that they name are nobody's to read here.

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::DataFusionError;
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

    async fn begin(&self, id: &str, overwrites: bool) -> Transaction {
        let version = self.log.snapshot(None).await.unwrap().version();
        Transaction::begin(self.log.clone(), version, id.to_owned(), overwrites).await.unwrap()
    }

    /// The version, and the names of the files that count.
    async fn state(&self) -> (u64, Vec<String>) {
        let snapshot = self.log.snapshot(None).await.unwrap();
        let files = snapshot.files(&Path::default()).unwrap().into_iter();
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
    let path = table.home.path().join("_delta_log/00000000000000000001.json");
    let whole = std::fs::read_to_string(&path).unwrap();
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
        std::fs::write(&path, &damaged).unwrap();
        let read = async {
            let snapshot = table.log.snapshot(None).await?;
            snapshot.files(&Path::default()).map(|files| files.len())
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
