//! Random queries around `ml_predict` give what the same queries give that look its results up.
//!
//! `make test` runs some hundred, `make random` (`FOREBAY_RANDOM=long`) ten thousand. A query is its
//! number: `FOREBAY_RANDOM_SEED` says which is the first, and alone that only this one runs.

pub(super) mod choices;
mod condition;
pub(super) mod count;
mod expression;
mod groups;
pub(super) mod oracle;
mod query;
mod relation;
pub(super) mod results;
mod second;
mod select;
pub(super) mod settings;
mod subquery;
mod tables;
mod window;
pub(super) mod writer;

use std::sync::Mutex;

use forebay::prelude::*;
use forebay::{Catalog, ForebayBuilder, ForebayContext, Inventory};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use count::{Count, is_long, seeds};
use oracle::World;
use results::Results;
use second::Second;

pub(super) fn builder() -> ForebayBuilder {
    ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30))
        .with_config(SessionConfig::new().with_target_partitions(3))
}

async fn with_tables(forebay: ForebayContext, folder: &TempDir) -> ForebayContext {
    for model in ["echo", "twin"] {
        forebay.register_model(model, &format!("tests/models/{model}")).await.unwrap();
    }
    tables::create(&forebay, folder.path()).await;
    forebay
}

fn second() -> Option<Mutex<Second>> {
    is_long().then(Second::start).flatten().map(Mutex::new)
}

/// As the executable has it: DataFusion walks plans by recursion.
pub(super) fn runtime() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).thread_stack_size(32 << 20).enable_all().build().unwrap()
}

#[test]
fn in_one_process() {
    let (runtime, folder) = (runtime(), TempDir::new().unwrap());
    let here = runtime.block_on(async {
        let here = builder().build().unwrap();
        tables::write(&here, folder.path()).await;
        with_tables(here, &folder).await
    });
    let world = World {
        there: here.clone(),
        here,
        is_cluster: false,
        results: Results::compute(),
        second: second(),
    };
    Count::run(&runtime, &world, "random::in_one_process", seeds(300, 7000)).check();
}

#[test]
fn on_a_cluster() {
    let (runtime, folder) = (runtime(), TempDir::new().unwrap());
    let [here, there] = runtime.block_on(async {
        let here = builder().build().unwrap();
        tables::write(&here, folder.path()).await;
        let there = builder().standalone().await.unwrap();
        [with_tables(here, &folder).await, with_tables(there, &folder).await]
    });
    let results = Results::compute();
    let world = World { here, there, is_cluster: true, results, second: second() };
    Count::run(&runtime, &world, "random::on_a_cluster", seeds(100, 3000)).check();
}
