//! TPC-H's queries on a cluster of two workers, and on a stock Ballista scheduler and two executors with as
//! many cores, in turn.

use forebay_testkit::tpch;
use tempfile::TempDir;

use super::stock::{Stock, compare};
use super::{Cluster, Has};

/// Files of a table, and partitions of a plan.
const PARTITIONS: usize = 8;
const ROUNDS: usize = 3;

pub(super) async fn tpch() {
    let scale: f64 =
        std::env::var("FOREBAY_TPCH_SCALE").map_or(1.0, |scale| scale.parse().unwrap());
    let tables = TempDir::new().unwrap();
    tpch::write_tables(tables.path(), scale, PARTITIONS).await;
    let cores = std::thread::available_parallelism().unwrap().get().div_ceil(2);
    let has = || Has { cpus: cores as u32, accelerators: 0, work_limit: None };
    let cluster = Cluster::start_in(TempDir::new().unwrap(), &[has(), has()]).await;
    let forebay = cluster.session(PARTITIONS).await;
    let stock = Stock::start(&[cores; 2], PARTITIONS).await;
    let sessions = [forebay.session(), stock.session()];
    for session in sessions {
        for table in tpch::TABLES {
            session.sql(&tpch::create_table(table, tables.path())).await.unwrap();
        }
    }
    let query = |number: usize| (number.to_string(), tpch::query(number, scale));
    let queries: Vec<_> = (1..=tpch::QUERIES).map(query).collect();
    compare("TPC-H", &format!("\"scale\": {scale}"), &queries, sessions, ROUNDS).await;
}
