//! What the queries read: tables in memory and in several files, sorted ones, and empty ones. All have
//! the columns id, grp and val of type BIGINT, and NULL in each.

use std::fs;
use std::path::Path;

use forebay::ForebayContext;

use super::writer::KEYS;

/// Their names, and how often queries name them.
pub(super) const TABLES: [(usize, &str); 5] =
    [(6, "t"), (3, "parts"), (3, "sorted"), (1, "nothing"), (1, "hollow")];

const COLUMNS: &str = "(id BIGINT, grp BIGINT, val BIGINT)";

type Row = [Option<i64>; 3];

fn rows() -> Vec<Row> {
    let row = |i: i64| {
        let [id, grp, val] = [i * 5 % KEYS, i % 4, i * 7 % 10 - 3];
        [(i % 5 != 0).then_some(id), (i % 7 != 3).then_some(grp), (i % 6 != 1).then_some(val)]
    };
    (0..20).map(row).collect()
}

/// The parts of a table, each of which is a file if it is in files.
fn parts(table: &str) -> Vec<Vec<Row>> {
    let rows = rows();
    let parts: &[&[Row]] = match table {
        "t" => &[&rows],
        "parts" => &[&rows[..4], &[], &rows[4..5], &rows[5..14]],
        "sorted" => &[&rows[..3], &rows[3..9], &rows[9..17]],
        _ => &[&[]],
    };
    parts.iter().map(|part| part.to_vec()).collect()
}

/// `(1, NULL, 3), …`
fn values(rows: &[Row]) -> String {
    let rows: Vec<String> = rows.iter().map(|row| format!("({})", text(row, "NULL"))).collect();
    rows.join(", ")
}

fn text(row: &Row, null: &str) -> String {
    row.map(|value| value.map_or(null.to_owned(), |value| value.to_string())).join(",")
}

/// Writes the files of the tables that have some.
pub(super) async fn write(forebay: &ForebayContext, folder: &Path) {
    for table in ["parts", "hollow"] {
        fs::create_dir(folder.join(table)).unwrap();
        for (at, rows) in parts(table).iter().enumerate() {
            let lines: String = rows.iter().map(|row| text(row, "") + "\n").collect();
            let file = folder.join(table).join(format!("{at}.csv"));
            fs::write(file, format!("id,grp,val\n{lines}")).unwrap();
        }
    }
    for (at, rows) in parts("sorted").iter().enumerate() {
        let copy = format!(
            "COPY (SELECT * FROM (VALUES {}) AS v(id, grp, val) ORDER BY 1, 2) \
             TO '{}/sorted/{at}.parquet' STORED AS PARQUET",
            values(rows),
            folder.display()
        );
        run(forebay, &copy).await;
    }
}

/// Creates the tables, of which some are in these files.
pub(super) async fn create(forebay: &ForebayContext, folder: &Path) {
    run(forebay, &format!("CREATE TABLE t {COLUMNS} AS VALUES {}", values(&rows()))).await;
    run(forebay, "CREATE TABLE nothing AS SELECT * FROM t WHERE false").await;
    let folder = folder.display();
    for create in [
        format!("parts {COLUMNS} STORED AS CSV LOCATION '{folder}/parts/'"),
        format!("hollow {COLUMNS} STORED AS CSV LOCATION '{folder}/hollow/'"),
        format!(
            "sorted {COLUMNS} STORED AS PARQUET WITH ORDER (id NULLS LAST, grp NULLS LAST) \
             LOCATION '{folder}/sorted/'"
        ),
    ] {
        run(forebay, &format!("CREATE EXTERNAL TABLE {create}")).await;
    }
}

/// Statements that create the same tables anywhere.
pub(super) fn inserts() -> Vec<String> {
    let inserts = TABLES.iter().flat_map(|(_, table)| {
        let rows = parts(table).concat();
        let insert = format!("INSERT INTO {table} VALUES {}", values(&rows));
        let create = format!("CREATE TABLE {table} {COLUMNS}");
        std::iter::once(create).chain((!rows.is_empty()).then_some(insert))
    });
    inserts.collect()
}

async fn run(forebay: &ForebayContext, sql: &str) {
    let done = async { forebay.sql(sql).await?.collect().await }.await;
    done.unwrap_or_else(|error| panic!("{sql}\n{error}"));
}
