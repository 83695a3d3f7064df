//! Detached jobs: they run on when their client is gone, are waited for, canceled and forgotten, and their
//! rows are there for a while.

use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;
use tonic::{Code, Status};

use super::process::{Client, ROWS, Server, lines, rest, text, user};

const EMBEDDED: &[&str] = &["--embedded"];
const CLUSTER: &[&str] = &["--worker", "--bind", "127.0.0.1:0"];

/// It would take minutes.
const LONG: &str = "SELECT digest FROM ml_predict(TABLE t, MODEL slow, DESCRIPTOR(n))";

/// Submits a statement; gives back the id of its job.
async fn submit(client: &mut Client, statement: &str) -> Result<String, Status> {
    let told = lines(&client.run(&format!("SUBMIT {statement}")).await?);
    let id = told.strip_suffix('\n').unwrap();
    assert!(!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{told}");
    Ok(id.to_owned())
}

async fn wait(client: &mut Client, id: &str) -> Result<String, Status> {
    Ok(lines(&client.run(&format!("WAIT FOR JOB '{id}'")).await?))
}

/// Waits for a job that finishes, and has so many rows.
async fn finishes(client: &mut Client, id: &str, rows: usize) {
    let told = wait(client, id).await.unwrap();
    assert!(told.starts_with(&format!("{id},finished,{rows},")), "{told}");
}

async fn rows(client: &mut Client, query: &str) -> String {
    let found = client.run(query).await;
    lines(&found.unwrap_or_else(|status| panic!("{query}: {status}")))
}

async fn refused(client: &mut Client, query: &str) -> Status {
    match client.run(query).await {
        Ok(rows) => panic!("{query}: {}", lines(&rows)),
        Err(status) => status,
    }
}

/// What `forebay.jobs` says of a job, in one row.
async fn of_job(client: &mut Client, columns: &str, id: &str) -> String {
    rows(client, &format!("SELECT {columns} FROM forebay.jobs WHERE job_id = '{id}'")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_runs_on_without_its_session_and_its_rows_are_kept() {
    for mode in [EMBEDDED, CLUSTER] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path(), mode);
        let mut client = server.client("").await;
        // What the job takes of its session: an option, and a model that nobody else knows.
        client.run("CREATE SCHEMA mine").await.unwrap();
        client.run("CREATE TABLE mine.few AS SELECT n FROM t WHERE n < 100").await.unwrap();
        client.run("SET datafusion.catalog.default_schema = 'mine'").await.unwrap();
        let package = folder.path().join("slow");
        let model = format!("CREATE TEMPORARY MODEL own LOCATION '{}'", package.display());
        client.run(&model).await.unwrap();
        let query = "SELECT n, digest IS NOT NULL AS ok FROM ml_predict(TABLE few, MODEL own, DESCRIPTOR(n))";
        let id = submit(&mut client, query).await.unwrap();
        client.act("CloseSession").await.unwrap();
        drop(client);
        let mut client = server.client("").await;
        let no_option = refused(&mut client, "SELECT n FROM few").await;
        assert_eq!(no_option.code(), Code::InvalidArgument, "{no_option}");
        finishes(&mut client, &id, 100).await;
        finishes(&mut client, &id, 100).await;
        let result =
            format!("SELECT count(*), min(n), max(n), bool_and(ok) FROM job_result('{id}')");
        for _ in 0..2 {
            assert_eq!(rows(&mut client, &result).await, "100,0,99,true\n", "{mode:?}");
        }
        // One job, of which the cluster knows more.
        let on_cluster = mode == CLUSTER;
        let columns = "state, rows, detached, started <= ended, ended <= now(), stages > 0, error";
        let told = of_job(&mut client, columns, &id).await;
        assert_eq!(told, format!("finished,100,true,true,true,{on_cluster},\n"), "{mode:?}");
        let named = "SELECT count(*) FROM forebay.jobs WHERE name LIKE '%''own''%'";
        assert_eq!(rows(&mut client, named).await, "1\n", "{mode:?}");
        if on_cluster {
            let tasks = format!("SELECT count(*) > 0 FROM forebay.tasks WHERE job_id = '{id}'");
            assert_eq!(rows(&mut client, &tasks).await, "true\n");
        }
        let shown = rows(&mut client, "SHOW JOBS").await;
        assert!(shown.contains(&id), "{mode:?}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_canceled_by_those_who_say_so_and_by_nobody_who_stops_waiting() {
    for mode in [EMBEDDED, CLUSTER] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path(), mode);
        let (mut client, mut other) = (server.client("").await, server.client("").await);
        let id = submit(&mut client, LONG).await.unwrap();
        while mode == CLUSTER && of_job(&mut client, "tasks_running > 0", &id).await != "true\n" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(other.begin(&format!("WAIT FOR JOB '{id}'")).await.unwrap());
        other.act("CloseSession").await.unwrap();
        assert_eq!(of_job(&mut client, "state, ended", &id).await, "running,\n", "{mode:?}");
        for (statement, said) in [
            (format!("SELECT * FROM job_result('{id}')"), "has no result yet"),
            (format!("FORGET JOB '{id}'"), "cannot be forgotten"),
        ] {
            let early = refused(&mut client, &statement).await;
            assert_eq!(early.code(), Code::FailedPrecondition, "{early}");
            assert!(early.message().contains(said) && early.message().contains(&id), "{early}");
        }
        let cancel = format!("CANCEL JOB '{id}'");
        let (waited, canceled) = futures::join!(wait(&mut other, &id), rows(&mut client, &cancel));
        assert_eq!(canceled, format!("{id},canceled\n"), "{mode:?}");
        let waited = waited.unwrap_err();
        let said = format!("job {id}: it was canceled by 'anonymous'");
        assert_eq!((waited.code(), waited.message()), (Code::Cancelled, said.as_str()), "{mode:?}");
        let result = refused(&mut client, &format!("SELECT * FROM job_result('{id}')")).await;
        assert_eq!((result.code(), result.message()), (Code::Cancelled, said.as_str()), "{mode:?}");
        let again = refused(&mut client, &cancel).await;
        assert_eq!(again.code(), Code::FailedPrecondition, "{again}");
        assert!(again.message().contains(&format!("job '{id}' is over")), "{again}");
        assert_eq!(of_job(&mut client, "state", &id).await, "canceled\n");
        // Its tasks end with it.
        let at_work = format!(
            "SELECT count(*) FROM forebay.tasks WHERE job_id = '{id}' AND state IN ('running', 'draining')"
        );
        while mode == CLUSTER && rows(&mut client, &at_work).await != "0\n" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_is_told_how_far_a_job_is() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), EMBEDDED);
    let mut client = server.client("").await;
    client.run("CREATE TABLE many AS SELECT n FROM t").await.unwrap();
    let id = submit(&mut client, &LONG.replace("TABLE t", "TABLE many")).await.unwrap();
    let mut waiting = server.client("").await;
    let _waits = waiting.begin(&format!("WAIT FOR JOB '{id}'")).await.unwrap();
    let done = loop {
        let told = String::from_utf8(waiting.act("forebay.progress").await.unwrap()).unwrap();
        match told.as_str() {
            "" => tokio::time::sleep(Duration::from_millis(10)).await,
            told => break told.parse::<f64>().unwrap(),
        }
    };
    assert!((0.0..1.0).contains(&done), "{done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_told_at_once_or_kept_with_its_kind() {
    for mode in [EMBEDDED, CLUSTER] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path(), mode);
        let mut client = server.client("").await;
        for (statement, said) in [
            ("SELECT nothing FROM t", "nothing"),
            ("SET forebay.weight = 3", "SUBMIT takes a query, COPY, INSERT"),
            ("CREATE VIEW v AS SELECT 1", "SUBMIT takes a query, COPY, INSERT"),
            ("SHOW MODELS", "SUBMIT takes a query, COPY, INSERT"),
            ("CREATE TABLE t AS SELECT 1", "'t' already exists"),
        ] {
            let wrong = refused(&mut client, &format!("SUBMIT {statement}")).await;
            assert_eq!(wrong.code(), Code::InvalidArgument, "{mode:?}: {wrong}");
            assert!(wrong.message().contains(said), "{mode:?}: {wrong}");
        }
        let none = "SELECT count(*) FROM forebay.jobs WHERE detached";
        assert_eq!(rows(&mut client, none).await, "0\n", "{mode:?}");
        for statement in [
            "CANCEL JOB '0A'",
            "WAIT FOR JOB '0A'",
            "FORGET JOB '0A'",
            "SELECT * FROM job_result('0A')",
        ] {
            let unknown = refused(&mut client, statement).await;
            assert_eq!(unknown.code(), Code::NotFound, "{statement}: {unknown}");
            for said in ["no detached job '0A'", "--keep-jobs", "SHOW JOBS"] {
                assert!(unknown.message().contains(said), "{statement}: {unknown}");
            }
        }
        let fragile = std::fs::canonicalize("tests/models/fragile").unwrap();
        let fragile = format!("CREATE MODEL fragile LOCATION '{}'", fragile.display());
        client.run(&fragile).await.unwrap();
        for (statement, code, said) in [
            ("SELECT 1 / (n - 5) FROM t", Code::InvalidArgument, "Divide by zero"),
            (
                "SELECT ml_predict(MODEL fragile, CASE n WHEN 7 THEN 'poison' ELSE 'good' END) FROM t",
                Code::FailedPrecondition,
                "fragile",
            ),
        ] {
            let id = submit(&mut client, statement).await.unwrap();
            let told = wait(&mut client, &id).await.unwrap_err();
            assert_eq!(told.code(), code, "{mode:?}: {told}");
            assert!(told.message().starts_with(&format!("job {id}: ")), "{told}");
            assert!(told.message().contains(said), "{told}");
            let result = refused(&mut client, &format!("SELECT * FROM job_result('{id}')")).await;
            assert_eq!((result.code(), result.message()), (told.code(), told.message()));
            let state = of_job(&mut client, "state, error IS NOT NULL", &id).await;
            assert_eq!(state, "failed,true\n", "{mode:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_write_files_and_tables() {
    for mode in [EMBEDDED, CLUSTER] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path(), mode);
        let mut client = server.client("").await;
        client.run("CREATE TABLE kept (n BIGINT)").await.unwrap();
        let out = folder.path().join("out");
        let copy = format!("COPY (SELECT n FROM t) TO '{}/' STORED AS PARQUET", out.display());
        let mut ids = vec![];
        for statement in [copy.as_str(), "INSERT INTO kept SELECT n FROM t"] {
            ids.push(submit(&mut client, statement).await.unwrap());
        }
        let made = submit(&mut client, "CREATE TABLE made AS SELECT n FROM t").await.unwrap();
        client.act("CloseSession").await.unwrap();
        let mut client = server.client("").await;
        for id in &ids {
            finishes(&mut client, id, ROWS).await;
            let result = format!("SELECT * FROM job_result('{id}')");
            assert_eq!(rows(&mut client, &result).await, format!("{ROWS}\n"), "{mode:?}");
        }
        finishes(&mut client, &made, 0).await;
        let read = format!(
            "CREATE EXTERNAL TABLE written STORED AS PARQUET LOCATION '{}/'",
            out.display()
        );
        client.run(&read).await.unwrap();
        for table in ["written", "kept", "made"] {
            let counted = format!("SELECT count(DISTINCT n), count(*) FROM {table}");
            let expected = format!("{ROWS},{ROWS}\n");
            assert_eq!(rows(&mut client, &counted).await, expected, "{mode:?}: {table}");
        }
    }
}

/// A server that asks who its clients are, and what two readers and an admin show it.
fn with_users(arguments: &[&str]) -> (TempDir, Server, [String; 3]) {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users.toml");
    let tokens = [("rita", "read"), ("will", "read"), ("ada", "admin")].map(|(name, role)| {
        format!("Bearer {}", user(&["token", name, "--role", role], &users, ""))
    });
    let all = [&["--embedded", "--users", text(&users)], arguments].concat();
    let server = Server::start(folder.path(), &all);
    (folder, server, tokens)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_its_users_and_the_admins() {
    let (_folder, server, [rita, will, ada]) = with_users(&[]);
    let mut rita = server.client(&rita).await;
    let (mut will, mut ada) = (server.client(&will).await, server.client(&ada).await);
    let denied = refused(&mut rita, "SUBMIT COPY t TO '/tmp/t.csv'").await;
    assert_eq!(denied.code(), Code::PermissionDenied, "{denied}");
    let done = submit(&mut rita, "SELECT max(n) AS most FROM t").await.unwrap();
    finishes(&mut rita, &done, 1).await;
    let running = submit(&mut rita, LONG).await.unwrap();
    for id in [&done, &running] {
        for statement in [
            format!("CANCEL JOB '{id}'"),
            format!("WAIT FOR JOB '{id}'"),
            format!("FORGET JOB '{id}'"),
            format!("SELECT * FROM job_result('{id}')"),
        ] {
            let unknown = refused(&mut will, &statement).await;
            assert_eq!(unknown.code(), Code::NotFound, "{statement}: {unknown}");
            // As one that never was.
            let never = refused(&mut will, &statement.replace(id.as_str(), "0A")).await;
            assert_eq!(
                unknown.message().replace(id.as_str(), "0A"),
                never.message(),
                "{statement}"
            );
        }
    }
    let owners = "SELECT owner, count(*) FROM forebay.jobs GROUP BY owner";
    assert_eq!(rows(&mut will, owners).await, "");
    assert_eq!(rows(&mut rita, owners).await, "rita,2\n");
    assert_eq!(rows(&mut ada, owners).await, "rita,2\n");
    let result = format!("SELECT * FROM job_result('{done}')");
    assert_eq!(rows(&mut ada, &result).await, format!("{}\n", ROWS - 1));
    let canceled = rows(&mut ada, &format!("CANCEL JOB '{running}'")).await;
    assert_eq!(canceled, format!("{running},canceled\n"));
    let told = wait(&mut rita, &running).await.unwrap_err();
    assert_eq!(told.message(), format!("job {running}: it was canceled by 'ada'"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_user_leaves_jobs_to_the_others() {
    let (_folder, server, [rita, will, ada]) = with_users(&["--max-jobs", "2"]);
    let mut rita = server.client(&rita).await;
    let (mut will, mut ada) = (server.client(&will).await, server.client(&ada).await);
    let first = submit(&mut rita, LONG).await.unwrap();
    let refused = submit(&mut rita, LONG).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().starts_with("'rita' runs 1 detached jobs"), "{refused}");
    assert!(refused.message().contains("--max-jobs-per-user"), "{refused}");
    submit(&mut will, LONG).await.unwrap();
    let refused = submit(&mut ada, LONG).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().starts_with("this server runs 2 detached jobs"), "{refused}");
    rows(&mut rita, &format!("CANCEL JOB '{first}'")).await;
    submit(&mut ada, LONG).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_have_room_and_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [EMBEDDED, &["--job-results-limit", "300kB"]].concat();
    let server = Server::start(folder.path(), &arguments);
    let mut client = server.client("").await;
    // Bytes that nothing compresses: 32 of each row.
    let digests = |rows: usize| {
        format!(
            "SELECT arrow_cast(sha256(CAST(n AS VARCHAR)), 'Binary') AS d FROM t WHERE n < {rows}"
        )
    };
    let large = submit(&mut client, &digests(ROWS)).await.unwrap();
    let told = wait(&mut client, &large).await.unwrap_err();
    assert_eq!(told.code(), Code::ResourceExhausted, "{told}");
    for said in [large.as_str(), "300000 bytes", "--job-results-limit", "COPY", "FORGET JOB"] {
        assert!(told.message().contains(said), "{said}: {told}");
    }
    // What failed takes no room; two that fit by themselves do not fit together.
    let fits = submit(&mut client, &digests(6_000)).await.unwrap();
    finishes(&mut client, &fits, 6_000).await;
    let other = submit(&mut client, &digests(6_000)).await.unwrap();
    assert_eq!(wait(&mut client, &other).await.unwrap_err().code(), Code::ResourceExhausted);
    let result = format!("SELECT count(DISTINCT d) FROM job_result('{fits}')");
    assert_eq!(rows(&mut client, &result).await, "6000\n");
    client.run(&format!("CREATE VIEW seen AS {result}")).await.unwrap();
    let forgotten = rows(&mut client, &format!("FORGET JOB '{fits}'")).await;
    assert_eq!(forgotten, format!("{fits},finished\n"));
    assert_eq!(refused(&mut client, &result).await.code(), Code::NotFound);
    assert_eq!(refused(&mut client, "SELECT * FROM seen").await.code(), Code::NotFound);
    let again = submit(&mut client, &digests(6_000)).await.unwrap();
    finishes(&mut client, &again, 6_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_forgotten_after_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[EMBEDDED, &["--keep-jobs", "1"]].concat());
    let mut client = server.client("").await;
    let running = submit(&mut client, LONG).await.unwrap();
    let id = submit(&mut client, "SELECT max(n) FROM t").await.unwrap();
    let unknown = loop {
        match wait(&mut client, &id).await {
            Ok(told) => assert!(told.contains("finished"), "{told}"),
            Err(status) => break status,
        }
    };
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
    assert!(unknown.message().contains("after 1 s (--keep-jobs of the server)"), "{unknown}");
    // Its time begins at its end.
    assert_eq!(of_job(&mut client, "state", &id).await, "");
    assert_eq!(of_job(&mut client, "state", &running).await, "running\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_told_to_end_waits_for_no_job() {
    for mode in [EMBEDDED, CLUSTER] {
        let folder = tempfile::tempdir().unwrap();
        // It would wait as long for queries.
        let arguments = [mode, &["--drain-limit", "86400"]].concat();
        let mut server = Server::start(folder.path(), &arguments);
        let (mut client, mut other) = (server.client("").await, server.client("").await);
        let id = submit(&mut client, LONG).await.unwrap();
        let waits = other.begin(&format!("WAIT FOR JOB '{id}'")).await.unwrap();
        server.signal(Signal::SIGTERM);
        let told = rest(waits).await.unwrap_err();
        assert_eq!(told.code(), Code::Unavailable, "{mode:?}: {told}");
        let said = format!("job {id}: the server ended before it did; submit it again");
        assert_eq!(told.message(), said, "{mode:?}");
        let status = server.process.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{mode:?}: {}", server.log());
    }
}
