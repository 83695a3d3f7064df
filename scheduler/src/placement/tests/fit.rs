//! What fits a worker, and what is said of what does not.

use super::*;
use crate::resources::Lease;

#[test]
fn a_need_is_a_fraction_of_one_device_or_whole_devices() {
    for milli in [1, 500, 1000, 3000] {
        assert_eq!(AcceleratorNeed::try_new(milli).unwrap().milli(), milli);
    }
    for milli in [0, 1500] {
        let error = AcceleratorNeed::try_new(milli).unwrap_err().to_string();
        assert!(error.contains(&milli.to_string()), "{error}");
    }
}

#[test]
fn fractions_are_packed_so_that_whole_devices_stay_whole() {
    let mut found = worker("w", 1, 2);
    let half = accelerator(500);
    let mut placed = vec![];
    for need in [&half, &half, &accelerator(400)] {
        let lease = found.fit(need).unwrap();
        found.take(need, &lease);
        placed.extend(lease.devices);
    }
    assert_eq!(placed, [0, 0, 1]);
    assert_eq!(found.fit(&accelerator(1000)), None);
    let lease = Lease { devices: vec![1] };
    found.release(&accelerator(400), &lease);
    assert_eq!(found.fit(&accelerator(1000)), Some(lease));
    assert_eq!(found.fit(&accelerator(2000)), None);
}

#[test]
fn memory_of_devices_and_machines_labels_and_kinds_count() {
    let mut found = worker("w", 2, 1);
    found.labels.insert("ssd".to_owned());
    let with = |milli, mib| {
        let need = AcceleratorNeed::try_new(milli).unwrap().with_memory_bytes(mib * MIB);
        Need::cpus(0).with_accelerator(need)
    };
    found.take(&with(100, 10), &Lease { devices: vec![0] });
    assert!(found.fit(&with(100, 6)).is_some());
    assert!(found.fit(&with(100, 7)).is_none());
    let kind = AcceleratorNeed::try_new(100).unwrap().with_kind("rocm");
    assert!(found.fit(&Need::cpus(0).with_accelerator(kind)).is_none());
    let labels = |name: &str| Need { labels: [name.to_owned()].into(), ..Need::default() };
    assert!(found.fit(&labels("ssd")).is_some() && found.fit(&labels("hdd")).is_none());
    assert!(found.fit(&Need { memory_bytes: 65 * MIB, ..Need::default() }).is_none());
    found.used_cpus_milli = 2000;
    assert!(found.fit(&Need::cpus(0)).is_some(), "a need of no cores takes none");
    assert!(found.fit(&Need::cpus(1)).is_none());
}

#[test]
fn memory_that_is_wanted_is_taken_where_it_is_and_no_worker_is_too_small() {
    let wants = |mib| Need { memory_wanted: mib * MIB, ..Need::cpus(1000) };
    let mut found = worker("w", 8, 0);
    let fits = |found: &WorkerState, mib| found.fit(&wants(mib)).is_some();
    assert_eq!([20, 64, 1000].map(|mib| found.slots(&wants(mib))), [3, 1, 1]);
    found.take(&wants(20), &Lease::default());
    assert!(fits(&found, 44) && !fits(&found, 45) && !fits(&found, 1000));
    found.release(&wants(20), &Lease::default());
    found.take(&wants(1000), &Lease::default());
    assert!(!fits(&found, 1) && fits(&found, 0));
    found.release(&wants(1000), &Lease::default());
    assert_eq!(found, worker("w", 8, 0));
    // What it needs beside that is needed.
    let both = |mib| Need { memory_bytes: mib * MIB, ..wants(1000) };
    assert!(could_ever_fit(&[worker("w", 8, 0)], &both(64)).is_ok());
    assert!(could_ever_fit(&[worker("w", 8, 0)], &both(65)).is_err());
}

#[test]
fn what_is_missing_is_named_and_what_there_is() {
    let workers = [worker("small", 1, 0), worker("large", 8, 1)];
    let kind = AcceleratorNeed::try_new(2000).unwrap().with_kind("cuda");
    let need = Need::cpus(500).with_accelerator(kind);
    let error = could_ever_fit(&workers, &need).unwrap_err().to_string();
    let parts = [
        "needs 0.5 cores, 2 accelerators (kind: cuda)",
        "the best of 2 workers is large with 8 cores",
        "accelerators [cuda 16 MiB]",
    ];
    for part in parts {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    let error = could_ever_fit(&[], &need).unwrap_err().to_string();
    assert!(error.contains("no worker is there"), "{error}");
    let mut busy = worker("busy", 1, 1);
    busy.used_cpus_milli = 1000;
    assert_eq!(could_ever_fit(std::slice::from_ref(&busy), &Need::cpus(1000)), Ok(()));
    let text = waiting_for(&[busy], &Need::cpus(1000));
    assert!(text.contains("1 could run it and are busy"), "{text}");
}

#[test]
fn slots_are_what_fits_at_once() {
    let found = worker("w", 4, 2);
    let cases = [
        (Need::cpus(1500), 2),
        (accelerator(400), 4),
        (accelerator(2000), 1),
        (accelerator(3000), 0),
    ];
    for (need, slots) in cases {
        assert_eq!(found.slots(&need), slots, "{need}");
    }
}
