//! Devices that fail for good.

use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::physical_plan::ExecutionPlan;
use forebay_udf::RuntimeError;
use forebay_udf::model::{EmulatedLoss, ModelDeclaration, OnError, RuntimeKind};
use forebay_udf::runtime::Device;
use futures::StreamExt;
use tempfile::TempDir;

use super::{DEVICE, Shape, devices, infer, metric, pool};
use crate::EngineError;
use crate::testing::{collect_all, context, emulated_model, numbers, table, with_package};

/// A model that loses the first emulated accelerator after some batches, over one partition of 20 rows in
/// batches of at most 8.
fn losing(
    after: u32,
    on_error: OnError,
    dir: &TempDir,
) -> (Arc<ModelDeclaration>, Arc<dyn ExecutionPlan>) {
    let mut model = emulated_model("m");
    model.on_error = on_error;
    let loses = Some(EmulatedLoss { device: 0, after });
    model.runtime = RuntimeKind::Emulated {
        service_ms: 0,
        fail_on: None,
        memory_rows: None,
        curve: None,
        loses,
    };
    let model = with_package(model, dir.path());
    let batch = numbers(0..20, |_| false);
    let input = table(&[vec![batch.clone()]], batch.schema());
    let plan = infer(input, &model, "digest", Shape::Direct, 1, 1 << 20);
    (model, plan)
}

/// The error of a device that is lost, and whether another batch lost it.
fn lost(error: &DataFusionError) -> (String, bool) {
    let DataFusionError::External(found) = error.find_root() else {
        panic!("typed, not {error:?}")
    };
    let found = found.downcast_ref::<EngineError>().unwrap();
    assert!(found.is_retryable());
    let EngineError::Runtime(RuntimeError::DeviceLost { by_others, .. }) = found else {
        panic!("{found:?}")
    };
    (found.to_string(), *by_others)
}

#[tokio::test]
async fn a_device_that_is_lost_is_used_no_more_and_every_query_says_what_to_do() {
    for on_error in [OnError::Fail, OnError::Null] {
        let dir = TempDir::new().unwrap();
        let (model, plan) = losing(1, on_error, &dir);
        let context = context(2, pool());
        let devices = devices(&context);
        devices.check_devices().unwrap();
        let (said, by_others) = lost(&collect_all(&plan, &context).await.unwrap_err());
        assert!(!by_others);
        for part in ["device 'emulated:0'", "failed for good", "start the process again"] {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
        devices.device_lost().await;
        assert_eq!(devices.check_devices().unwrap_err().to_string(), said);
        // Whoever comes now gets no lease, and hears the same words.
        assert!(devices.lease(DEVICE, &model).await.is_err());
        assert_eq!(lost(&collect_all(&plan, &context).await.unwrap_err()), (said, true));
        assert_eq!(devices.leased_millis(DEVICE), 0);
        // The other device of the process works.
        assert!(devices.lease(Device::Emulated(1), &model).await.is_ok());
    }
}

#[tokio::test]
async fn who_waits_for_a_device_when_it_is_lost_is_told() {
    let dir = TempDir::new().unwrap();
    let (model, plan) = losing(9, OnError::Fail, &dir);
    let context = context(1, pool());
    let devices = devices(&context);
    let lease = devices.lease(DEVICE, &model).await.unwrap();
    let mut stream = plan.execute(0, Arc::clone(&context)).unwrap();
    while metric(&plan, "replicas") == 0 {
        assert!(futures::poll!(stream.next()).is_pending());
        tokio::task::yield_now().await;
    }
    let (device, problem) = (DEVICE.to_string(), "it fell off the bus".to_owned());
    devices.heed(DEVICE, &RuntimeError::DeviceLost { device, problem, by_others: false });
    let (said, by_others) = lost(&stream.next().await.unwrap().unwrap_err());
    assert!(by_others && said.contains("it fell off the bus"), "{said}");
    drop(lease);
    assert_eq!(devices.leased_millis(DEVICE), 0);
}
