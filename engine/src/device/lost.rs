//! Devices that failed so that this process can use them no more.

use std::collections::BTreeMap;

use forebay_udf::RuntimeError;
use forebay_udf::runtime::Device;
use tokio::sync::watch;

/// Which they are, with what each said when it failed. None ever comes back.
#[derive(Debug, Default)]
pub(super) struct LostDevices(watch::Sender<BTreeMap<Device, String>>);

impl LostDevices {
    /// One more, unless it is known to be lost. Whether it was not.
    pub(super) fn add(&self, device: Device, problem: &str) -> bool {
        self.0.send_if_modified(|lost| {
            let is_new = !lost.contains_key(&device);
            if is_new {
                lost.insert(device, problem.to_owned());
            }
            is_new
        })
    }

    /// Refuses a device that is lost.
    pub(super) fn check(&self, device: Device) -> Result<(), RuntimeError> {
        match self.0.borrow().get(&device) {
            None => Ok(()),
            Some(problem) => Err(error(device, problem)),
        }
    }

    /// The first of them, if there is one.
    pub(super) fn first(&self) -> Option<RuntimeError> {
        self.0.borrow().first_key_value().map(|(device, problem)| error(*device, problem))
    }

    /// Waits until there is one.
    pub(super) async fn any(&self) {
        // The sender is this value's own, so it is there as long as anybody waits.
        self.0.subscribe().wait_for(|lost| !lost.is_empty()).await.ok();
    }
}

fn error(device: Device, problem: &str) -> RuntimeError {
    let (device, problem) = (device.to_string(), problem.to_owned());
    RuntimeError::DeviceLost { device, problem, by_others: true }
}
