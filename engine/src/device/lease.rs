//! Who holds which share of a device, batch by batch.
//!
//! A lease covers one forward pass of one batch and is never held while its holder waits for
//! anything else, so whoever holds one finishes and gives it back. A holder that has the next batch
//! at hand may start that one too, as long as nobody waits. Waiters are served in order of arrival.
//! Hence chained models of one query, and any number of queries, share an accelerator without a
//! deadlock, whatever their shares are.
//!
//! One rule keeps that true: a lease must be awaited by something that always runs when woken. A
//! stream does not qualify (a plan may stop polling it, and the share that it was given meanwhile
//! would be lost to everyone); a [`Slot`](super::Slot)'s own thread does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_udf::RuntimeError;
use forebay_udf::model::ModelDeclaration;
use forebay_udf::runtime::Device;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::busy::{BusyTime, Computing};
use super::lost::LostDevices;

/// Thousandths in one whole device or core.
const ONE: u32 = 1000;
/// A replica leases at least this much of a core, however little its model asks for.
const CPU_MILLIS_MIN: u32 = 100;

/// A share of a device, returned on drop.
#[derive(Debug)]
pub struct Lease {
    device: Device,
    permit: OwnedSemaphorePermit,
    waiting: Arc<AtomicUsize>,
    _computing: Computing,
}

impl Lease {
    /// Where it is valid.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Thousandths of the device, or of a core.
    pub fn millis(&self) -> usize {
        self.permit.num_permits()
    }

    /// Whether anyone waits for a share of the device. If not, its holder may keep it for its next batch.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// The shares of all devices of this process.
#[derive(Debug)]
pub(crate) struct Leases {
    cpus: u32,
    devices: Mutex<BTreeMap<Device, Shares>>,
    lost: LostDevices,
}

/// What is left of a device, and how long it was used.
#[derive(Clone, Debug)]
struct Shares {
    left: Arc<Semaphore>,
    busy: Arc<BusyTime>,
    /// How many wait for a share.
    waiting: Arc<AtomicUsize>,
}

/// Counts while it lives.
struct Waiter<'a>(&'a AtomicUsize);

impl<'a> Waiter<'a> {
    fn join(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Leases {
    pub(crate) fn new(cpus: u32) -> Self {
        Self { cpus, devices: Mutex::default(), lost: LostDevices::default() }
    }

    fn capacity(&self, device: Device) -> u32 {
        match device {
            Device::Cpu => self.cpus.saturating_mul(ONE),
            Device::Cuda(_) | Device::Emulated(_) => ONE,
        }
    }

    fn shares(&self, device: Device) -> Shares {
        let mut devices = self.devices.lock();
        let whole = || Shares {
            left: Arc::new(Semaphore::new(self.capacity(device) as usize)),
            busy: Arc::default(),
            waiting: Arc::default(),
        };
        devices.entry(device).or_insert_with(whole).clone()
    }

    /// A share of a device.
    ///
    /// # Errors
    /// [`RuntimeError::DeviceLost`], also while it waits.
    pub(crate) async fn lease(
        &self,
        device: Device,
        model: &ModelDeclaration,
    ) -> Result<Lease, RuntimeError> {
        let millis = share_millis(device, model).min(self.capacity(device));
        let Shares { left, busy, waiting } = self.shares(device);
        let permit = {
            let _waiter = Waiter::join(&waiting);
            left.acquire_many_owned(millis).await
        };
        match permit {
            Ok(permit) => Ok(Lease { device, permit, waiting, _computing: busy.begin() }),
            Err(_) => Err(self.lost.check(device).err().unwrap_or_else(|| {
                unreachable!("only devices that are recorded as lost are closed")
            })),
        }
    }

    /// Takes note of what an error says of a device. If it is lost, nobody is given a share of it any more, and
    /// who waits for one is told so. What is out stays until it is given back.
    pub(crate) fn heed(&self, device: Device, error: &RuntimeError) {
        if let RuntimeError::DeviceLost { problem, .. } = error
            && self.lost.add(device, problem)
        {
            self.shares(device).left.close();
        }
    }

    /// The devices that nobody is given a share of any more.
    pub(super) fn lost(&self) -> &LostDevices {
        &self.lost
    }

    /// Thousandths that are out at this moment.
    pub(crate) fn leased_millis(&self, device: Device) -> usize {
        (self.capacity(device) as usize)
            .saturating_sub(self.shares(device).left.available_permits())
    }

    /// For how long some share of a device was out.
    pub(crate) fn busy_time(&self, device: Device) -> Duration {
        self.shares(device).busy.total()
    }
}

/// What one replica of a model leases of a device, in thousandths. A model that names no share of
/// the accelerator it runs on has it alone; one that names no cores takes one.
pub(crate) fn share_millis(device: Device, model: &ModelDeclaration) -> u32 {
    match device {
        Device::Cpu if model.resources.cpus.is_zero() => ONE,
        Device::Cpu => model.resources.cpus.millis().max(CPU_MILLIS_MIN),
        Device::Cuda(_) | Device::Emulated(_) if model.resources.gpus.is_zero() => ONE,
        Device::Cuda(_) | Device::Emulated(_) => model.resources.gpus.millis(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{emulated_model, poll_once};
    use forebay_udf::model::Share;

    fn model(gpus: f64) -> ModelDeclaration {
        let mut model = emulated_model("m");
        model.resources.gpus = Share::try_from(gpus).unwrap();
        model
    }

    #[test]
    fn a_whole_accelerator_is_exclusive_and_returned_on_drop() {
        let leases = Leases::new(1);
        let (device, model) = (Device::Emulated(0), model(1.0));
        let first = poll_once(leases.lease(device, &model)).unwrap().unwrap();
        let mut second = task(leases.lease(device, &model));
        assert!(second.is_pending());
        assert_eq!(leases.leased_millis(device), 1000);
        drop(first);
        assert!(second.is_woken());
        assert!(!second.is_pending());
        drop(second);
        assert_eq!(leases.leased_millis(device), 0);
    }

    #[test]
    fn a_lease_is_wanted_while_somebody_waits() {
        let leases = Leases::new(1);
        let (device, model) = (Device::Emulated(0), model(1.0));
        let first = poll_once(leases.lease(device, &model)).unwrap().unwrap();
        assert!(!first.is_wanted());
        let mut waiter = task(leases.lease(device, &model));
        assert!(waiter.is_pending() && first.is_wanted());
        drop(waiter);
        assert!(!first.is_wanted());
    }

    #[test]
    fn fractions_share_and_a_large_request_is_not_overtaken() {
        let leases = Leases::new(1);
        let device = Device::Emulated(0);
        let (half, whole) = (model(0.5), model(1.0));
        let first = poll_once(leases.lease(device, &half)).unwrap().unwrap();
        let mut large = task(leases.lease(device, &whole));
        assert!(large.is_pending());
        let mut late = task(leases.lease(device, &half));
        assert!(late.is_pending(), "first come, first served");
        drop(first);
        assert!(!large.is_pending());
        assert!(late.is_pending());
        drop(large);
        assert!(!late.is_pending());
    }

    #[test]
    fn an_abandoned_waiter_leaves_its_place() {
        let leases = Leases::new(1);
        let (device, model) = (Device::Emulated(0), model(1.0));
        let first = poll_once(leases.lease(device, &model)).unwrap().unwrap();
        let mut waiter = task(leases.lease(device, &model));
        assert!(waiter.is_pending());
        drop(first);
        drop(waiter);
        assert_eq!(leases.leased_millis(device), 0);
    }

    #[test]
    fn a_closed_device_refuses_who_waits_and_who_comes_and_no_other_device_does() {
        let leases = Leases::new(1);
        let (device, model) = (Device::Emulated(0), model(1.0));
        let first = poll_once(leases.lease(device, &model)).unwrap().unwrap();
        let mut waiter = task(leases.lease(device, &model));
        assert!(waiter.is_pending());
        let (name, problem) = (device.to_string(), "it fell off the bus".to_owned());
        leases.heed(device, &RuntimeError::DeviceLost { device: name, problem, by_others: false });
        assert!(waiter.is_woken());
        assert!(!waiter.is_pending());
        let error = waiter.into_output().unwrap().unwrap_err().to_string();
        assert!(error.contains("it fell off the bus"), "{error}");
        assert!(poll_once(leases.lease(device, &model)).unwrap().is_err());
        drop(first);
        assert_eq!(leases.leased_millis(device), 0);
        assert!(poll_once(leases.lease(Device::Emulated(1), &model)).unwrap().is_ok());
    }

    fn task<F: Future>(future: F) -> crate::testing::Polled<F> {
        crate::testing::Polled::new(future)
    }
}
