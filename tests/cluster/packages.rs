//! Models whose packages workers fetch from a web server, which fails.

use std::path::Path;
use std::process::{Command, Output};

use datafusion::common::runtime::SpawnedTask;
use forebay_testkit::web::Web;

use super::setup::{ACCELERATOR, SLOW, Stage, run};

const QUERY: &str = "SELECT id, label FROM ml_predict((SELECT id, word AS text FROM words \
                     WHERE id < 40), MODEL slow, DESCRIPTOR(text))";

/// A cluster of two workers that have fetched nothing yet, and a catalog with a model on the web.
struct Fetching {
    stage: Stage,
    web: Web,
}

impl Fetching {
    async fn new() -> Self {
        let mut stage = Stage::new(10, &[]);
        let folder = stage.folder().to_owned();
        for name in ["a", "b"] {
            let cache = folder.join(name).display().to_string();
            stage.cluster.add_worker_in(&[("FOREBAY_CACHE", &cache)], ACCELERATOR);
        }
        drop(stage.session().await); // Writes the table.
        let web = Web::start(&folder.join(SLOW)).await;
        let fetching = Self { stage, web };
        let create = format!("CREATE MODEL slow LOCATION '{}/slow'", fetching.web.url());
        let created = fetching.shell(&create).await;
        assert!(created.status.success(), "{}", said(&created));
        fetching
    }

    async fn query(&self) -> Output {
        let words = self.stage.folder().join("words").display().to_string();
        let table = format!("CREATE EXTERNAL TABLE words STORED AS PARQUET LOCATION '{words}/'");
        self.shell(&format!("{table}; {QUERY}")).await
    }

    /// Runs statements in a session of its own.
    async fn shell(&self, statements: &str) -> Output {
        let folder = self.stage.folder();
        let mut command = shell(folder, self.stage.cluster.address(), statements);
        let ended = SpawnedTask::spawn_blocking(move || command.output());
        self.stage.bounded(async { ended.join().await.unwrap().unwrap() }).await
    }
}

fn shell(folder: &Path, scheduler: &str, statements: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command
        .args(["shell", "-q", "--format", "csv", "--connect", scheduler, "-c", statements])
        .env("FOREBAY_CATALOG", folder.join("catalog"))
        .env("FOREBAY_CACHE", folder.join("client"));
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// More than two workers can meet within one attempt each that ends well, which asks four times: at
/// least one task fails. Too few for a task to fail four times.
const FAILURES: usize = 9;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_fails_for_a_while_is_asked_again() {
    let fetching = Fetching::new().await;
    fetching.web.fail(FAILURES);
    let before = fetching.web.served();
    let answer = fetching.query().await;
    assert!(answer.status.success(), "{}\n{}", said(&answer), fetching.stage.cluster.said());
    let mut rows: Vec<_> = String::from_utf8_lossy(&answer.stdout)
        .lines()
        .skip(1)
        .map(|line| line.replace(',', "|"))
        .collect();
    rows.sort();
    assert_eq!(rows, run(&fetching.stage.local().await, QUERY).await.unwrap());
    assert_eq!(fetching.web.failed(), FAILURES);
    assert!(fetching.web.served() > before, "no worker fetched the package");
    let log = fetching.stage.cluster.scheduler().log();
    assert!(log.contains("failed (Passing)"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_that_is_not_there_ends_the_query_with_its_url() {
    let mut fetching = Fetching::new().await;
    std::fs::remove_dir_all(fetching.stage.folder().join(SLOW)).unwrap();
    let answer = fetching.query().await;
    assert!(!answer.status.success(), "there were rows");
    let (said, url) = (said(&answer), format!("{}/slow", fetching.web.url()));
    let parts = [&url, "model.toml", "404 Not Found", "check the URL"];
    assert!(parts.iter().all(|part| said.contains(*part)), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    fetching.stage.until_nothing_is_left(&[0, 1]).await;
    let log = fetching.stage.cluster.scheduler().log();
    assert!(!log.contains("gave up"), "it was tried again\n{log}");
}

/// The runtime is the machine's: others may have it, but here nobody does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_no_worker_has_is_named() {
    let mut stage = Stage::new(10, &[]);
    stage.cluster.add_worker_in(&[("FOREBAY_LIBTORCH", "/nowhere")], super::setup::CPU);
    let session = stage.session().await;
    let package = stage.folder().join("torch");
    write_torch_model(&package);
    session.register_model("torch", package.to_str().unwrap()).await.unwrap();
    let query = "SELECT id, label FROM ml_predict(\
                 (SELECT id, CAST(id AS FLOAT) AS number FROM words), MODEL torch, \
                 DESCRIPTOR(number))";
    let error = stage.run(&session, query).await.unwrap_err().strip_backtrace();
    let parts = ["cannot be loaded", "/nowhere", "forebay doctor"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    stage.until_nothing_is_left(&[0]).await;
}

/// A model for libtorch on CPUs. No worker of these tests gets as far as its program.
fn write_torch_model(folder: &Path) {
    use sha2::{Digest, Sha256};
    let program = b"no program";
    let hash: String = Sha256::digest(program).iter().map(|byte| format!("{byte:02x}")).collect();
    let manifest = format!(
        "format = 1\nname = \"torch\"\nversion = \"1\"\n\
         [[input]]\nname = \"number\"\ntype = \"FLOAT\"\n\
         [[output]]\nname = \"label\"\ntype = \"FLOAT\"\n\
         [transform]\nkind = \"tensor\"\n\
         [runtime]\nkind = \"torch\"\nprogram = \"model.pt\"\n\
         [resources]\ncpus = 1\ngpus = 0\nmemory = \"1 MiB\"\n\
         [batch]\nmax_rows = 4\nwindow_rows = 16\n\
         [files]\n\"model.pt\" = \"{hash}\"\n"
    );
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("model.toml"), manifest).unwrap();
    std::fs::write(folder.join("model.pt"), program).unwrap();
}
