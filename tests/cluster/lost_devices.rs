//! Devices that fail for good: the process that used one is of no more use for it.

use std::fs;
use std::time::Duration;

use super::setup::{ACCELERATOR, CPU, QUERY, SLOW, Stage, run};

/// A worker whose second device does not last.
const TWO: &[&str] = &["--cpus", "1", "--gpus", "none", "--emulated-accelerators", "2"];

/// The worker ends for its supervisor to start it again, and no row is missing or there twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_loses_a_device_drains_and_ends_and_its_work_goes_elsewhere() {
    let mut stage = Stage::new(10, &[CPU, ACCELERATOR, TWO]);
    let manifest = stage.folder().join(SLOW).join("slow/model.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    let loses = "service_ms = 12\nloses = { device = 1, after = 3 }";
    let losing = text.replace("service_ms = 12", loses).replace("service_ms = 25", loses);
    assert_ne!(losing, text);
    fs::write(&manifest, losing).unwrap();
    let expected = run(&stage.local().await, QUERY).await.unwrap();
    let session = stage.session().await;
    let rows = stage.run(&session, QUERY).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(rows == expected, "{} rows, or others", rows.len());
    let ends = Duration::from_secs(60);
    stage.until("the worker ends", ends, |cluster| !cluster.worker(2).runs()).await;
    assert_eq!(stage.cluster.worker(2).wait(), Some(75), "{}", stage.cluster.said());
    let log = stage.cluster.worker(2).log();
    for part in ["error: device 'emulated:1' has failed", "start the process again"] {
        assert!(log.contains(part), "{part} is not in:\n{log}");
    }
    // It said that it leaves, and was not found to be gone.
    assert!(stage.cluster.worker(0).runs() && stage.cluster.worker(1).runs());
    assert!(!stage.cluster.scheduler().log().contains("was lost"), "{}", stage.cluster.said());
    // Queries go on without it.
    assert!(stage.run(&session, QUERY).await.unwrap() == expected);
    stage.until_nothing_is_left(&[0, 1]).await;
}
