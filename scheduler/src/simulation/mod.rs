//! Random histories of random jobs on random clusters, in virtual time.
//!
//! Every history ends with the result of the job compared with its plain evaluation, row by row;
//! after events the graph's invariants are asked, and what it recomputes is compared with a
//! [reference](reference) that looks at everything. A history is its seed: a failure prints the
//! command that replays it with a trace.

mod reference;
mod rng;
mod scenario;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::graph::JobStatus;
use world::World;

/// Histories of each of the tests that run side by side.
const HISTORIES: u64 = 25_000;
const SEED_KEY: &str = "FOREBAY_SIM_SEED";

/// How a history ended: whether the job finished, and how often a worker was lost.
fn history(seed: u64, is_traced: bool) -> Result<(bool, u64), String> {
    let mut world = World::new(seed, is_traced);
    let run = catch_unwind(AssertUnwindSafe(|| world.run()));
    let outcome = run.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.unwrap_or_else(|| "it panicked".to_owned()))
    });
    let trace = world.trace.take().unwrap_or_default().join("\n");
    match outcome {
        Ok(()) => Ok((*world.graph.status() == JobStatus::Finished, world.troubles)),
        Err(broken) => Err(format!("{trace}\n{broken}")),
    }
}

fn histories(seeds: std::ops::Range<u64>) {
    let replayed = std::env::var(SEED_KEY).ok().and_then(|seed| seed.parse().ok());
    if let Some(seed) = replayed {
        let outcome = history(seed, true);
        assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
        return;
    }
    let count = seeds.end - seeds.start;
    let (mut finished, mut troubles) = (0, 0);
    for seed in seeds {
        match history(seed, false) {
            Ok((is_finished, lost)) => {
                finished += u64::from(is_finished);
                troubles += lost;
            }
            Err(broken) => panic!(
                "history {seed} breaks a rule:{broken}\nreplay it with a trace: {SEED_KEY}={seed} \
                 cargo test -p forebay-scheduler simulation::first_quarter"
            ),
        }
    }
    // A simulation in which nothing goes wrong, or nothing gets done, proves nothing.
    assert!(finished * 10 > count * 8, "{finished} of {count} jobs finished");
    assert!(troubles > count / 4, "{troubles} workers lost in {count} histories");
}

#[test]
fn first_quarter() {
    histories(0..HISTORIES);
}

#[test]
fn second_quarter() {
    histories(HISTORIES..2 * HISTORIES);
}

#[test]
fn third_quarter() {
    histories(2 * HISTORIES..3 * HISTORIES);
}

#[test]
fn fourth_quarter() {
    histories(3 * HISTORIES..4 * HISTORIES);
}
