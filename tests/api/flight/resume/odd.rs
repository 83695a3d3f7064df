//! Statements that one would not write: what they give is what they give at once, or they are refused.

use std::fs;

use tonic::Code;

use super::staged::{MODEL, MODEL_ROWS, copy, staged_as_at_once, stages_models};
use super::{
    CLUSTER, EMBEDDED, FILES, ROWS, Stage, finishes, kept, kill, refused, rows, run, submit,
    until_complete,
};

/// Queries with a model below what depends on all rows, and how many rows they give.
fn queries() -> Vec<(String, usize)> {
    let again = format!("ml_predict((SELECT digest AS n FROM {MODEL}), MODEL slow, DESCRIPTOR(n))");
    vec![
        // No row is staged.
        (format!("SELECT count(*) AS c, max(digest) AS m FROM {MODEL} WHERE digest = n + 1"), 1),
        (format!("SELECT n, count(*) AS c FROM {MODEL} WHERE digest = n + 1 GROUP BY n"), 0),
        (
            format!(
                "SELECT n % 2 AS k, count(*) AS c FROM {MODEL} WHERE digest = n + 1 GROUP BY ROLLUP (n % 2)"
            ),
            1,
        ),
        (
            format!(
                "SELECT n / 8 % 2 AS k, n % 3 AS l, max(digest) AS m FROM {MODEL} GROUP BY CUBE (n / 8 % 2, n % 3)"
            ),
            12,
        ),
        // A model above a model, and one in the arguments of an aggregate.
        (format!("SELECT n % 3 AS k, max(digest) AS d FROM {again} GROUP BY 1"), 5),
        ("SELECT sum(ml_predict(MODEL slow, n)) AS s FROM numbers WHERE n % 8 = 0".to_owned(), 1),
        // In subqueries.
        (format!("SELECT k, (SELECT max(digest) FROM {MODEL}) AS m FROM names"), 7),
        (
            format!("SELECT k FROM names WHERE k IN (SELECT n / 8 FROM {MODEL} WHERE digest <> 0)"),
            7,
        ),
        (
            format!(
                "SELECT k FROM names WHERE NOT EXISTS (SELECT 1 FROM {MODEL} p WHERE p.n = k * 8 AND digest <> 0)"
            ),
            0,
        ),
        (
            format!(
                "SELECT k FROM names WHERE k NOT IN (SELECT CASE WHEN digest <> 0 THEN n END FROM {MODEL})"
            ),
            6,
        ),
        (
            format!("SELECT n, digest FROM {MODEL} UNION SELECT k, k AS digest FROM names"),
            MODEL_ROWS + 7,
        ),
    ]
}

/// The same over values that are seldom met.
fn of_odd_values() -> Vec<(String, usize)> {
    vec![
        // Keys that are NULL.
        (
            format!(
                "SELECT k, count(*) AS c, count(digest) AS d FROM (SELECT CASE WHEN n % 3 <> 0 THEN n % 5 END AS k, \
                 digest FROM {MODEL}) GROUP BY k"
            ),
            6,
        ),
        (
            format!(
                "SELECT names.name, count(digest) AS c FROM (SELECT CASE WHEN n % 3 <> 0 THEN n % 5 END AS k, digest \
                 FROM {MODEL}) p LEFT JOIN names ON p.k IS NOT DISTINCT FROM names.k GROUP BY 1"
            ),
            6,
        ),
        // Lists that are taken apart, one of which is empty.
        (
            format!(
                "SELECT u % 3 AS k, count(*) AS c FROM (SELECT unnest(CASE WHEN n % 16 = 0 THEN [n, n + 1, n] \
                 ELSE [] END) AS u, digest FROM {MODEL}) WHERE digest <> 0 GROUP BY 1"
            ),
            3,
        ),
        // The names of the columns that are staged, in another order.
        (
            format!(
                "SELECT c1 AS c0, sum(c0) AS c1, max(c2) AS c2 \
                 FROM (SELECT n AS c2, digest AS c0, n % 3 AS c1 FROM {MODEL}) GROUP BY c1"
            ),
            3,
        ),
        // Of all kinds of types.
        (
            format!(
                "SELECT d, CAST(l AS VARCHAR) AS l, s['a'] AS a, encode(b, 'hex') AS b, CAST(t AS VARCHAR) AS t, count(z) AS z, \
                 CAST(i AS VARCHAR) AS i, count(*) AS c \
                 FROM (SELECT arrow_cast(n % 3, 'Decimal128(20, 2)') AS d, [n % 2, NULL] AS l, \
                 named_struct('a', n % 2) AS s, arrow_cast('b' || (n % 2), 'BinaryView') AS b, \
                 arrow_cast(n % 2, 'Timestamp(Nanosecond, Some(\"+01:00\"))') AS t, NULL AS z, \
                 INTERVAL '2 months' AS i, digest FROM {MODEL}) WHERE digest <> 0 GROUP BY d, l, s, b, t, i"
            ),
            3,
        ),
        // A side that is read by what is made of staged rows, and by all parts.
        (
            format!(
                "SELECT k, count(digest) AS c FROM {MODEL} p JOIN names ON p.n % 7 = k \
                 WHERE k IN (SELECT n FROM numbers) GROUP BY k HAVING count(*) > (SELECT min(k) FROM names)"
            ),
            7,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_statements_give_what_they_give_at_once() {
    for mode in [EMBEDDED, CLUSTER] {
        let stage = Stage::new();
        let (_server, mut client) = stage.serve(mode).await;
        for (number, (query, expected)) in queries().into_iter().chain(of_odd_values()).enumerate()
        {
            let written = staged_as_at_once(&stage, &mut client, number, &query).await;
            assert_eq!(written, expected, "{mode:?} {query}");
        }
    }
}

/// Wherever it stands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_gives_something_else_each_time_is_found() {
    let stage = Stage::new();
    let (_server, mut client) = stage.serve(EMBEDDED).await;
    run(&mut client, "CREATE VIEW shaken AS SELECT n FROM numbers WHERE n + random() > 3").await;
    run(&mut client, "SET forebay.resumable = true").await;
    let model = |rows: &str| format!("ml_predict({rows}, MODEL slow, DESCRIPTOR(n))");
    let queries = [
        (format!("SELECT digest FROM {}", model("TABLE shaken")), "random()"),
        (
            format!(
                "SELECT digest FROM {}",
                model("(SELECT n + CAST(random() * 9 AS BIGINT) AS n FROM numbers)")
            ),
            "random()",
        ),
        (
            "SELECT ml_predict(MODEL slow, n + length(uuid())) AS d FROM numbers".to_owned(),
            "uuid()",
        ),
        (
            format!(
                "SELECT digest FROM {MODEL} UNION ALL SELECT CAST(random() * 9 AS BIGINT) FROM names"
            ),
            "random()",
        ),
        (
            format!(
                "SELECT p.digest FROM {MODEL} p JOIN (SELECT k, now() AS t FROM names) q ON p.n = q.k"
            ),
            "now()",
        ),
        (
            format!(
                "SELECT p.digest FROM {MODEL} p WHERE n IN (SELECT k + CAST(random() AS BIGINT) FROM names)"
            ),
            "random()",
        ),
        (format!("SELECT n, (SELECT max(uuid()) FROM names) AS u FROM {MODEL}"), "uuid()"),
        (
            format!(
                "SELECT n % 2 AS k, count(*) FILTER (WHERE random() < 0.5) AS c FROM {MODEL} GROUP BY 1"
            ),
            "random()",
        ),
        (format!("SELECT n, sum(digest) OVER (ORDER BY random()) AS s FROM {MODEL}"), "random()"),
        (format!("SELECT n, digest FROM {MODEL} ORDER BY random()"), "random()"),
    ];
    for stages in [false, true] {
        run(&mut client, &format!("SET forebay.stage_models = {stages}")).await;
        for (query, said) in &queries {
            let submit = format!("SUBMIT {}", copy(&stage, query, "out"));
            let status = refused(&mut client, &submit).await;
            assert_eq!(status.code(), Code::InvalidArgument, "{query}: {status}");
            assert!(status.message().contains(said), "{query}: {status}");
        }
    }
}

/// A table of folders, one of which has no name, one no rows and one an empty file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_name_folders_are_kept_with_their_rows() {
    let stage = Stage::new();
    for file in 0..FILES {
        let folder = match file {
            0 => "p=__HIVE_DEFAULT_PARTITION__".to_owned(),
            _ => format!("p={}", file % 3),
        };
        fs::create_dir_all(stage.path("parted").join(&folder)).unwrap();
        let at = stage.path("parted").join(folder).join(format!("{file}.csv"));
        fs::copy(stage.path(&format!("in/{file}.csv")), at).unwrap();
    }
    for (name, text) in [("p=7", "n\n"), ("p=8", "")] {
        fs::create_dir_all(stage.path("parted").join(name)).unwrap();
        fs::write(stage.path("parted").join(name).join("0.csv"), text).unwrap();
    }
    let table = format!(
        "CREATE EXTERNAL TABLE parted (n BIGINT, p VARCHAR) STORED AS CSV PARTITIONED BY (p) \
         LOCATION '{}/' OPTIONS ('format.has_header' 'true')",
        stage.path("parted").display()
    );
    let query = "SELECT n, p, digest FROM ml_predict(TABLE parted, MODEL slow, DESCRIPTOR(n))";
    let grouped = format!("SELECT p, count(digest) AS c, sum(n) AS s FROM ({query}) GROUP BY p");
    let (mut server, mut client) = stage.serve(EMBEDDED).await;
    run(&mut client, &table).await;
    let id = submit(&mut client, &copy(&stage, query, "out")).await;
    until_complete(&mut client, &stage.staging(""), &id, FILES / 2).await;
    kill(&mut server);
    let (_server, mut client) = stage.serve(CLUSTER).await;
    run(&mut client, &table).await;
    let (parts, ..) = kept(&mut client, &id).await;
    assert!((FILES / 2..FILES).contains(&parts), "{parts}");
    run(&mut client, &format!("RESUME JOB '{id}'")).await;
    assert_eq!(finishes(&mut client, &id).await, ROWS);
    run(&mut client, "SET forebay.resumable = false").await;
    run(&mut client, &copy(&stage, query, "calm")).await;
    assert_eq!(rows(&stage.path("out")), rows(&stage.path("calm")));
    // Folders 0, 1 and 2, and one without a name.
    assert_eq!(staged_as_at_once(&stage, &mut client, 0, &grouped).await, 4);
    stages_models(&mut client).await;
    let to = stage.path("folders");
    let copy =
        format!("COPY ({grouped}) TO '{}/' STORED AS PARQUET PARTITIONED BY (c)", to.display());
    let id = submit(&mut client, &copy).await;
    assert_eq!(finishes(&mut client, &id).await, 4);
    assert_eq!(rows(&to).len(), 4);
}
