//! Plain relational queries, of the shape of TPC-H's: on Forebay's cluster, and on a stock Ballista
//! scheduler and executor with as many cores, in turn. Both read the same Parquet files, plan with as
//! many partitions, keep shuffles in the same kind of folder, and have no memory limit.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Decimal128Array, Int64Array, RecordBatch, StringArray};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::prelude::ParquetReadOptions;
use forebay_testkit::random::mix;
use tempfile::TempDir;

use super::stock::{Stock, compare};
use super::{Cluster, Has};

/// Rows of `lineitem`; the other tables have as many as TPC-H's have for it.
const LINES: u64 = 3_000_000;
const FILES: u64 = 8;
const PARTITIONS: usize = 8;
const ROUNDS: usize = 7;

const QUERIES: [(&str, &str); 5] = [
    (
        "1",
        "SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), \
         sum(l_extendedprice * (1 - l_discount)), \
         sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), avg(l_quantity), \
         avg(l_extendedprice), avg(l_discount), count(*) FROM lineitem \
         WHERE l_shipdate <= DATE '1998-09-02' GROUP BY l_returnflag, l_linestatus \
         ORDER BY l_returnflag, l_linestatus",
    ),
    (
        "3",
        "SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, \
         o_shippriority FROM customer, orders, lineitem WHERE c_mktsegment = 'BUILDING' \
         AND c_custkey = o_custkey AND l_orderkey = o_orderkey \
         AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15' \
         GROUP BY l_orderkey, o_orderdate, o_shippriority \
         ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10",
    ),
    (
        "5",
        "SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue \
         FROM customer, orders, lineitem, supplier, nation, region \
         WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey \
         AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey \
         AND n_regionkey = r_regionkey AND r_name = 'ASIA' \
         AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01' \
         GROUP BY n_name ORDER BY revenue DESC",
    ),
    (
        "6",
        "SELECT sum(l_extendedprice * l_discount) FROM lineitem \
         WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01' \
         AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24",
    ),
    (
        "18",
        "SELECT c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) \
         FROM customer, orders, lineitem WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem \
         GROUP BY l_orderkey HAVING sum(l_quantity) > 190) AND c_custkey = o_custkey \
         AND o_orderkey = l_orderkey GROUP BY c_custkey, o_orderkey, o_orderdate, o_totalprice \
         ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100",
    ),
];

/// On one worker, and on one executor.
pub(super) async fn relational() {
    let tables = TempDir::new().unwrap();
    let rows = write_tables(tables.path());
    let cores = std::thread::available_parallelism().unwrap().get();
    let has = Has { cpus: cores as u32, accelerators: 0, work_limit: None };
    let cluster = Cluster::start_in(TempDir::new().unwrap(), &[has]).await;
    let forebay = cluster.session(PARTITIONS).await;
    let stock = Stock::start(&[cores], PARTITIONS).await;
    let sessions = [forebay.session(), stock.session()];
    for session in sessions {
        for table in TABLES {
            let path = tables.path().join(table);
            let options = ParquetReadOptions::default();
            session.register_parquet(table, path.to_str().unwrap(), options).await.unwrap();
        }
    }
    let queries = QUERIES.map(|(name, sql)| (name.to_owned(), sql.to_owned()));
    let data = format!("\"lineitem_rows\": {rows}");
    compare("relational", &data, &queries, sessions, ROUNDS).await;
}

const TABLES: [&str; 6] = ["lineitem", "orders", "customer", "supplier", "nation", "region"];

const NATIONS: u64 = 25;
const REGIONS: [&str; 5] = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"];
const SEGMENTS: [&str; 5] = ["AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY"];
/// 1992-01-01, in days since 1970.
const FIRST_DAY: i32 = 8035;
const DAYS: u64 = 2400;

/// Writes all tables, a folder each; returns the rows of the largest.
fn write_tables(folder: &Path) -> u64 {
    let (orders, customers, suppliers) = (LINES / 4, LINES / 40, LINES / 600);
    write(folder, "lineitem", LINES, |keys| {
        let of = |column, most| random(keys.clone(), column, most);
        let order = keys.clone().map(|key| key / 4);
        let ordered = order.clone().map(|key| date(random_one(key, 0, DAYS)));
        let shipped = ordered.zip(of(1, 121)).map(|(day, later)| day + 1 + later as i32);
        let flag = |day: i32| if day > FIRST_DAY + 1260 { "N" } else { "R" };
        let status = |day: i32| if day > FIRST_DAY + 1260 { "O" } else { "F" };
        let shipped: Vec<i32> = shipped.collect();
        vec![
            ("l_orderkey", numbers(order.clone())),
            ("l_suppkey", numbers(of(2, suppliers))),
            ("l_quantity", money(of(3, 50).map(|n| (n + 1) * 100))),
            ("l_extendedprice", money(of(4, 10_000_000).map(|n| n + 90_000))),
            ("l_discount", money(of(5, 11))),
            ("l_tax", money(of(6, 9))),
            ("l_returnflag", texts(shipped.iter().map(|day| flag(*day)))),
            ("l_linestatus", texts(shipped.iter().map(|day| status(*day)))),
            ("l_shipdate", Arc::new(Date32Array::from(shipped.clone()))),
        ]
    });
    write(folder, "orders", orders, |keys| {
        let of = |column, most| random(keys.clone(), column, most);
        let days = of(0, DAYS).map(date);
        vec![
            ("o_orderkey", numbers(keys.clone())),
            ("o_custkey", numbers(of(1, customers))),
            ("o_orderdate", Arc::new(Date32Array::from_iter_values(days))),
            ("o_totalprice", money(of(2, 50_000_000))),
            ("o_shippriority", numbers(of(3, 1))),
        ]
    });
    write(folder, "customer", customers, |keys| {
        let segments = random(keys.clone(), 0, 5).map(|n| SEGMENTS[n as usize]);
        vec![
            ("c_custkey", numbers(keys.clone())),
            ("c_nationkey", numbers(random(keys.clone(), 1, NATIONS))),
            ("c_mktsegment", texts(segments)),
        ]
    });
    write(folder, "supplier", suppliers, |keys| {
        let nations = numbers(random(keys.clone(), 1, NATIONS));
        vec![("s_suppkey", numbers(keys)), ("s_nationkey", nations)]
    });
    write(folder, "nation", NATIONS, |keys| {
        let names: Vec<String> = keys.clone().map(|key| format!("NATION {key}")).collect();
        let names = texts(names.iter().map(String::as_str));
        let regions = numbers(keys.clone().map(|key| key % 5));
        vec![("n_nationkey", numbers(keys)), ("n_name", names), ("n_regionkey", regions)]
    });
    write(folder, "region", 5, |keys| {
        let names = texts(keys.clone().map(|key| REGIONS[key as usize]));
        vec![("r_regionkey", numbers(keys)), ("r_name", names)]
    });
    LINES
}

pub(super) type Columns = Vec<(&'static str, ArrayRef)>;

/// Writes a table with these keys, in a few files if it has many.
pub(super) fn write(
    folder: &Path,
    table: &str,
    rows: u64,
    columns: impl Fn(Range<u64>) -> Columns,
) {
    const BATCH: u64 = 65_536;
    let folder = folder.join(table);
    std::fs::create_dir(&folder).unwrap();
    let files = if rows > 10_000 { FILES } else { 1 };
    for at in 0..files {
        let (mut next, end) = (rows * at / files, rows * (at + 1) / files);
        let schema = RecordBatch::try_from_iter(columns(next..next + 1)).unwrap().schema();
        let file = File::create(folder.join(format!("{at}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, schema, None).unwrap();
        while next < end {
            let keys = next..end.min(next + BATCH);
            next = keys.end;
            writer.write(&RecordBatch::try_from_iter(columns(keys)).unwrap()).unwrap();
        }
        writer.close().unwrap();
    }
}

/// The same number for the same key and column in every run, less than `most`.
fn random_one(key: u64, column: u64, most: u64) -> u64 {
    mix(key.wrapping_mul(31).wrapping_add(column)) % most
}

pub(super) fn random(keys: Range<u64>, column: u64, most: u64) -> impl Iterator<Item = u64> {
    keys.map(move |key| random_one(key, column, most))
}

fn date(day: u64) -> i32 {
    FIRST_DAY + day as i32
}

pub(super) fn numbers(values: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values.map(|value| value as i64)))
}

/// In hundredths.
fn money(values: impl Iterator<Item = u64>) -> ArrayRef {
    let values = Decimal128Array::from_iter_values(values.map(i128::from));
    Arc::new(values.with_precision_and_scale(15, 2).unwrap())
}

fn texts<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}
