use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// A device with a model: a fixed time for each batch, a time for each row, memory for each row.
#[derive(Clone, Debug)]
struct Device {
    fixed_ns: u64,
    row_ns: u64,
    row_bytes: u64,
    free: u64,
    /// Whether it says what a batch took and what is left.
    tells_memory: bool,
}

const LARGEST: u64 = 1 << 16;
const START: u64 = 128;

impl Device {
    fn time(&self, rows: u64) -> Duration {
        Duration::from_nanos(self.fixed_ns + self.row_ns * rows)
    }

    /// Rows per second in batches of so many.
    fn rate(&self, rows: u64) -> f64 {
        rows as f64 / self.time(rows).as_secs_f64()
    }

    /// What a batch may take: an engine leaves a part of the memory to others where it knows it.
    fn bytes_max(&self) -> u64 {
        if self.tells_memory { self.free / 5 * 4 } else { self.free }
    }

    /// The best that one size of all batches gives.
    fn best_rate(&self) -> f64 {
        self.rate((self.bytes_max() / self.row_bytes).clamp(1, LARGEST))
    }

    fn run(&self, rows: u64, noise: f64) -> Observed {
        let bytes = self.row_bytes * rows;
        let fits = bytes <= self.free || rows == 1;
        let memory = Taken { bytes, bytes_max: self.bytes_max() };
        Observed {
            rows,
            padded: rows,
            busy: fits.then(|| self.time(rows).mul_f64(noise)),
            memory: (fits && self.tells_memory).then_some(memory),
        }
    }
}

fn learner() -> Learner {
    Learner::new(Some(SearchRange { start: START, largest: LARGEST }), None, None)
}

/// Runs so many batches as the engine does: what does not fit is halved. Returns the rows per second.
fn run(
    learner: &mut Learner,
    device: &Device,
    batches: usize,
    mut noise: impl FnMut() -> f64,
) -> f64 {
    let (mut rows, mut busy) = (0, Duration::ZERO);
    for _ in 0..batches {
        let mut parts = VecDeque::from([learner.size().unwrap()]);
        while let Some(part) = parts.pop_front() {
            let batch = device.run(part, noise());
            learner.observe(&batch);
            match batch.busy {
                Some(time) => (rows, busy) = (rows + part, busy + time),
                None => parts.extend([part.div_ceil(2), part / 2]),
            }
        }
    }
    rows as f64 / busy.as_secs_f64()
}

fn exact() -> f64 {
    1.0
}

prop_compose! {
    /// The fixed time is that of up to 400 rows, so that six sizes get there, three batches each.
    fn devices()(
        fixed_rows in 0u64..400,
        row_ns in 100u64..1_000_000,
        row_bytes in 1u64..1_000_000,
        free_rows in 16u64..200_000,
        tells_memory: bool,
    ) -> Device {
        let (fixed_ns, free) = (fixed_rows * row_ns, free_rows * row_bytes);
        Device { fixed_ns, row_ns, row_bytes, free, tells_memory }
    }
}

proptest! {
    #[test]
    fn twenty_batches_find_a_size_that_is_hardly_worse_than_the_best(device in devices()) {
        let mut learner = learner();
        run(&mut learner, &device, 20, exact);
        let (found, best) = (device.rate(learner.size().unwrap()), device.best_rate());
        prop_assert!(found >= 0.95 * best, "{found} of {best}, {learner:?}");
    }

    /// What a measurement is off by, decisions are.
    #[test]
    fn so_they_do_when_no_two_batches_take_equally_long(
        device in devices(),
        noises in prop::collection::vec(0.99f64..1.01, 100),
    ) {
        let mut learner = learner();
        let mut noises = noises.into_iter().cycle();
        run(&mut learner, &device, 20, || noises.next().unwrap());
        let (found, best) = (device.rate(learner.size().unwrap()), device.best_rate());
        prop_assert!(found >= 0.92 * best, "{found} of {best}, {learner:?}");
    }

    #[test]
    fn a_device_that_others_fill_for_a_while_has_small_batches_for_that_while(
        device in devices(),
        part in 2u64..20,
    ) {
        let device = Device { tells_memory: true, ..device };
        let crowded = Device { free: (device.free / part).max(device.row_bytes), ..device.clone() };
        let mut learner = learner();
        for device in [&device, &crowded, &device] {
            run(&mut learner, device, 20, exact);
            let (found, best) = (device.rate(learner.size().unwrap()), device.best_rate());
            prop_assert!(found >= 0.95 * best, "{found} of {best}, {learner:?}");
        }
    }

    /// A device that does not say what it has left: it is found out, again and again.
    #[test]
    fn so_has_one_that_does_not_say_how_full_it_is(device in devices(), part in 2u64..20) {
        let device = Device { tells_memory: false, ..device };
        let crowded = Device { free: (device.free / part).max(device.row_bytes), ..device.clone() };
        let mut learner = learner();
        run(&mut learner, &device, 20, exact);
        run(&mut learner, &crowded, 20, exact);
        // Attempts in vain included.
        let rate = run(&mut learner, &crowded, 1000, exact);
        prop_assert!(rate >= 0.9 * crowded.best_rate(), "{rate} of {}", crowded.best_rate());
        // The last attempt in vain may have been followed by the longest wait.
        run(&mut learner, &device, 1100, exact);
        let (found, best) = (device.rate(learner.size().unwrap()), device.best_rate());
        prop_assert!(found >= 0.95 * best, "{found} of {best}, {learner:?}");
    }

    /// Whatever is measured, a size is at least a row and at most the largest.
    #[test]
    fn nothing_that_devices_say_leads_astray(
        batches in prop::collection::vec(
            (0u64..1 << 20, 0u64..u64::MAX, prop::option::of(0u64..u64::MAX),
             prop::option::of((0u64..u64::MAX, 0u64..u64::MAX))),
            0..200,
        ),
    ) {
        let mut learner = learner();
        for (rows, padded, busy, memory) in batches {
            let memory = memory.map(|(bytes, bytes_max)| Taken { bytes, bytes_max });
            learner.observe(&Observed { rows, padded, busy: busy.map(Duration::from_nanos), memory });
            let size = learner.size().unwrap();
            prop_assert!((1..=LARGEST).contains(&size), "{size}");
        }
    }
}

fn device() -> Device {
    let (fixed_ns, row_ns, row_bytes, free) = (100_000, 1000, 1000, 1 << 30);
    Device { fixed_ns, row_ns, row_bytes, free, tells_memory: true }
}

/// The sizes of the next batches, those that are repeated once.
fn sizes(learner: &mut Learner, device: &Device, batches: usize) -> Vec<u64> {
    let mut sizes: Vec<u64> = (0..batches)
        .map(|_| {
            let size = learner.size().unwrap();
            learner.observe(&device.run(size, 1.0));
            size
        })
        .collect();
    sizes.dedup();
    sizes
}

#[test]
fn sizes_double_while_that_gains_something() {
    let mut learner = learner();
    assert_eq!(sizes(&mut learner, &device(), 40), [128, 256, 512, 1024, 2048]);
    assert_eq!(learner.found().map(|best| best.size), Some(2048));
}

#[test]
fn a_model_that_is_slower_in_larger_batches_has_small_ones() {
    let (mut learner, device) = (learner(), device());
    for _ in 0..9 {
        let size = learner.size().unwrap();
        let slow = if size > START { 2.0 } else { 1.0 };
        learner.observe(&device.run(size, slow));
    }
    assert_eq!(learner.found().map(|best| best.size), Some(START));
}

#[test]
fn one_slow_batch_of_three_does_not_count() {
    let (mut learner, device) = (learner(), device());
    let mut times = [9.0, 1.0, 1.0].into_iter().cycle();
    run(&mut learner, &device, 20, || times.next().unwrap());
    assert_eq!(learner.found().map(|best| best.size), Some(2048));
}

#[test]
fn what_no_longer_holds_is_learned_anew() {
    let (mut learner, fast) = (learner(), device());
    run(&mut learner, &fast, 20, exact);
    // The model computes much longer rows now: a fixed time hardly counts.
    let slow = Device { row_ns: 100_000, ..fast };
    let again = sizes(&mut learner, &slow, 20);
    assert_eq!(again, [2048, 1024, 2048]);
    let found = learner.found().unwrap();
    assert!((found.rate / slow.rate(found.size) - 1.0).abs() < 1e-9, "{found:?}");
}

#[test]
fn batches_that_are_not_full_say_nothing_of_the_size() {
    let (mut learner, device) = (learner(), device());
    for _ in 0..100 {
        learner.observe(&device.run(100, 1.0));
    }
    assert_eq!((learner.size(), learner.found()), (Some(START), None));
    assert_eq!(learner.rows_per_unit(), Some(1.0));
}

#[test]
fn where_no_size_is_looked_for_only_what_does_not_fit_is_a_limit() {
    let mut learner = Learner::new(None, None, None);
    let device = Device { free: 2000, tells_memory: false, ..device() };
    assert_eq!(learner.size(), None);
    for (rows, limit) in [(8, 4), (8, 4), (4, 2), (2, 3), (3, 2)] {
        learner.observe(&device.run(rows, 1.0));
        assert_eq!(learner.size(), Some(limit), "{rows} rows");
    }
    // A larger one is tried after some time, since memory may have become free.
    let roomy = Device { free: 100_000, ..device };
    assert_eq!(sizes(&mut learner, &roomy, 10), [2, 4, 8]);
    // Of one row nothing is learned.
    let before = learner.size();
    assert!(!learner.observe(&Observed { rows: 1, padded: 4, busy: None, memory: None }));
    assert_eq!(learner.size(), before);
}
