//! Slots of a device that takes the next batch before it is done with one.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use arrow::array::{ArrayRef, Float32Array};
use datafusion::execution::runtime_env::RuntimeEnv;
use futures::executor::block_on;
use proptest::prelude::*;
use tempfile::TempDir;

use super::ahead::{Ahead, NOT_FINISHED, NOT_STARTED, PANICS_AT_END, PANICS_AT_START, Seen};
use super::*;
use crate::device::{Devices, Inventory, LoadedModel, Outcome, Submitted};
use crate::testing::{Polled, emulated_model, poll_once, with_package};

const DEVICE: Device = Device::Emulated(0);

/// A process with one accelerator and a model on it.
struct Process {
    devices: Devices,
    model: Arc<ModelDeclaration>,
    loaded: Arc<LoadedModel>,
    seen: Arc<Seen>,
    _dir: TempDir,
}

impl Process {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let model = with_package(emulated_model("m"), dir.path());
        let devices = Devices::new(Inventory::detect().with_cpus(2).with_emulated(1, 1 << 30));
        let seen = Arc::new(Seen::default());
        let ahead = |inner| -> Arc<dyn Replica> {
            Arc::new(Ahead { inner, seen: Arc::clone(&seen), is_faulty: true })
        };
        let loaded = block_on_runtime(async {
            devices.replace_replica(&model, DEVICE, ahead).await;
            devices.replica(&model, DEVICE, &Arc::new(RuntimeEnv::default())).await.unwrap()
        });
        Self { devices, model, loaded, seen, _dir: dir }
    }

    fn slot(&self) -> Slot {
        self.devices.slot(&self.loaded, DEVICE, &self.model, 0).unwrap()
    }

    fn submit(&self, slot: &Slot, values: &[f32]) -> Submitted {
        slot.submit(self.loaded.replica.prepare(&[column(values)]).unwrap())
    }

    /// What the model gives, without a slot.
    fn expected(&self, values: &[f32]) -> Vec<ArrayRef> {
        let batch = self.loaded.replica.prepare(&[column(values)]).unwrap();
        self.loaded.replica.forward(batch).unwrap()
    }

    fn assert_idle(&self) {
        // A slot's thread ends what it has started after the slot is dropped.
        while self.devices.leased_millis(DEVICE) > 0 || self.seen.started.load(Ordering::SeqCst) > 0
        {
            std::thread::yield_now();
        }
    }

    fn lanes(&self) -> (usize, usize) {
        (self.seen.made.load(Ordering::SeqCst), self.seen.alive.load(Ordering::SeqCst))
    }
}

fn block_on_runtime<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap().block_on(future)
}

fn column(values: &[f32]) -> ArrayRef {
    Arc::new(Float32Array::from(values.to_vec()))
}

fn outcome(submitted: Submitted) -> Outcome {
    block_on(submitted.outcome).unwrap()
}

#[test]
fn threads_stay_with_the_model_and_end_before_it_is_gone() {
    let process = Process::new();
    assert_eq!(process.lanes(), (1, 1), "one is there when the model is loaded");
    for _ in 0..3 {
        let (one, other) = (process.slot(), process.slot());
        for slot in [&one, &other] {
            let values = [1.0, 2.0];
            let found = outcome(process.submit(slot, &values)).result.unwrap();
            assert_eq!(found, process.expected(&values));
        }
        drop((one, other));
        while process.loaded.threads.idle.lock().as_ref().unwrap().len() < 2 {
            std::thread::yield_now();
        }
        assert_eq!(process.lanes(), (2, 2), "one for each stream at a time");
    }
    let Process { devices, loaded, seen, .. } = process;
    drop((devices, loaded));
    assert_eq!(seen.alive.load(Ordering::SeqCst), 0);
}

#[test]
fn a_device_has_the_next_batch_before_the_one_before_it_is_waited_for() {
    let process = Process::new();
    let slot = process.slot();
    let lease = poll_once(process.devices.lease(DEVICE, &process.model)).unwrap().unwrap();
    let batches = [1.0, 2.0, 3.0].map(|value| process.submit(&slot, &[value]));
    drop(lease);
    let outcomes = batches.map(outcome);
    assert_eq!(process.seen.started_max.load(Ordering::SeqCst), 2);
    let held = outcomes.iter().map(|outcome| outcome.held.unwrap().pinned).max();
    assert_eq!(held, Some(2), "one row of each");
    for (outcome, value) in outcomes.into_iter().zip([1.0, 2.0, 3.0]) {
        assert_eq!(outcome.result.unwrap(), process.expected(&[value]));
    }
}

#[test]
fn whoever_waits_for_the_device_gets_it_between_two_batches() {
    let process = Process::new();
    let slot = process.slot();
    let lease = poll_once(process.devices.lease(DEVICE, &process.model)).unwrap().unwrap();
    let batches = [1.0, 2.0].map(|value| process.submit(&slot, &[value]));
    // Behind the first batch, once its thread stands in line.
    while !lease.is_wanted() {
        std::thread::yield_now();
    }
    let mut other = Polled::new(process.devices.lease(DEVICE, &process.model));
    assert!(other.is_pending());
    drop(lease);
    let [first, second] = batches;
    outcome(first).result.unwrap();
    while other.is_pending() {
        std::thread::yield_now();
    }
    assert!(!second.computes(), "the device is somebody else's");
    drop(other);
    outcome(second).result.unwrap();
    assert_eq!(process.seen.started_max.load(Ordering::SeqCst), 1);
    drop(slot);
    process.assert_idle();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A batch of so many rows.
    Submit(usize),
    /// Nobody wants the newest one any more.
    Cancel,
    Receive,
    /// The stream ends, and another one begins.
    Drop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..=PANICS_AT_END).prop_map(Step::Submit),
        1 => Just(Step::Cancel),
        3 => Just(Step::Receive),
        1 => Just(Step::Drop),
    ]
}

/// The outcome of the oldest batch is that batch's.
fn receive(process: &Process, waiting: &mut VecDeque<(Submitted, Vec<f32>)>) {
    let Some((submitted, values)) = waiting.pop_front() else { return };
    match (outcome(submitted).result, values.len()) {
        (Ok(found), 0..NOT_STARTED) => assert_eq!(found, process.expected(&values)),
        (Err(error), NOT_STARTED | NOT_FINISHED) => assert!(error.is_out_of_memory()),
        (Err(BatchError::Panic(text)), PANICS_AT_START | PANICS_AT_END) => {
            assert_eq!(text, "a bug in a model");
        }
        (found, rows) => panic!("{rows} rows: {found:?}"),
    }
}

fn run(process: &Process, steps: &[Step]) {
    let mut slot = process.slot();
    let mut waiting = VecDeque::new();
    let mut cancelled = 0;
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Submit(rows) => {
                // As many as a stream hands over at a time.
                while waiting.len() + cancelled >= 3 {
                    receive(process, &mut waiting);
                    if waiting.is_empty() && cancelled > 0 {
                        (slot, cancelled) = (process.slot(), 0);
                    }
                }
                let values = vec![number as f32; rows];
                waiting.push_back((process.submit(&slot, &values), values));
            }
            Step::Cancel => cancelled += usize::from(waiting.pop_back().is_some()),
            Step::Receive => receive(process, &mut waiting),
            Step::Drop => {
                waiting.clear();
                (slot, cancelled) = (process.slot(), 0);
            }
        }
    }
    // The rest is left as it is.
    drop(slot);
}

#[test]
fn whatever_becomes_of_batches_and_streams_outcomes_are_their_own_and_leases_come_back() {
    let process = Process::new();
    let config = ProptestConfig { cases: 10_000, ..ProptestConfig::default() };
    let steps = prop::collection::vec(step(), 1..12);
    let result = proptest::test_runner::TestRunner::new(config).run(&steps, |steps| {
        run(&process, &steps);
        process.assert_idle();
        Ok(())
    });
    result.unwrap();
    let Process { devices, loaded, seen, .. } = process;
    drop((devices, loaded));
    // Those of streams that were dropped last may still be on their way.
    while seen.alive.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
}
