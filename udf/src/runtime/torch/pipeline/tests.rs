//! The pipeline over a device that nobody has: order, overlap, and nothing left whatever happens.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use proptest::prelude::*;

use super::super::failure::is_device_failure;
use super::fake::{Fake, Fault, Host, State, TIMES, computed, needed};
use super::*;

/// More than any test needs.
const PLENTY: usize = 1 << 30;

type Device = Rc<RefCell<State>>;

fn device(limit: usize, faults: &[(usize, Fault)]) -> (Device, Pipeline<Fake>) {
    let (fake, device) = Fake::new(limit, faults.iter().copied().collect());
    (device, Pipeline::new(fake))
}

fn start(pipeline: &mut Pipeline<Fake>, device: &Device, values: &[u64]) -> Result<(), Failure> {
    let host = Host::of(device, values.to_vec());
    pipeline.start(vec![host]).map_err(|refused| refused.message)
}

fn finish(pipeline: &mut Pipeline<Fake>) -> Result<Vec<u64>, Failure> {
    pipeline.finish().unwrap().map(|outputs| outputs[0].read().to_vec())
}

fn results(values: &[u64]) -> Vec<u64> {
    values.iter().map(|value| computed(*value)).collect()
}

fn assert_nothing_is_left(device: &Device) {
    let state = device.borrow();
    let left = (state.streams, state.events, state.pinned, state.used);
    assert_eq!(left, (0, 0, 0, 0), "streams, events, pinned bytes, bytes on the device");
}

#[test]
fn a_device_has_the_next_batch_and_its_inputs_when_it_is_done_with_one() {
    let [copy_in, program, copy_out] = TIMES;
    let (device, mut pipeline) = device(PLENTY, &[]);
    for batch in 0..8 {
        start(&mut pipeline, &device, &[batch]).unwrap();
        if batch > 0 {
            assert_eq!(finish(&mut pipeline).unwrap(), results(&[batch - 1]));
        }
    }
    assert_eq!(finish(&mut pipeline).unwrap(), results(&[7]));
    assert!(pipeline.finish().is_none());
    // Only the first batch's inputs were waited for.
    assert_eq!(device.borrow().now, copy_in + 8 * (program + copy_out));
    drop(pipeline);
    assert_nothing_is_left(&device);
}

#[test]
fn a_batch_that_those_before_it_leave_no_room_for_waits_for_them() {
    // Two at once need more, as the first one's results are kept.
    let (device, mut pipeline) = device(needed(10) + 8, &[]);
    start(&mut pipeline, &device, &[1; 10]).unwrap();
    start(&mut pipeline, &device, &[2; 10]).unwrap();
    assert_eq!(finish(&mut pipeline).unwrap(), results(&[1; 10]));
    assert_eq!(finish(&mut pipeline).unwrap(), results(&[2; 10]));
    // What libtorch keeps for tensors of other streams is missing as well.
    let (device, mut pipeline) = self::device(needed(10), &[(1, Fault::OutOfMemory)]);
    start(&mut pipeline, &device, &[1; 10]).unwrap();
    assert_eq!(finish(&mut pipeline).unwrap(), results(&[1; 10]));
}

#[test]
fn what_is_too_large_is_refused_and_its_half_fits() {
    let (device, mut pipeline) = device(needed(10), &[]);
    start(&mut pipeline, &device, &[1; 5]).unwrap();
    let message = start(&mut pipeline, &device, &[2; 11]).unwrap_err();
    assert!(is_out_of_memory(&message), "{message}");
    assert_eq!(finish(&mut pipeline).unwrap(), results(&[1; 5]));
    start(&mut pipeline, &device, &[2; 6]).unwrap();
    assert_eq!(finish(&mut pipeline).unwrap(), results(&[2; 6]));
}

#[test]
fn a_batch_that_the_program_refuses_is_looked_at_and_leaves_the_others_alone() {
    // A batch is five calls, of which the third runs the program.
    let (device, mut pipeline) = device(PLENTY, &[(8, Fault::Program)]);
    start(&mut pipeline, &device, &[1]).unwrap();
    let host = Host::of(&device, vec![2]);
    let refused = pipeline.start(vec![host]).err().unwrap();
    assert!(refused.message.contains("must match"), "{}", refused.message);
    assert_eq!(refused.inputs.len(), 1);
    drop(refused);
    start(&mut pipeline, &device, &[3]).unwrap();
    assert_eq!(finish(&mut pipeline).unwrap(), results(&[1]));
    assert_eq!(finish(&mut pipeline).unwrap(), results(&[3]));
}

#[test]
fn a_device_that_failed_fails_whatever_it_has_and_gets_and_holds_nothing() {
    let (device, mut pipeline) = device(PLENTY, &[(8, Fault::Dead)]);
    start(&mut pipeline, &device, &[1]).unwrap();
    let messages = [
        start(&mut pipeline, &device, &[2]).unwrap_err(),
        finish(&mut pipeline).unwrap_err(),
        start(&mut pipeline, &device, &[3]).unwrap_err(),
    ];
    for message in messages {
        assert!(is_device_failure(&message) && !is_out_of_memory(&message), "{message}");
    }
    assert!(pipeline.finish().is_none());
    drop(pipeline);
    assert_nothing_is_left(&device);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A batch of so many values.
    Start(usize),
    /// One that is prepared, and then nobody wants it.
    Cancel(usize),
    Finish,
}

const VALUES_MAX: usize = 40;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (1..=VALUES_MAX).prop_map(Step::Start),
        1 => (1..=VALUES_MAX).prop_map(Step::Cancel),
        4 => Just(Step::Finish),
    ]
}

fn fault() -> impl Strategy<Value = (usize, Fault)> {
    let fault = prop_oneof![
        4 => Just(Fault::OutOfMemory),
        4 => Just(Fault::Program),
        2 => Just(Fault::Panic),
        1 => Just(Fault::Dead),
    ];
    (1_usize..120, fault)
}

/// Values that no other batch has.
fn values(batch: usize, count: usize) -> Vec<u64> {
    (0..count).map(|at| (batch * 1000 + at) as u64).collect()
}

/// Does the steps and leaves the pipeline as it is then, with what it has in flight.
fn run(steps: &[Step], device: &Device, pipeline: &mut Pipeline<Fake>, is_faulty: bool) {
    let mut started: VecDeque<Vec<u64>> = VecDeque::new();
    let finish_first = |pipeline: &mut Pipeline<Fake>, started: &mut VecDeque<Vec<u64>>| match (
        pipeline.finish(),
        started.pop_front(),
    ) {
        (None, None) => {}
        (Some(Ok(outputs)), Some(values)) => assert_eq!(outputs[0].read(), results(&values)),
        (Some(Err(message)), Some(_)) => assert_eq!(device.borrow().dead, Some(message)),
        (found, started) => {
            panic!("finished: {}, started: {}", found.is_some(), started.is_some())
        }
    };
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Finish => finish_first(pipeline, &mut started),
            Step::Cancel(count) => drop(Host::of(device, values(number, count))),
            Step::Start(count) => {
                if started.len() == DEPTH {
                    finish_first(pipeline, &mut started);
                }
                let values = values(number, count);
                let result = catch_unwind(AssertUnwindSafe(|| start(pipeline, device, &values)));
                match result {
                    Ok(Ok(())) => started.push_back(values),
                    Ok(Err(message)) => assert!(is_faulty || is_out_of_memory(&message)),
                    Err(_) => assert!(is_faulty),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]
    #[test]
    fn whatever_happens_results_are_of_their_batches_and_nothing_is_left(
        steps in prop::collection::vec(step(), 1..30),
        faults in prop::collection::vec(fault(), 0..4),
        room in 1..=2 * VALUES_MAX,
    ) {
        let (device, mut pipeline) = device(needed(room), &faults);
        run(&steps, &device, &mut pipeline, !faults.is_empty());
        drop(pipeline);
        assert_nothing_is_left(&device);
        // One batch is prepared while the device has as many as it takes, and each has its results.
        let most = (DEPTH + 1 + DEPTH) * VALUES_MAX * size_of::<u64>();
        prop_assert!(device.borrow().pinned_peak <= most);
    }

    #[test]
    fn without_faults_only_what_does_not_fit_by_itself_is_refused(
        sizes in prop::collection::vec(1..=VALUES_MAX, 1..20),
        room in 1..=VALUES_MAX,
    ) {
        let (device, mut pipeline) = device(needed(room), &[]);
        for size in sizes {
            while !pipeline.flights.is_empty() {
                finish(&mut pipeline).unwrap();
            }
            let fits = start(&mut pipeline, &device, &values(size, size)).is_ok();
            prop_assert_eq!(fits, size <= room);
        }
    }
}

#[test]
fn a_bug_in_a_program_does_not_free_what_the_device_uses() {
    for call in 1..8 {
        let faults = BTreeMap::from([(call, Fault::Panic)]);
        let (fake, device) = Fake::new(PLENTY, faults);
        let mut pipeline = Pipeline::new(fake);
        run(&[Step::Start(3), Step::Start(4), Step::Finish], &device, &mut pipeline, true);
        drop(pipeline);
        assert_nothing_is_left(&device);
    }
}
