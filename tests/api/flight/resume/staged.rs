//! What models gave below a shuffle is staged and kept, and the rest made of it.

use std::fs;

use forebay_testkit::disk::SmallDisk;
use tonic::Code;

use super::{
    CLUSTER, Client, EMBEDDED, FILES, ROWS, Stage, files, finishes, kept, kill, refused, rows, run,
    submit, until_complete,
};

pub(super) const MODEL: &str =
    "ml_predict((SELECT n FROM numbers WHERE n % 8 = 0), MODEL slow, DESCRIPTOR(n))";

/// Rows that this gives.
pub(super) const MODEL_ROWS: usize = ROWS / 8;

pub(super) fn copy(stage: &Stage, query: &str, to: &str) -> String {
    format!("COPY ({query}) TO '{}/' STORED AS PARQUET", stage.path(to).display())
}

pub(super) async fn stages_models(client: &mut Client) {
    run(client, "SET forebay.stage_models = true").await;
}

/// What the last rows of `EXPLAIN RESUME JOB` say of the rest: `kept` or `to run`.
async fn of_rest(client: &mut Client, id: &str, anew: &str) -> String {
    let said = run(client, &format!("EXPLAIN RESUME JOB '{id}'{anew}")).await;
    let rest = said.lines().find(|line| line.contains("the rest of the statement"));
    rest.unwrap_or_else(|| panic!("{said}")).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_models_gave_below_a_group_by_is_not_computed_again() {
    for (before, after) in [(EMBEDDED, CLUSTER), (CLUSTER, EMBEDDED)] {
        let stage = Stage::new();
        let query = "SELECT names.name, count(*) AS c, sum(p.digest) AS s \
                     FROM ml_predict((SELECT n FROM numbers WHERE n % 5 <> 0), MODEL slow, DESCRIPTOR(n)) p \
                     JOIN names ON p.n % 7 = names.k GROUP BY names.name ORDER BY c DESC, s";
        let copy = |to| copy(&stage, query, to);
        let (mut server, mut client) = stage.serve(before).await;
        run(&mut client, "SET forebay.resumable = true").await;
        let status = refused(&mut client, &format!("SUBMIT {}", copy("out"))).await;
        assert!(status.message().contains("SET forebay.stage_models = true"), "{status}");
        stages_models(&mut client).await;
        let id = submit(&mut client, &copy("out")).await;
        let staging = stage.staging("");
        until_complete(&mut client, &staging, &id, FILES / 2).await;
        kill(&mut server);
        assert!(files(&stage.path("out")).is_empty());

        let (_server, mut client) = stage.serve(after).await;
        let (parts, _, kept_rows) = kept(&mut client, &id).await;
        assert!((FILES / 2..FILES).contains(&parts), "{parts}");
        assert!(of_rest(&mut client, &id, "").await.starts_with("to run,"));
        let said = run(&mut client, &format!("EXPLAIN RESUME JOB '{id}'")).await;
        assert!(said.contains("rows with what slow gave"), "{said}");
        run(&mut client, "SET datafusion.execution.batch_size = 7").await;
        run(&mut client, &format!("RESUME JOB '{id}'")).await;
        assert_eq!(finishes(&mut client, &id).await, 7);
        assert!(!staging.exists());
        assert!(fs::read_dir(stage.path("state/jobs")).unwrap().next().is_none());
        if after == CLUSTER {
            let all = (0..ROWS).filter(|n| n % 5 != 0).count();
            let computed =
                "SELECT sum(rows) FROM forebay.stages WHERE name LIKE '%Inference(slow)%'";
            let computed: usize = run(&mut client, computed).await.trim().parse().unwrap();
            assert_eq!(computed, all - kept_rows);
        }

        run(&mut client, "SET forebay.resumable = false").await;
        run(&mut client, &copy("undisturbed")).await;
        assert_eq!(rows(&stage.path("out")), rows(&stage.path("undisturbed")), "{before:?}");
        assert_eq!(rows(&stage.path("out")).len(), 7);
    }
}

/// Queries with a model below what depends on all rows.
fn queries() -> Vec<String> {
    vec![
        format!("SELECT n % 3 AS k, count(*) AS c, max(digest) AS m FROM {MODEL} GROUP BY 1"),
        format!("SELECT DISTINCT n % 5 AS k, digest % 2 AS d FROM {MODEL}"),
        format!("SELECT n, digest FROM {MODEL} ORDER BY digest DESC"),
        format!("SELECT n, digest FROM {MODEL} ORDER BY digest LIMIT 7 OFFSET 2"),
        format!(
            "SELECT n, row_number() OVER (PARTITION BY n % 2 ORDER BY digest) AS r FROM {MODEL}"
        ),
        format!("SELECT p.digest, names.name FROM names FULL JOIN {MODEL} p ON p.n / 8 = k + 20"),
        format!(
            "SELECT numbers.n, p.digest FROM numbers LEFT JOIN {MODEL} p ON p.n = numbers.n + 1"
        ),
        // No column of it is needed.
        format!("SELECT count(*) AS c FROM {MODEL} WHERE digest % 2 = 0"),
        // Two columns of one name.
        format!(
            "SELECT max(a.n) AS x, max(b.n) AS y, sum(a.digest) AS s FROM {MODEL} a \
             JOIN (SELECT n FROM numbers WHERE n % 16 = 0) b ON a.n = b.n"
        ),
        format!(
            "SELECT d, count(*) AS c FROM (SELECT digest % 3 AS d FROM {MODEL} UNION ALL \
             SELECT digest % 4 FROM ml_predict((SELECT k AS n FROM names), MODEL slow, DESCRIPTOR(n))) GROUP BY d"
        ),
        // Texts that are numbers in a dictionary.
        format!(
            "SELECT t, count(*) AS c FROM (SELECT arrow_cast('t' || (n % 3), 'Dictionary(Int8, Utf8)') AS t, digest \
             FROM {MODEL}) WHERE digest <> 0 GROUP BY t"
        ),
        // Several branches with a model, of which each is staged.
        format!(
            "SELECT a.n % 3 AS k, count(*) AS c, max(b.digest) AS m FROM {MODEL} a JOIN {MODEL} b \
             ON a.digest = b.digest GROUP BY 1"
        ),
        format!(
            "SELECT a.n, b.digest FROM {MODEL} a FULL JOIN (SELECT n + 8 AS n, digest FROM {MODEL}) b ON a.n = b.n"
        ),
        format!(
            "SELECT digest, 'row' AS what FROM {MODEL} UNION ALL SELECT max(digest), 'max' FROM {MODEL} \
             GROUP BY n % 3 UNION ALL SELECT k, name FROM names"
        ),
        format!(
            "SELECT n FROM {MODEL} WHERE digest > (SELECT avg(digest) FROM {MODEL} WHERE n % 16 = 0) ORDER BY n"
        ),
        // Beside what is staged others are read.
        format!(
            "SELECT names.name, g.c FROM (SELECT n % 7 AS k, count(digest) AS c FROM {MODEL} GROUP BY 1) g \
             JOIN names ON g.k = names.k"
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_made_of_staged_rows_is_what_is_made_at_once() {
    for mode in [EMBEDDED, CLUSTER] {
        let stage = Stage::new();
        let (_server, mut client) = stage.serve(mode).await;
        for (number, query) in queries().into_iter().enumerate() {
            let written = staged_as_at_once(&stage, &mut client, number, &query).await;
            assert!(written > 0 && written <= ROWS + MODEL_ROWS, "{mode:?} {query}: {written}");
        }
    }
}

/// Runs a query at once and staged, and compares; says how many rows it has.
pub(super) async fn staged_as_at_once(
    stage: &Stage,
    client: &mut Client,
    number: usize,
    query: &str,
) -> usize {
    let (once, staged) = (format!("once_{number}"), format!("staged_{number}"));
    run(client, "SET forebay.resumable = false").await;
    run(client, &copy(stage, query, &once)).await;
    stages_models(client).await;
    let id = submit(client, &copy(stage, query, &staged)).await;
    let written = finishes(client, &id).await;
    let (expected, found) = (rows(&stage.path(&once)), rows(&stage.path(&staged)));
    assert_eq!(found, expected, "{query}");
    assert_eq!(written, found.len(), "{query}");
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sorted_files_are_sorted_and_a_model_runs_once_for_each_row() {
    let stage = Stage::new();
    let (_server, mut client) = stage.serve(CLUSTER).await;
    stages_models(&mut client).await;
    let file = stage.path("sorted.csv");
    let query = format!("SELECT digest, n FROM {MODEL} ORDER BY digest");
    let copy = format!("COPY ({query}) TO '{}' STORED AS CSV", file.display());
    let id = submit(&mut client, &copy).await;
    assert_eq!(finishes(&mut client, &id).await, MODEL_ROWS);
    let text = fs::read_to_string(&file).unwrap();
    let digests = text.lines().skip(1).map(|line| line.split(',').next().unwrap().parse().unwrap());
    let digests: Vec<i64> = digests.collect();
    assert_eq!(digests.len(), MODEL_ROWS);
    assert!(digests.is_sorted(), "{digests:?}");
    let computed = "SELECT sum(rows) FROM forebay.stages WHERE name LIKE '%Inference(slow)%'";
    assert_eq!(run(&mut client, computed).await, format!("{MODEL_ROWS}\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_beside_staged_rows_may_change_and_they_stay() {
    let stage = Stage::new();
    let (_server, mut client) = stage.serve(EMBEDDED).await;
    stages_models(&mut client).await;
    // All rows of a table with all of it and all of it: they take longer than anybody waits.
    let query = format!(
        "SELECT sum(g.c + t.n + u.n + v.n) AS s \
         FROM (SELECT n % 16 AS k, count(digest) AS c FROM {MODEL} GROUP BY 1) g, t, t u, t v"
    );
    let id = submit(&mut client, &copy(&stage, &query, "out")).await;
    let staging = stage.staging("");
    until_complete(&mut client, &staging, &id, FILES).await;
    // It is at work on the rest, or is about to be.
    assert_eq!(run(&mut client, &format!("CANCEL JOB '{id}'")).await, format!("{id},canceled\n"));
    assert_eq!(kept(&mut client, &id).await.0, FILES);
    fs::write(stage.path("t.csv"), "n\n1\n2\n").unwrap();
    let resume = format!("RESUME JOB '{id}'");
    let changed = refused(&mut client, &resume).await;
    for said in ["t.csv'", "which is read beside staged rows", "ANEW"] {
        assert!(changed.message().contains(said), "{said}: {changed}");
    }
    let said = run(&mut client, &format!("EXPLAIN {resume} ANEW")).await;
    assert!(said.starts_with(&format!("kept,{FILES},")), "{said}");
    assert!(of_rest(&mut client, &id, " ANEW").await.starts_with("to run,"));
    run(&mut client, &format!("{resume} ANEW")).await;
    assert_eq!(finishes(&mut client, &id).await, 1);
    // Of 2 × 2 × 2 × 2 rows, whose groups have 12 each.
    let sum = 16 * MODEL_ROWS / 2 + 3 * 8 * (1 + 2);
    assert_eq!(rows(&stage.path("out")), [sum.to_string()]);
    assert!(!staging.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_that_has_changed_is_computed_again_and_no_other() {
    let stage = Stage::new();
    let (_server, mut client) = stage.serve(EMBEDDED).await;
    stages_models(&mut client).await;
    let query = "SELECT n % 2 AS k, sum(n) AS s, count(digest) AS c FROM ml_predict(TABLE numbers, MODEL slow, \
         DESCRIPTOR(n)) GROUP BY 1";
    let id = submit(&mut client, &copy(&stage, query, "out")).await;
    let staging = stage.staging("");
    until_complete(&mut client, &staging, &id, FILES / 2).await;
    run(&mut client, &format!("CANCEL JOB '{id}'")).await;
    let (parts, ..) = kept(&mut client, &id).await;
    stage.write_input(0, 1_000_000);
    let resume = format!("RESUME JOB '{id}'");
    let changed = refused(&mut client, &resume).await;
    assert!(changed.message().contains("in/0.csv' has changed"), "{changed}");
    let (still, ..) = kept(&mut client, &id).await;
    assert!((parts - 1..=parts).contains(&still), "{still} of {parts}");
    run(&mut client, &format!("{resume} ANEW")).await;
    assert_eq!(finishes(&mut client, &id).await, 2);
    run(&mut client, "SET forebay.resumable = false").await;
    run(&mut client, &copy(&stage, query, "undisturbed")).await;
    assert_eq!(rows(&stage.path("out")), rows(&stage.path("undisturbed")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_would_not_be_kept_is_refused() {
    let stage = Stage::new();
    let (_server, mut client) = stage.serve(EMBEDDED).await;
    run(&mut client, "CREATE TABLE few AS SELECT n FROM numbers LIMIT 3").await;
    run(&mut client, "SET forebay.resumable = true").await;
    stages_models(&mut client).await;
    for (query, said) in [
        (format!("SELECT digest FROM {MODEL} LIMIT 5"), "LIMIT without ORDER BY"),
        (
            format!("SELECT c FROM (SELECT n % 2 AS k, count(digest) AS c FROM {MODEL} GROUP BY 1) LIMIT 1"),
            "LIMIT without ORDER BY",
        ),
        (format!("SELECT random() AS r, count(digest) AS c FROM {MODEL} GROUP BY 1"), "random()"),
        (
            "SELECT digest FROM ml_predict((SELECT n % 9 AS n FROM numbers GROUP BY 1), MODEL slow, DESCRIPTOR(n))"
                .to_owned(),
            "model 'slow' is computed for what GROUP BY",
        ),
        (
            format!("SELECT n, digest FROM {MODEL} ORDER BY n LIMIT 3"),
            "model 'slow' is computed for what GROUP BY, ORDER BY or LIMIT makes",
        ),
        (
            format!(
                "SELECT digest FROM ml_predict((SELECT a.digest + b.digest AS n FROM {MODEL} a JOIN {MODEL} b ON a.n = b.n), \
                 MODEL slow, DESCRIPTOR(n))"
            ),
            "or for joined rows of models",
        ),
        (
            format!("SELECT c FROM (SELECT n % 2 AS k, count(digest) AS c FROM {MODEL} GROUP BY 1) JOIN few ON k = n"),
            "in memory",
        ),
        ("SELECT n % 2 AS k, count(*) AS c FROM numbers GROUP BY 1".to_owned(), "GROUP BY"),
    ] {
        let status = refused(&mut client, &format!("SUBMIT {}", copy(&stage, &query, "out"))).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{query}: {status}");
        for said in [said, "could not be resumed", "forebay.resumable"] {
            assert!(status.message().contains(said), "{query}: {said}: {status}");
        }
    }
    assert_eq!(run(&mut client, "SELECT count(*) FROM forebay.jobs").await, "0\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_branches_with_models_each_is_kept() {
    let stage = Stage::new();
    let model = |rows: &str| format!("ml_predict({rows}, MODEL slow, DESCRIPTOR(n))");
    // Of other columns, so that neither is taken for the other one.
    let query = format!(
        "SELECT a.t, count(*) AS c, sum(b.digest) AS s FROM (SELECT n, 't' || (digest % 3) AS t FROM {}) a JOIN {} b \
         ON a.n = b.n GROUP BY a.t",
        model("(SELECT n FROM numbers WHERE n % 2 = 0)"),
        model("(SELECT n FROM numbers WHERE n % 3 = 0)"),
    );
    let (mut server, mut client) = stage.serve(EMBEDDED).await;
    stages_models(&mut client).await;
    let id = submit(&mut client, &copy(&stage, &query, "out")).await;
    let staging = stage.staging("");
    until_complete(&mut client, &staging, &id, FILES + FILES / 2).await;
    kill(&mut server);
    let (_server, mut client) = stage.serve(CLUSTER).await;
    let (parts, _, kept_rows) = kept(&mut client, &id).await;
    assert!((FILES + FILES / 2..2 * FILES).contains(&parts), "{parts}");
    // What is missing is one part, of files of both if both are missing.
    run(&mut client, "SET forebay.part_bytes = '1GB'").await;
    run(&mut client, &format!("RESUME JOB '{id}'")).await;
    finishes(&mut client, &id).await;
    let computed = "SELECT sum(rows) FROM forebay.stages WHERE name LIKE '%Inference(slow)%'";
    let computed: usize = run(&mut client, computed).await.trim().parse().unwrap();
    assert_eq!(computed, ROWS / 2 + ROWS / 3 - kept_rows);
    run(&mut client, "SET forebay.resumable = false").await;
    run(&mut client, &copy(&stage, &query, "undisturbed")).await;
    assert_eq!(rows(&stage.path("out")), rows(&stage.path("undisturbed")));

    // All of it in one part.
    run(&mut client, "SET forebay.resumable = true").await;
    stages_models(&mut client).await;
    let id = run(&mut client, &format!("SUBMIT {}", copy(&stage, &query, "whole"))).await;
    finishes(&mut client, id.trim()).await;
    assert_eq!(rows(&stage.path("whole")), rows(&stage.path("undisturbed")));
}

/// Only where one may mount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_the_job_and_what_is_staged_stays() {
    const BYTES: u64 = 1 << 20;
    let stage = Stage::new();
    fs::create_dir(stage.path("disk")).unwrap();
    let disk = match SmallDisk::mount(&stage.path("disk"), BYTES) {
        Ok(disk) => disk,
        Err(problem) => return println!("skipped, a full file system cannot be made: {problem}"),
    };
    let (server, mut client) = stage.serve(EMBEDDED).await;
    stages_models(&mut client).await;
    let query = "SELECT n % 2 AS k, count(digest) AS c FROM ml_predict(TABLE numbers, MODEL slow, DESCRIPTOR(n)) \
                 GROUP BY 1";
    let id = submit(&mut client, &copy(&stage, query, "disk/out")).await;
    let staging = stage.staging("disk");
    until_complete(&mut client, &staging, &id, 2).await;
    let ballast = stage.path("disk/ballast");
    fs::write(&ballast, vec![0; BYTES as usize]).unwrap_err();
    let failed = refused(&mut client, &format!("WAIT FOR JOB '{id}'")).await;
    for said in ["No space left on device", &format!("RESUME JOB '{id}'")] {
        assert!(failed.message().contains(said), "{said}: {failed}");
    }
    fs::remove_file(ballast).unwrap();
    let (parts, ..) = kept(&mut client, &id).await;
    assert!((2..FILES).contains(&parts), "{parts}");
    run(&mut client, &format!("RESUME JOB '{id}'")).await;
    assert_eq!(finishes(&mut client, &id).await, 2);
    let half = ROWS / 2;
    assert_eq!(rows(&stage.path("disk/out")), [format!("0,{half}"), format!("1,{half}")]);
    assert!(!staging.exists());
    drop((client, server, disk));
}
