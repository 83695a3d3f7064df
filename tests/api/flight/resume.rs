//! Jobs that go on after all of their server was killed, in another one with other workers, batches and parts.

mod odd;
mod refusals;
mod sources;
mod staged;
mod takeover;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tonic::{Code, Status};

use super::process::{Client, Server, lines, text, user};

const EMBEDDED: &[&str] = &["--embedded"];
const CLUSTER: &[&str] = &["--worker", "--bind", "127.0.0.1:0"];

/// Files of numbers, and numbers in each. The model takes 100 ms for four.
const FILES: usize = 8;
const ROWS_OF_FILE: usize = 24;
const ROWS: usize = FILES * ROWS_OF_FILE;

/// A folder of files to read, and a server beside it.
struct Stage {
    folder: TempDir,
}

impl Stage {
    fn new() -> Self {
        let stage = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(stage.path("in")).unwrap();
        (0..FILES).for_each(|file| stage.write_input(file, 0));
        let names: String = (0..7).map(|n| format!("{n},n{n}\n")).collect();
        fs::write(stage.path("names.csv"), format!("k,name\n{names}")).unwrap();
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_input(&self, file: usize, plus: usize) {
        let numbers = file * ROWS_OF_FILE..(file + 1) * ROWS_OF_FILE;
        let numbers: String = numbers.map(|n| format!("{}\n", n + plus)).collect();
        fs::write(self.path(&format!("in/{file}.csv")), format!("n\n{numbers}")).unwrap();
    }

    /// A server with the state that is in the folder, and a client that knows the tables.
    async fn serve(&self, mode: &[&str]) -> (Server, Client) {
        self.serve_in(self.folder.path(), mode).await
    }

    /// The same, of which all but the state is in this folder.
    async fn serve_in(&self, folder: &Path, mode: &[&str]) -> (Server, Client) {
        let state = self.path("state");
        let arguments = [mode, &["--state", text(&state)]].concat();
        let server = Server::start(folder, &arguments);
        let mut client = server.client("").await;
        let at = self.folder.path().display();
        for table in ["in", "names.csv"] {
            let name = if table == "in" { "numbers" } else { "names" };
            let sql = format!(
                "CREATE EXTERNAL TABLE {name} STORED AS CSV LOCATION '{at}/{table}' \
                               OPTIONS ('format.has_header' 'true')"
            );
            let sql = sql.replace("/in'", "/in/'");
            client.run(&sql).await.unwrap();
        }
        (server, client)
    }

    fn copy(&self, to: &str) -> String {
        let at = self.path(to);
        format!(
            "COPY (SELECT p.n, p.digest, names.name, unnest([1, 2]) AS half \
             FROM ml_predict((SELECT n FROM numbers WHERE n % 5 <> 0), MODEL slow, DESCRIPTOR(n)) p \
             LEFT JOIN names ON p.n % 7 = names.k) TO '{}/' STORED AS PARQUET",
            at.display()
        )
    }

    /// The staging folder of the one write that is at work.
    fn staging(&self, below: &str) -> PathBuf {
        let entries = fs::read_dir(self.path(below)).unwrap().flatten();
        let staging =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("_forebay-");
        entries.filter(staging).map(|entry| entry.path()).next().unwrap()
    }
}

async fn run(client: &mut Client, statement: &str) -> String {
    let said = client.run(statement).await;
    lines(&said.unwrap_or_else(|status| panic!("{statement}: {status}")))
}

async fn refused(client: &mut Client, statement: &str) -> Status {
    match client.run(statement).await {
        Ok(rows) => panic!("{statement}: {}", lines(&rows)),
        Err(status) => status,
    }
}

/// Submits a statement that can be resumed, in parts of one file each.
async fn submit(client: &mut Client, statement: &str) -> String {
    run(client, "SET forebay.resumable = true").await;
    run(client, "SET forebay.part_bytes = 1").await;
    run(client, &format!("SUBMIT {statement}")).await.trim().to_owned()
}

/// Waits until so many parts of a job are complete.
async fn until_complete(client: &mut Client, staging: &Path, id: &str, parts: usize) {
    // What is being written has a number behind its name.
    let is_whole = |name: OsString| !name.to_string_lossy().contains('#');
    let parts_there = || fs::read_dir(staging.join("parts")).into_iter().flatten().flatten();
    let complete = || parts_there().filter(|part| is_whole(part.file_name())).count();
    while complete() < parts {
        let state = state(client, id).await;
        // Between two parts, the cluster may have queued the next one.
        let is_at_work = ["running", "queued"].contains(&state.as_str());
        assert!(is_at_work, "{}", run(client, "SHOW JOBS").await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn state(client: &mut Client, id: &str) -> String {
    let query = format!("SELECT state FROM forebay.jobs WHERE job_id = '{id}'");
    run(client, &query).await.trim().to_owned()
}

/// What `EXPLAIN RESUME JOB` says of what is kept: parts, files and rows.
async fn kept(client: &mut Client, id: &str) -> (usize, usize, usize) {
    let said = run(client, &format!("EXPLAIN RESUME JOB '{id}'")).await;
    let first: Vec<&str> = said.lines().next().unwrap().split(',').collect();
    assert_eq!(first[0], "kept", "{said}");
    let number = |at: usize| first[at].parse().unwrap();
    (number(1), number(2), number(3))
}

/// Waits for a job that finishes; gives back how many rows it wrote.
async fn finishes(client: &mut Client, id: &str) -> usize {
    let said = run(client, &format!("WAIT FOR JOB '{id}'")).await;
    let columns: Vec<&str> = said.trim().split(',').collect();
    assert_eq!(columns[..2], [id, "finished"], "{said}");
    columns[2].parse().unwrap()
}

fn kill(server: &mut Server) {
    server.signal(Signal::SIGKILL);
    server.process.wait().unwrap();
}

/// What tells a file from others, whatever it is called: its inode, and when that was written, as the number may be
/// another file's later.
type Same = (u64, i64, i64);

fn same(entry: &fs::DirEntry) -> Same {
    let meta = entry.metadata().unwrap();
    (meta.ino(), meta.mtime(), meta.mtime_nsec())
}

/// All data files below a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Same> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('_') {
            found.extend(files(&path));
        } else if name.ends_with(".parquet") {
            found.insert(path, same(&entry));
        }
    }
    found
}

/// Of all files in a staging folder.
fn staged(folder: &Path) -> Vec<Same> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path().is_dir() {
            true => found.extend(staged(&entry.path())),
            false => found.push(same(&entry)),
        }
    }
    found
}

/// The rows of files as texts, in order, read by the Parquet crate alone.
fn rows(folder: &Path) -> Vec<String> {
    let mut all = vec![];
    for file in files(folder).into_keys() {
        let file = fs::File::open(file).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
        for batch in reader {
            let batch = batch.unwrap();
            let text = lines(std::slice::from_ref(&batch));
            all.extend(text.lines().map(str::to_owned));
        }
    }
    all.sort_unstable();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_goes_on_in_another_server_when_its_own_was_killed() {
    for (before, after) in [(EMBEDDED, CLUSTER), (CLUSTER, EMBEDDED), (CLUSTER, CLUSTER)] {
        let stage = Stage::new();
        let (mut server, mut client) = stage.serve(before).await;
        let id = submit(&mut client, &stage.copy("out")).await;
        let staging = stage.staging("");
        until_complete(&mut client, &staging, &id, FILES / 2).await;
        kill(&mut server);
        assert_eq!(files(&stage.path("out")), BTreeMap::new());
        let were_staged = staged(&staging);

        let (_server, mut client) = stage.serve(after).await;
        assert_eq!(state(&mut client, &id).await, "interrupted");
        let waited = refused(&mut client, &format!("WAIT FOR JOB '{id}'")).await;
        assert_eq!(waited.code(), Code::Unavailable, "{waited}");
        assert!(waited.message().contains(&format!("RESUME JOB '{id}'")), "{waited}");
        let (parts, kept_files, kept_rows) = kept(&mut client, &id).await;
        assert!((FILES / 2..FILES).contains(&parts), "{parts}");
        assert!(kept_rows >= parts * (ROWS_OF_FILE - ROWS_OF_FILE / 5 - 1) * 2, "{kept_rows}");
        for option in ["datafusion.execution.batch_size = 7", "forebay.part_bytes = '1MB'"] {
            run(&mut client, &format!("SET {option}")).await;
        }
        assert_eq!(run(&mut client, &format!("RESUME JOB '{id}'")).await, format!("{id}\n"));
        let running = refused(&mut client, &format!("RESUME JOB '{id}'")).await;
        assert_eq!(running.code(), Code::FailedPrecondition, "{running}");
        let written = finishes(&mut client, &id).await;
        let visible = files(&stage.path("out"));
        let same = visible.values().filter(|file| were_staged.contains(file)).count();
        assert_eq!(same, kept_files, "files that were whole are the same ones");
        assert!(!staging.exists());

        let all = (0..ROWS).filter(|n| n % 5 != 0).count() * 2;
        if before == EMBEDDED {
            // What was left was one part, and that one job of the cluster: through none of its stages went more
            // than the rows that were missing.
            let jobs = "forebay.jobs WHERE NOT detached AND name LIKE 'COPY%'";
            assert_eq!(run(&mut client, &format!("SELECT count(*) FROM {jobs}")).await, "1\n");
            let most = format!(
                "SELECT max(rows) FROM forebay.stages WHERE job_id IN (SELECT job_id FROM {jobs})"
            );
            let most: usize = run(&mut client, &most).await.trim().parse().unwrap();
            assert!((1..=all - kept_rows).contains(&most), "{most} of {all}, {kept_rows} kept");
        }

        // An undisturbed one writes the same.
        run(&mut client, "SET forebay.resumable = false").await;
        run(&mut client, &stage.copy("undisturbed")).await;
        let expected = rows(&stage.path("undisturbed"));
        assert_eq!(expected.len(), all);
        assert!(rows(&stage.path("out")) == expected, "{before:?} {after:?}");
        assert_eq!(written, expected.len());
        let over = refused(&mut client, &format!("RESUME JOB '{id}'")).await;
        assert_eq!(over.code(), Code::FailedPrecondition, "{over}");
        assert!(over.message().contains("has finished"), "{over}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delta_table_gets_the_rows_of_a_killed_job_once() {
    let stage = Stage::new();
    let at = stage.path("table");
    let table = format!(
        "CREATE EXTERNAL TABLE target (n BIGINT, odd INT) STORED AS DELTATABLE PARTITIONED BY (odd) \
         LOCATION '{}'",
        at.display()
    );
    let (mut server, mut client) = stage.serve(EMBEDDED).await;
    run(&mut client, &table).await;
    run(&mut client, "INSERT INTO target VALUES (-1, 1)").await;
    let insert = "INSERT INTO target SELECT digest, CAST(n % 2 AS INT) \
                  FROM ml_predict(TABLE numbers, MODEL slow, DESCRIPTOR(n))";
    let id = submit(&mut client, insert).await;
    let staging = stage.staging("table");
    until_complete(&mut client, &staging, &id, FILES / 2).await;
    kill(&mut server);
    let (_server, mut client) = stage.serve(CLUSTER).await;
    // Without the table nobody knows what it is to be written to.
    let missing = refused(&mut client, &format!("RESUME JOB '{id}'")).await;
    assert!(missing.message().contains("target") && missing.message().contains(&id), "{missing}");
    run(&mut client, &table).await;
    let count = "SELECT count(*), count(DISTINCT n), sum(odd) FROM target";
    assert_eq!(run(&mut client, count).await, "1,1,1\n");
    run(&mut client, &format!("RESUME JOB '{id}'")).await;
    assert_eq!(finishes(&mut client, &id).await, ROWS);
    let expected = format!("{},{},{}\n", ROWS + 1, ROWS + 1, ROWS / 2 + 1);
    assert_eq!(run(&mut client, count).await, expected);
    let entries = fs::read_dir(at.join("_delta_log")).unwrap().flatten();
    let entries = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "json"));
    // It was created, and written to twice.
    assert_eq!(entries.count(), 3);
    assert!(!staging.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_changed_is_named_and_made_anew_if_that_is_said() {
    let stage = Stage::new();
    let (_server, mut client) = stage.serve(EMBEDDED).await;
    let id = submit(&mut client, &stage.copy("out")).await;
    let staging = stage.staging("");
    until_complete(&mut client, &staging, &id, FILES / 2).await;
    assert_eq!(run(&mut client, &format!("CANCEL JOB '{id}'")).await, format!("{id},canceled\n"));
    let (parts, ..) = kept(&mut client, &id).await;
    assert!(parts >= FILES / 2);
    // One that is done, whichever was the first of them.
    stage.write_input(0, 1_000_000);
    stage.write_input(1, 1_000_000);
    run(&mut client, "SET datafusion.execution.time_zone = '+01:00'").await;
    let resume = format!("RESUME JOB '{id}'");
    let changed = refused(&mut client, &resume).await;
    for said in ["in/0.csv' has changed", "in/1.csv' has changed", "time_zone", "ANEW"] {
        assert!(changed.message().contains(said), "{said}: {changed}");
    }
    run(&mut client, "RESET datafusion.execution.time_zone").await;
    let changed = refused(&mut client, &resume).await;
    assert!(!changed.message().contains("time_zone"), "{changed}");
    let explained = run(&mut client, &format!("EXPLAIN {resume} ANEW")).await;
    assert!(explained.contains("made anew") && explained.contains("in/0.csv"), "{explained}");
    let (kept_parts, kept_files, _) = kept(&mut client, &id).await;
    assert!((1..parts).contains(&kept_parts), "{kept_parts} of {parts}: {explained}");
    let were_staged = staged(&staging);
    run(&mut client, &format!("{resume} ANEW")).await;
    finishes(&mut client, &id).await;
    let visible = files(&stage.path("out"));
    let same = visible.values().filter(|file| were_staged.contains(file)).count();
    assert_eq!(same, kept_files);
    run(&mut client, "SET forebay.resumable = false").await;
    run(&mut client, &stage.copy("undisturbed")).await;
    let (found, expected) = (rows(&stage.path("out")), rows(&stage.path("undisturbed")));
    assert!(found == expected);
    assert!(found.iter().any(|row| row.starts_with("1000001,")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_model_is_named_and_what_is_forgotten_is_gone() {
    let stage = Stage::new();
    let (mut server, mut client) = stage.serve(EMBEDDED).await;
    let id = submit(&mut client, &stage.copy("out")).await;
    let staging = stage.staging("");
    until_complete(&mut client, &staging, &id, 1).await;
    kill(&mut server);
    let (_server, mut client) = stage.serve(EMBEDDED).await;
    let other = stage.path("other");
    fs::create_dir(&other).unwrap();
    let package = fs::read_to_string(stage.path("slow/model.toml")).unwrap();
    fs::write(other.join("model.toml"), package.replace("= 100", "= 101")).unwrap();
    let sql = format!("CREATE TEMPORARY MODEL slow LOCATION '{}'", other.display());
    run(&mut client, &sql.replace("CREATE", "CREATE OR REPLACE")).await;
    let changed = refused(&mut client, &format!("RESUME JOB '{id}'")).await;
    assert!(changed.message().contains("model slow was 'package"), "{changed}");
    // The side that all parts read is read in another way.
    run(&mut client, "DROP TABLE names").await;
    let sql = format!(
        "CREATE EXTERNAL TABLE names STORED AS CSV LOCATION '{}' \
         OPTIONS ('format.has_header' 'true', 'format.comment' '#')",
        stage.path("names.csv").display()
    );
    run(&mut client, &sql).await;
    let changed = refused(&mut client, &format!("RESUME JOB '{id}'")).await;
    for said in ["how its files are read", "comment=Some('#')"] {
        assert!(changed.message().contains(said), "{said}: {changed}");
    }
    let forgotten = format!("{id},interrupted\n");
    assert_eq!(run(&mut client, &format!("FORGET JOB '{id}'")).await, forgotten);
    assert!(!staging.exists());
    let unknown = refused(&mut client, &format!("RESUME JOB '{id}'")).await;
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
    assert!(fs::read_dir(stage.path("state/jobs")).unwrap().next().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregate_that_is_the_same_for_all_parts_is_not_refused() {
    let stage = Stage::new();
    let (_server, mut client) = stage.serve(EMBEDDED).await;
    let at = stage.path("out");
    let to = format!("TO '{}/' STORED AS PARQUET", at.display());
    let query = "SELECT n, c FROM numbers JOIN (SELECT k, count(*) AS c FROM names GROUP BY k) ON n % 7 = k \
                 WHERE n > (SELECT min(k) FROM names)";
    let id = submit(&mut client, &format!("COPY ({query}) {to}")).await;
    assert_eq!(finishes(&mut client, &id).await, ROWS - 1);
    assert_eq!(rows(&at).len(), ROWS - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_one_array_are_read_as_they_are_and_options_stay_the_same() {
    let stage = Stage::new();
    let (_server, mut client) = stage.serve(EMBEDDED).await;
    let objects: Vec<String> = (0..ROWS).map(|n| format!("{{\"n\": {n}}}")).collect();
    fs::write(stage.path("array.json"), format!("[{}]", objects.join(",\n"))).unwrap();
    let table = format!(
        "CREATE EXTERNAL TABLE listed (n BIGINT) STORED AS JSON LOCATION '{}' \
         OPTIONS ('format.newline_delimited' 'false')",
        stage.path("array.json").display()
    );
    run(&mut client, &table).await;
    // The options are in another order each time that the statement is planned.
    let copy = format!(
        "COPY (SELECT n, digest FROM ml_predict(TABLE listed, MODEL slow, DESCRIPTOR(n))) TO '{}/' \
         STORED AS PARQUET OPTIONS ('format.compression' 'snappy', 'format.max_row_group_size' '7', \
         'format.dictionary_enabled' 'false')",
        stage.path("out").display()
    );
    let id = submit(&mut client, &copy).await;
    run(&mut client, &format!("CANCEL JOB '{id}'")).await;
    for _ in 0..5 {
        let explained = run(&mut client, &format!("EXPLAIN RESUME JOB '{id}'")).await;
        assert!(!explained.contains("differs"), "{explained}");
    }
    run(&mut client, &format!("RESUME JOB '{id}'")).await;
    assert_eq!(finishes(&mut client, &id).await, ROWS);
    assert_eq!(rows(&stage.path("out")).len(), ROWS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_can_be_resumed_is_by_those_who_may() {
    let stage = Stage::new();
    let users = stage.path("users");
    let tokens = ["ann", "bob"].map(|name| user(&["token", name, "--role", "write"], &users, ""));
    let state = stage.path("state");
    let root = stage.folder.path();
    let with_users = ["--embedded", "--users", text(&users), "--root", text(root)];
    let server = Server::start(root, &[&with_users[..], &["--state", text(&state)]].concat());
    let mut ann = server.client(&format!("Bearer {}", tokens[0])).await;
    let mut bob = server.client(&format!("Bearer {}", tokens[1])).await;
    let sql = format!(
        "CREATE EXTERNAL TABLE numbers STORED AS CSV LOCATION '{}/' \
                       OPTIONS ('format.has_header' 'true')",
        stage.path("in").display()
    );
    run(&mut ann, &sql).await;
    let copy = format!(
        "COPY (SELECT digest FROM ml_predict(TABLE numbers, MODEL slow, DESCRIPTOR(n))) \
                        TO '{}/' STORED AS CSV PARTITIONED BY (digest)",
        stage.path("out").display()
    );
    // Its only column names folders: refused as without parts.
    let refusal = format!("SUBMIT {copy}");
    run(&mut ann, "SET forebay.resumable = true").await;
    let status = refused(&mut ann, &refusal).await;
    assert!(status.message().contains("names all columns"), "{status}");
    let copy =
        copy.replace("SELECT digest", "SELECT n, digest").replace(" PARTITIONED BY (digest)", "");
    let id = submit(&mut ann, &copy).await;
    for statement in ["RESUME JOB", "EXPLAIN RESUME JOB"] {
        let unknown = refused(&mut bob, &format!("{statement} '{id}'")).await;
        assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
        let runs = refused(&mut ann, &format!("{statement} '{id}'")).await;
        assert_eq!(runs.code(), Code::FailedPrecondition, "{runs}");
        assert!(runs.message().contains("is running"), "{runs}");
        let nobodys = refused(&mut ann, &format!("{statement} '0'")).await;
        assert_eq!(nobodys.code(), Code::NotFound, "{nobodys}");
    }
    run(&mut ann, &format!("CANCEL JOB '{id}'")).await;
    run(&mut ann, &format!("RESUME JOB '{id}'")).await;
    assert_eq!(finishes(&mut ann, &id).await, ROWS);
    run(&mut ann, "SET forebay.resumable = false").await;
    let plain = run(&mut ann, "SUBMIT SELECT n / 0 FROM numbers").await;
    let plain = plain.trim();
    refused(&mut ann, &format!("WAIT FOR JOB '{plain}'")).await;
    let status = refused(&mut ann, &format!("RESUME JOB '{plain}'")).await;
    assert!(status.message().contains("without forebay.resumable"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_state_nothing_can_be_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), EMBEDDED);
    let mut client = server.client("").await;
    run(&mut client, "SET forebay.resumable = true").await;
    let copy = format!("SUBMIT COPY t TO '{}/out/' STORED AS CSV", folder.path().display());
    for statement in [copy.as_str(), "RESUME JOB '0A'"] {
        let status = refused(&mut client, statement).await;
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("--state DIR"), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_files_are_cut_and_all_of_their_rows_come_once() {
    let stage = Stage::new();
    let (_server, mut client) = stage.serve(EMBEDDED).await;
    // No format makes them small.
    let mut numbers: Vec<u64> =
        (0..200_000_u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 4).collect();
    let text: String = numbers.iter().map(|n| format!("{n}\n")).collect();
    fs::write(stage.path("big.csv"), format!("v\n{text}")).unwrap();
    numbers.sort_unstable();
    let at = stage.folder.path().display();
    for (format, of_table, of_copy) in [
        ("csv", "('format.has_header' 'true')", ""),
        ("json", "", ""),
        ("parquet", "", "OPTIONS ('format.max_row_group_size' '10000')"),
        ("arrow", "", ""),
    ] {
        if format != "csv" {
            run(&mut client, "SET forebay.resumable = false").await;
            let copy = format!("COPY big_csv TO '{at}/big.{format}' STORED AS {format} {of_copy}");
            run(&mut client, &copy).await;
        }
        let options = if of_table.is_empty() { "" } else { "OPTIONS " };
        let table = format!(
            "CREATE EXTERNAL TABLE big_{format} (v BIGINT) STORED AS {format} \
             LOCATION '{at}/big.{format}' {options}{of_table}"
        );
        run(&mut client, &table).await;
        let copy =
            format!("COPY (SELECT v FROM big_{format}) TO '{at}/out_{format}/' STORED AS PARQUET");
        let id = submit(&mut client, &copy).await;
        assert_eq!(finishes(&mut client, &id).await, numbers.len(), "{format}");
        let out = stage.path(&format!("out_{format}"));
        let mut found: Vec<u64> = rows(&out).iter().map(|row| row.parse().unwrap()).collect();
        found.sort_unstable();
        assert!(found == numbers, "{format}: {} rows, or others", found.len());
        // A part that no row begins in has no file.
        assert!(files(&out).len() > 1, "{format}: {} files", files(&out).len());
    }
}
