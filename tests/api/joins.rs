//! What no task of a cluster may decide by itself: joins, grand totals, windows. The reference is a pair
//! of loops.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use forebay::{Catalog, ForebayContext, Inventory};
use tempfile::TempDir;

/// `(k, v)`
type Row = (Option<i64>, i64);
type Table = [Vec<Row>; 3];

/// Keys that nobody has, keys of several files, and NULL in one of them.
fn left() -> Table {
    let row = |i: i64| (Some(i % 11).filter(|k| *k != 4), i % 7);
    [(0..9).map(row).collect(), (9..14).map(row).collect(), (14..30).map(row).collect()]
}

fn right() -> Table {
    let row = |i: i64| ((i != 5).then_some(i * 2), i % 5);
    [(0..4).map(row).collect(), (4..7).map(row).collect(), (7..9).map(row).collect()]
}

fn rows(table: &Table) -> Vec<Row> {
    table.iter().flatten().copied().collect()
}

fn write(folder: &Path, name: &str, table: &Table) {
    fs::create_dir(folder.join(name)).unwrap();
    for (at, rows) in table.iter().enumerate() {
        let lines = rows.iter().map(|(k, v)| {
            let k = k.map_or_else(String::new, |k| k.to_string());
            format!("{k},{v}\n")
        });
        let text: String = std::iter::once("k,v\n".to_owned()).chain(lines).collect();
        fs::write(folder.join(name).join(format!("{at}.csv")), text).unwrap();
    }
}

async fn with_tables(forebay: ForebayContext, folder: &Path) -> ForebayContext {
    forebay.register_model("echo", "tests/models/echo").await.unwrap();
    for name in ["a", "b"] {
        let create = format!(
            "CREATE EXTERNAL TABLE {name} STORED AS CSV LOCATION '{}/' \
             OPTIONS ('format.has_header' 'true')",
            folder.join(name).display()
        );
        forebay.sql(&create).await.unwrap().collect().await.unwrap();
    }
    forebay
}

/// One process, and a cluster.
async fn both(folder: &Path) -> [ForebayContext; 2] {
    let inventory = || Inventory::detect().with_cpus(4).with_emulated(1, 4 << 30);
    let builder =
        || ForebayContext::builder().with_catalog(Catalog::in_memory()).with_inventory(inventory());
    [
        with_tables(builder().build().unwrap(), folder).await,
        with_tables(builder().standalone().await.unwrap(), folder).await,
    ]
}

/// The first row of a result of numbers.
async fn numbers(forebay: &ForebayContext, sql: &str) -> Vec<i64> {
    let batches = async { forebay.sql(sql).await?.collect().await }.await;
    let batches = batches.unwrap_or_else(|error| panic!("{sql}\n{error}"));
    let batch = batches.iter().find(|batch| batch.num_rows() > 0).unwrap();
    batch.columns().iter().map(|column| column.as_primitive::<Int64Type>().value(0)).collect()
}

type Condition = (&'static str, fn(&Row, &Row) -> bool);

/// Of which some are joined by hash, some by loops.
const CONDITIONS: [Condition; 4] = [
    ("a.k = b.k", |a, b| a.0.is_some() && a.0 == b.0),
    ("a.k < b.k", |a, b| a.0.zip(b.0).is_some_and(|(a, b)| a < b)),
    ("a.k = b.k AND a.v < b.v", |a, b| a.0.is_some() && a.0 == b.0 && a.1 < b.1),
    ("(a.k = b.k OR a.v = b.v)", |a, b| a.0.is_some() && a.0 == b.0 || a.1 == b.1),
];

/// How many rows a join gives, how many of them have something of each side, and their sum.
fn joined(left: &[Row], right: &[Row], holds: fn(&Row, &Row) -> bool, kind: &str) -> Vec<i64> {
    let mut pairs = vec![];
    for a in left {
        let met: Vec<_> = right.iter().filter(|b| holds(a, b)).collect();
        pairs.extend(met.iter().map(|b| (Some(a), Some(*b))));
        if met.is_empty() && ["LEFT", "FULL"].contains(&kind) {
            pairs.push((Some(a), None));
        }
    }
    if ["RIGHT", "FULL"].contains(&kind) {
        let alone = right.iter().filter(|b| !left.iter().any(|a| holds(a, b)));
        pairs.extend(alone.map(|b| (None, Some(b))));
    }
    let sum = |value: Option<&Row>| value.map_or(0, |row| row.1);
    vec![
        pairs.len() as i64,
        pairs.iter().filter(|(a, _)| a.is_some()).count() as i64,
        pairs.iter().filter(|(_, b)| b.is_some()).count() as i64,
        pairs.iter().map(|(a, b)| sum(*a) + 100 * sum(*b)).sum(),
    ]
}

fn counted<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<i64> {
    rows.fold(vec![0, 0], |found, row| vec![found[0] + 1, found[1] + row.1])
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_of_every_kind_give_what_two_loops_give() {
    let folder = TempDir::new().unwrap();
    let tables = [left(), right()];
    write(folder.path(), "a", &tables[0]);
    write(folder.path(), "b", &tables[1]);
    for forebay in both(folder.path()).await {
        for (condition, holds) in CONDITIONS {
            // The smaller side is the one that is collected: once on the left, once on the right.
            for (a, b) in [("a", "b"), ("b", "a")] {
                let of = |name| rows(&tables[usize::from(name == "b")]);
                let (left, right) = (of(a), of(b));
                for kind in ["INNER", "LEFT", "RIGHT", "FULL"] {
                    let sql = format!(
                        "SELECT count(*), count(a.v), count(b.v), \
                         coalesce(sum(a.v), 0) + 100 * coalesce(sum(b.v), 0) \
                         FROM {a} a {kind} JOIN {b} b ON {condition}"
                    );
                    let expected = joined(&left, &right, holds, kind);
                    assert_eq!(numbers(&forebay, &sql).await, expected, "{sql}");
                }
                for (negation, wanted) in [("", true), ("NOT", false)] {
                    let exists =
                        format!("{negation} EXISTS (SELECT 1 FROM {b} b WHERE {condition})");
                    let meets = |row: &&Row| right.iter().any(|b| holds(row, b)) == wanted;
                    let select = format!("SELECT count(*), coalesce(sum(v), 0) FROM {a} a WHERE");
                    let sql = format!("{select} {exists}");
                    assert_eq!(
                        numbers(&forebay, &sql).await,
                        counted(left.iter().filter(meets)),
                        "{sql}"
                    );
                    // Not a semi join: the subquery's answer is a column.
                    let sql = format!("{select} ({exists}) OR v = 3");
                    let either = left.iter().filter(|row| meets(row) || row.1 == 3);
                    assert_eq!(numbers(&forebay, &sql).await, counted(either), "{sql}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn not_in_knows_every_row_of_the_other_side() {
    let folder = TempDir::new().unwrap();
    let left: Table = [(1..4), (4..8), (8..11)].map(|ids| ids.map(|id| (Some(id), id)).collect());
    let mut right: Table = [(1..4), (4..8), (9..10)].map(|ids| ids.map(|k| (Some(k), k)).collect());
    right[1].push((None, 0));
    write(folder.path(), "a", &left);
    write(folder.path(), "b", &right);
    let cases = [
        ("SELECT k FROM b WHERE k IS NOT NULL", vec![2, 18]),
        ("SELECT k FROM b", vec![0, 0]),
        ("SELECT k FROM b WHERE k < 0", vec![10, 55]),
        ("SELECT ml_predict(MODEL echo, k) FROM b WHERE k < 0", vec![10, 55]),
        ("SELECT ml_predict(MODEL echo, k) FROM b WHERE k IS NOT NULL", vec![10, 55]),
        ("SELECT ml_predict(MODEL echo, k) FROM b", vec![0, 0]),
    ];
    for forebay in both(folder.path()).await {
        for (subquery, expected) in &cases {
            let sql =
                format!("SELECT count(*), coalesce(sum(v), 0) FROM a WHERE k NOT IN ({subquery})");
            assert_eq!(numbers(&forebay, &sql).await, *expected, "{sql}");
            // The model's rows stream past what was collected, or the other way round.
            let sql = format!(
                "SELECT count(*), coalesce(sum(v), 0) \
                 FROM (SELECT ml_predict(MODEL echo, k) AS k, v FROM a) a WHERE a.k NOT IN ({subquery})"
            );
            let none_equal = match subquery.contains("echo, k) FROM b WHERE k IS") {
                true => vec![2, 18],
                false if expected[0] == 0 => vec![0, 0],
                false => vec![10, 55],
            };
            assert_eq!(numbers(&forebay, &sql).await, none_equal, "{sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grand_totals_of_nothing_are_one_row() {
    let folder = TempDir::new().unwrap();
    write(folder.path(), "a", &left());
    write(folder.path(), "b", &right());
    for forebay in both(folder.path()).await {
        for inputs in [
            "(SELECT ml_predict(MODEL echo, k) AS k, v FROM a WHERE v < 0)",
            "(SELECT k, v FROM a WHERE v < 0)",
            "(SELECT ml_predict(MODEL echo, k) AS k, v FROM a WHERE v < 0
              UNION ALL SELECT ml_predict(MODEL echo, v) AS k, v FROM b WHERE v < 0)",
        ] {
            for (groups, totals) in [
                ("ROLLUP (k)", 1),
                ("CUBE (k, v)", 1),
                ("GROUPING SETS ((k), ())", 1),
                ("GROUPING SETS ((k), (), ())", 2),
                ("GROUPING SETS ((k), (v))", 0),
            ] {
                let sql = format!(
                    "SELECT count(*), count(k), coalesce(sum(rows), 0) FROM \
                     (SELECT max(k) AS k, count(*) AS rows FROM {inputs} GROUP BY {groups})"
                );
                assert_eq!(numbers(&forebay, &sql).await, [totals, 0, 0], "{sql}");
            }
        }
    }
}

/// A window relies on the order of its input, which a cut between two stages must keep: also where the
/// model's stage is cut off by what follows, not by an exchange.
#[tokio::test(flavor = "multi_thread")]
async fn windows_over_a_model_find_their_input_in_order() {
    let folder = TempDir::new().unwrap();
    write(folder.path(), "a", &left());
    write(folder.path(), "b", &right());
    let mut groups = BTreeMap::<Option<i64>, i64>::new();
    rows(&left()).iter().for_each(|(k, _)| *groups.entry(*k).or_default() += 1);
    let rows = groups.values().sum::<i64>();
    let squares = groups.values().map(|n| n * n).sum::<i64>();
    let triangles = groups.values().map(|n| n * (n + 1) / 2).sum::<i64>();
    let model = "(SELECT ml_predict(MODEL echo, k) AS k, v FROM a)";
    let beside =
        "(SELECT k, ml_predict(MODEL echo, v) AS v FROM (SELECT k, max(v) AS v FROM a GROUP BY k))";
    let after = "(SELECT k, ml_predict(MODEL echo, n) AS v \
                 FROM (SELECT k, count(*) OVER (PARTITION BY k ORDER BY v) AS n FROM a))";
    let distinct = groups.len() as i64;
    let cases = [
        ("count(*) OVER (PARTITION BY k)", model, vec![rows, squares]),
        ("row_number() OVER (PARTITION BY k ORDER BY v)", model, vec![rows, triangles]),
        ("count(v) OVER (PARTITION BY k ORDER BY k)", beside, vec![distinct, distinct]),
        ("count(v) OVER (PARTITION BY k ORDER BY k)", after, vec![rows, squares]),
    ];
    for forebay in both(folder.path()).await {
        for (exchange, partitions) in [(true, 4), (true, 1), (false, 4), (false, 1)] {
            for set in [
                format!("SET forebay.exchange = {exchange}"),
                format!("SET datafusion.execution.target_partitions = {partitions}"),
                "SET forebay.block_bytes = 100".to_owned(),
            ] {
                forebay.sql(&set).await.unwrap().collect().await.unwrap();
            }
            for (call, of, expected) in &cases {
                let sql =
                    format!("SELECT count(*), sum(n)::BIGINT FROM (SELECT {call} AS n FROM {of})");
                let found = numbers(&forebay, &sql).await;
                assert_eq!(found, *expected, "exchange {exchange}, {partitions} partitions: {sql}");
            }
        }
    }
}
