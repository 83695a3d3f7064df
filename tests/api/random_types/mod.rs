//! Random plans over columns of all types give what plain DataFusion gives, in types and rows: in one
//! process, with the physical plan sent through its bytes, and on a cluster of two workers.
//!
//! `make test` runs some, `make random` thousands; `FOREBAY_RANDOM` and `FOREBAY_RANDOM_SEED` are as
//! for the other [random queries](super::random), which ask more of SQL and have one type only.

mod kinds;
mod models;
mod operators;
mod oracle;
mod tables;
mod writer;

use datafusion::prelude::{SessionConfig, SessionContext};
use forebay::ForebayContext;
use forebay_testkit::cluster::Cluster;
use tempfile::TempDir;

use super::random::count::{Count, seeds};
use super::random::{builder, runtime};
use models::Models;
use oracle::World;
use tables::Tables;

const WORKER: &[&str] = &["--cpus", "2", "--gpus", "none", "--emulated-accelerators", "1"];

#[test]
fn all_types_in_all_ways() {
    let (runtime, folder) = (runtime(), TempDir::new().unwrap());
    let mut cluster = Cluster::start(env!("CARGO_BIN_EXE_forebay"), &[]);
    for _ in 0..2 {
        cluster.add_worker(WORKER);
    }
    let world = runtime.block_on(async {
        let config = SessionConfig::new().with_target_partitions(3);
        let plain = SessionContext::new_with_config(config.clone());
        let plain_without_views = SessionContext::new_with_config(
            config
                .set_bool("datafusion.execution.parquet.schema_force_view_types", false)
                .set_bool("datafusion.sql_parser.map_string_types_to_utf8view", false),
        );
        let tables = Tables::write(&plain, folder.path()).await;
        for plain in [&plain, &plain_without_views] {
            tables.create(plain, folder.path()).await;
        }
        let here = builder().build().unwrap();
        let there = builder().connect(cluster.address()).await.unwrap();
        for forebay in [&here, &there] {
            with_models(forebay).await;
            tables.create(forebay.session(), folder.path()).await;
        }
        let models = Models::compute(&tables);
        World { plain, plain_without_views, here, cluster: there, models }
    });
    let test = "random_types::all_types_in_all_ways";
    Count::run(&runtime, &world, test, seeds(24, 3000)).check();
}

async fn with_models(forebay: &ForebayContext) {
    for model in ["echo", "sentiment", "vector"] {
        forebay.register_model(model, &format!("tests/models/{model}")).await.unwrap();
    }
}
