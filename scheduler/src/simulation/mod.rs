//! Random histories of random jobs on random clusters, in virtual time.
//!
//! Every history ends with the result of the job compared with its plain evaluation, row by row;
//! after events the graph's invariants are asked, and what it recomputes is compared with a
//! [reference](reference) that looks at everything. Now and then the scheduler ends, and another one goes
//! on with what was written down, of which the last may be [lost](restart), and the first a snapshot. A history is its
//! seed: a failure prints the command that replays it with a trace.

mod checks;
mod client;
mod received;
mod reference;
mod restart;
mod scenario;
mod tasks;
mod weather;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::graph::JobStatus;
use world::{AHEAD_MAX, World};

/// Histories of each of the tests that run side by side.
const HISTORIES: u64 = 25_000;
/// Histories in which everything goes wrong at once.
const STORMS: u64 = 2_000;
const SEED_KEY: &str = "FOREBAY_SIM_SEED";

/// How a world is made of a seed, and whether it is traced.
type Make = fn(u64, bool) -> World;

/// How a history ended.
struct Ended {
    is_finished: bool,
    /// How often a worker was lost.
    troubles: u64,
    /// How often the scheduler was another one.
    restarts: u64,
    /// How much of what was written down was lost with one, and how many tasks that had begun.
    lost: (u64, u64),
    /// How many tasks began early, and how many of these were in the way.
    early: (u64, u64),
    /// How often a snapshot stood for more steps than the one before.
    snapshots: u64,
}

fn history(make: Make, seed: u64, is_traced: bool) -> Result<Ended, String> {
    let mut world = make(seed, is_traced);
    let run = catch_unwind(AssertUnwindSafe(|| world.run()));
    let outcome = run.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let told = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Err(text.or(told).unwrap_or_else(|| "it panicked".to_owned()))
    });
    let trace = world.trace.take().unwrap_or_default().join("\n");
    match outcome {
        Ok(()) => Ok(Ended {
            is_finished: *world.graph.status() == JobStatus::Finished,
            troubles: world.troubles,
            restarts: world.restarted,
            lost: (world.lost, world.lost_tasks),
            early: (world.early, world.displaced),
            snapshots: world.snapshots,
        }),
        Err(broken) => Err(format!("{trace}\n{broken}")),
    }
}

/// Of many histories.
#[derive(Default)]
struct Sum {
    finished: u64,
    troubles: u64,
    restarts: u64,
    lost: u64,
    lost_tasks: u64,
    early: u64,
    displaced: u64,
    snapshots: u64,
}

/// Runs histories. Nothing if one was replayed.
fn histories(test: &str, make: Make, seeds: std::ops::Range<u64>) -> Option<Sum> {
    let replayed = std::env::var(SEED_KEY).ok().and_then(|seed| seed.parse().ok());
    if let Some(seed) = replayed {
        let outcome = history(make, seed, true);
        if let Err(broken) = outcome {
            panic!("{broken}");
        }
        return None;
    }
    let mut sum = Sum::default();
    for seed in seeds {
        match history(make, seed, false) {
            Ok(ended) => {
                sum.finished += u64::from(ended.is_finished);
                sum.troubles += ended.troubles;
                sum.restarts += ended.restarts;
                sum.lost += ended.lost.0;
                sum.lost_tasks += ended.lost.1;
                sum.early += ended.early.0;
                sum.displaced += ended.early.1;
                sum.snapshots += ended.snapshots;
            }
            Err(broken) => panic!(
                "history {seed} breaks a rule:{broken}\nreplay it with a trace: {SEED_KEY}={seed} \
                 cargo test -p forebay-scheduler simulation::{test}"
            ),
        }
    }
    Some(sum)
}

fn quarter(test: &str, number: u64) {
    let seeds = number * HISTORIES..(number + 1) * HISTORIES;
    let Some(sum) = histories(test, World::random, seeds) else { return };
    let Sum { finished, troubles, restarts, lost, lost_tasks, early, displaced, snapshots } = sum;
    // A simulation in which nothing goes wrong, or nothing gets done, proves nothing.
    assert!(finished * 10 > HISTORIES * 8, "{finished} of {HISTORIES} jobs finished");
    assert!(troubles > HISTORIES / 4, "{troubles} workers lost in {HISTORIES} histories");
    assert!(restarts > HISTORIES / 4, "{restarts} other schedulers in {HISTORIES} histories");
    assert!(lost > HISTORIES / 16, "{lost} steps lost in {HISTORIES} histories");
    assert!(
        lost_tasks > HISTORIES / 64,
        "{lost_tasks} tasks lost with their schedulers in {HISTORIES} histories"
    );
    assert!(snapshots > HISTORIES / 8, "{snapshots} snapshots in {HISTORIES} histories");
    assert!(early > HISTORIES / 64, "{early} tasks began early in {HISTORIES} histories");
    assert!(displaced > 10, "{displaced} of {early} tasks that began early were in the way");
}

#[test]
fn first_quarter() {
    quarter("first_quarter", 0);
}

#[test]
fn second_quarter() {
    quarter("second_quarter", 1);
}

#[test]
fn third_quarter() {
    quarter("third_quarter", 2);
}

#[test]
fn fourth_quarter() {
    quarter("fourth_quarter", 3);
}

/// Whatever has happened: when it is calm, and a worker is there for everything, the job ends.
#[test]
fn after_a_storm_every_job_ends_with_its_result() {
    let test = "after_a_storm_every_job_ends_with_its_result";
    let Some(Sum { finished, troubles, .. }) = histories(test, World::stormy, 0..STORMS) else {
        return;
    };
    assert_eq!(finished, STORMS);
    assert!(troubles > 3 * STORMS, "{troubles} workers lost in {STORMS} storms");
}

/// The tasks that were given to workers, and whose steps are lost, have other names than those that come after.
#[test]
fn a_successor_that_passes_over_too_few_numbers_is_found_out() {
    fn passes_over<const NUMBERS: u32>(seed: u64, is_traced: bool) -> World {
        World { passes_over: NUMBERS, ..World::random(seed, is_traced) }
    }
    let makes: [Make; AHEAD_MAX as usize] = [passes_over::<0>, passes_over::<1>, passes_over::<2>];
    for (numbers, make) in makes.into_iter().enumerate() {
        let broken = (0..HISTORIES).find_map(|seed| history(make, seed, false).err());
        let broken = broken.unwrap_or_else(|| panic!("{numbers} of {AHEAD_MAX} seem to be enough"));
        assert!(broken.contains("there has been another task"), "{broken}");
    }
}
