//! What could not be resumed is refused when it is submitted.

use std::fs;

use tonic::Code;

use super::{Client, EMBEDDED, Stage, refused, run};

/// Queries whose rows cannot be made in parts, and what is said of them.
fn what_cannot() -> Vec<(String, &'static str)> {
    let model = "ml_predict(TABLE numbers, MODEL slow, DESCRIPTOR(n))";
    vec![
        ("SELECT n FROM numbers LIMIT 5".to_owned(), "LIMIT"),
        (format!("SELECT digest FROM {model} LIMIT 5"), "LIMIT"),
        ("SELECT n FROM numbers ORDER BY n".to_owned(), "ORDER BY"),
        ("SELECT n % 2, count(*) FROM numbers GROUP BY 1".to_owned(), "GROUP BY"),
        ("SELECT DISTINCT n FROM numbers".to_owned(), "DISTINCT"),
        ("SELECT n, row_number() OVER (ORDER BY n) AS r FROM numbers".to_owned(), "window"),
        ("SELECT n, random() AS r FROM numbers".to_owned(), "random()"),
        ("SELECT n, uuid() AS r FROM numbers".to_owned(), "uuid()"),
        ("SELECT n, now() AS r FROM numbers".to_owned(), "now()"),
        ("SELECT n FROM numbers WHERE random() < 0.5".to_owned(), "random()"),
        ("SELECT n FROM few".to_owned(), "in memory"),
        ("SELECT numbers.n FROM numbers JOIN few ON few.n = numbers.n".to_owned(), "in memory"),
        ("SELECT n FROM numbers UNION SELECT k FROM names".to_owned(), "DISTINCT"),
        ("SELECT n FROM numbers UNION ALL SELECT 1".to_owned(), "no files"),
        ("SELECT n FROM numbers FULL JOIN names ON n = k".to_owned(), "FULL JOIN"),
        (
            format!(
                "SELECT numbers.n FROM numbers LEFT JOIN \
                 (SELECT digest AS m FROM names JOIN {model} p ON p.n = k) ON n = m"
            ),
            "would compute model 'slow'",
        ),
        (
            "SELECT n FROM numbers JOIN (SELECT k FROM names LIMIT 2) ON n = k".to_owned(),
            "LIMIT",
        ),
        (
            "SELECT n, c FROM numbers JOIN (SELECT k, array_agg(name) AS c FROM names GROUP BY k) ON n = k"
                .to_owned(),
            "array_agg",
        ),
        ("VALUES (1)".to_owned(), "in memory"),
        ("SELECT 1 AS n".to_owned(), "no files"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_resumed_is_refused_before_any_work() {
    let stage = Stage::new();
    let (_server, mut client) = stage.serve(EMBEDDED).await;
    run(&mut client, "CREATE TABLE few AS SELECT n FROM numbers LIMIT 3").await;
    run(&mut client, "SET forebay.resumable = true").await;
    let at = stage.path("out");
    let to = format!("TO '{}/' STORED AS PARQUET", at.display());
    for (query, said) in what_cannot() {
        let status = refused(&mut client, &format!("SUBMIT COPY ({query}) {to}")).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{query}: {status}");
        let message = status.message();
        assert!(message.contains(said), "{query}: {status}");
        assert!(message.contains("could not be resumed"), "{query}: {status}");
        assert!(message.contains("forebay.resumable"), "{query}: {status}");
    }
    let keys = format!("COPY numbers {to} OPTIONS ('aws.secret_access_key' 'x')");
    for (statement, said) in [
        ("SELECT n FROM numbers".to_owned(), "it writes no files"),
        ("CREATE TABLE more AS SELECT n FROM numbers".to_owned(), "ends with the server"),
        (keys, "'aws.secret_access_key'"),
    ] {
        let status = refused(&mut client, &format!("SUBMIT {statement}")).await;
        assert!(status.message().contains(said), "{statement}: {status}");
    }
    refuses_targets_in_order_and_volatile_models(&stage, &mut client, &to).await;
    // Nothing was begun, and nothing is left.
    assert_eq!(run(&mut client, "SELECT count(*) FROM forebay.jobs").await, "0\n");
    assert!(fs::read_dir(stage.path("state/jobs")).unwrap().next().is_none());
    let left = fs::read_dir(stage.folder.path()).unwrap().flatten();
    assert!(
        !left.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("_forebay"))
    );
}

/// Each is refused by its name.
async fn refuses_targets_in_order_and_volatile_models(
    stage: &Stage,
    client: &mut Client,
    to: &str,
) {
    fs::create_dir(stage.path("ordered")).unwrap();
    let ordered = format!(
        "CREATE EXTERNAL TABLE ordered (n BIGINT) STORED AS PARQUET LOCATION '{}/' WITH ORDER (n)",
        stage.path("ordered").display()
    );
    let volatile = "ALTER MODEL slow SET ('determinism' = 'volatile')";
    for (made, statement, said) in [
        // In the order that it has anyhow, and which is sorted for it.
        (
            ordered.as_str(),
            "INSERT INTO ordered SELECT 1 + n FROM numbers".to_owned(),
            "WITH ORDER (n",
        ),
        (
            "SELECT 1",
            "INSERT INTO ordered SELECT n FROM numbers ORDER BY n".to_owned(),
            "WITH ORDER (n",
        ),
        (
            volatile,
            format!(
                "COPY (SELECT digest FROM ml_predict(TABLE numbers, MODEL slow, DESCRIPTOR(n))) {to}"
            ),
            "model 'slow' gives something else each time",
        ),
    ] {
        run(client, made).await;
        let status = refused(client, &format!("SUBMIT {statement}")).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{statement}: {status}");
        assert!(status.message().contains(said), "{statement}: {status}");
    }
    assert_eq!(fs::read_dir(stage.path("ordered")).unwrap().count(), 0);
}
