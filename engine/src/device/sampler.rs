//! Looks at a device again and again while somebody wants to know what it does.
//!
//! One thread per device, for all that watch it: it begins with the first [`Watch`] and ends with
//! the last one, at once. What it sees is handed to each watcher. A device that cannot be looked at
//! is never told of.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_udf::runtime::Device;
use parking_lot::Mutex;

/// From one look to the next. NVML's rates are means over about as long.
const PERIOD: Duration = Duration::from_millis(200);

/// What a device did when it was looked at; `None` for what it does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Share of the time that it computed anything: 0 to 100.
    pub(crate) busy_percent: Option<u32>,
    /// Bytes of its memory in use, by whomever.
    pub(crate) used_bytes: Option<u64>,
}

/// Looks at one device.
pub(crate) type Meter = Box<dyn FnMut() -> Reading + Send>;
/// Finds the meter of a device, on the sampler's thread.
type FindMeter = Arc<dyn Fn(Device) -> Option<Meter> + Send + Sync>;
/// Is told what was seen.
type Watcher = dyn Fn(Reading) + Send + Sync;

/// The samplers of a process.
pub(crate) struct Samplers {
    /// Devices for which it makes sense to begin a thread.
    measures: fn(Device) -> bool,
    find: FindMeter,
    period: Duration,
    running: Mutex<BTreeMap<Device, Weak<Sampler>>>,
}

/// Held by all that watch a device.
#[derive(Debug)]
struct Sampler {
    watchers: Arc<Mutex<Vec<Weak<Watcher>>>>,
    /// Dropped with the last watcher, which ends the thread.
    _until: SyncSender<Infallible>,
}

/// Watches a device for as long as it lives.
pub(crate) struct Watch {
    _sampler: Arc<Sampler>,
    _watcher: Arc<Watcher>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Samplers {
    /// Devices are looked at through the meters that `find` finds.
    pub(crate) fn new(
        measures: fn(Device) -> bool,
        find: impl Fn(Device) -> Option<Meter> + Send + Sync + 'static,
    ) -> Self {
        Self { measures, find: Arc::new(find), period: PERIOD, running: Mutex::default() }
    }

    /// Looks more often, for tests.
    #[cfg(test)]
    pub(crate) fn every(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// Tells `watcher` what the device does, from now on; `None` if that is not measured.
    pub(crate) fn watch(
        &self,
        device: Device,
        watcher: impl Fn(Reading) + Send + Sync + 'static,
    ) -> Option<Watch> {
        if !(self.measures)(device) {
            return None;
        }
        let watcher: Arc<Watcher> = Arc::new(watcher);
        let mut running = self.running.lock();
        let sampler = match running.get(&device).and_then(Weak::upgrade) {
            Some(sampler) => sampler,
            None => {
                let sampler = Arc::new(self.start(device)?);
                running.insert(device, Arc::downgrade(&sampler));
                sampler
            }
        };
        sampler.watchers.lock().push(Arc::downgrade(&watcher));
        Some(Watch { _sampler: sampler, _watcher: watcher })
    }

    fn start(&self, device: Device) -> Option<Sampler> {
        let (until, ended) = sync_channel(0);
        let watchers = Arc::new(Mutex::new(Vec::new()));
        let (find, period, told) = (Arc::clone(&self.find), self.period, Arc::clone(&watchers));
        let body = move || {
            if let Some(meter) = find(device) {
                run(meter, period, &told, &ended);
            }
        };
        // Without a thread there is nothing to see, as without a meter.
        let name = format!("forebay-meter-{device}");
        std::thread::Builder::new().name(name).spawn(body).ok()?;
        Some(Sampler { watchers, _until: until })
    }
}

fn run(
    mut meter: Meter,
    period: Duration,
    watchers: &Mutex<Vec<Weak<Watcher>>>,
    ended: &Receiver<Infallible>,
) {
    // The first look is a period after the beginning: what was before is nobody's here.
    while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
        let reading = meter();
        let mut told = Vec::new();
        watchers.lock().retain(|watcher| {
            let watcher = watcher.upgrade();
            let lives = watcher.is_some();
            told.extend(watcher);
            lives
        });
        told.iter().for_each(|watcher| watcher(reading));
    }
}

impl std::fmt::Debug for Samplers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Samplers").field("running", &self.running).finish_non_exhaustive()
    }
}

/// What a device does, by its driver's account.
#[derive(Debug)]
pub struct Utilization {
    percent: Arc<AtomicU32>,
    _watch: Watch,
}

/// A device that tells nothing, or was not asked yet.
const UNKNOWN: u32 = u32::MAX;

impl Utilization {
    pub(super) fn of(samplers: &Samplers, device: Device) -> Option<Self> {
        let percent = Arc::new(AtomicU32::new(UNKNOWN));
        let seen = Arc::clone(&percent);
        let watch = samplers.watch(device, move |reading| {
            seen.store(reading.busy_percent.unwrap_or(UNKNOWN), Ordering::Relaxed);
        });
        watch.map(|watch| Self { percent, _watch: watch })
    }

    /// Share of the time that it computed, when it was last asked: 0 to 1; `None` if it does not
    /// tell.
    pub fn share(&self) -> Option<f64> {
        let percent = self.percent.load(Ordering::Relaxed);
        (percent != UNKNOWN).then(|| f64::from(percent) / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const DEVICE: Device = Device::Cuda(0);

    /// A meter that counts its readings, begun once.
    fn samplers(begun: &Arc<AtomicU32>, ended: SyncSender<()>) -> Samplers {
        let begun = Arc::clone(begun);
        let find = move |device| {
            assert_eq!(device, DEVICE);
            begun.fetch_add(1, Ordering::SeqCst);
            let (mut next, ended) = (0, Ends(ended.clone()));
            let meter = move || {
                let _held = &ended;
                next += 1;
                Reading { busy_percent: Some(next), used_bytes: None }
            };
            Some(Box::new(meter) as Meter)
        };
        Samplers::new(|device| device == DEVICE, find).every(Duration::from_millis(1))
    }

    /// Tells when it is dropped.
    struct Ends(SyncSender<()>);

    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.send(()).ok();
        }
    }

    #[test]
    fn all_that_watch_a_device_share_a_thread_which_ends_with_the_last() {
        let (begun, (ends, ended)) = (Arc::default(), sync_channel(9));
        let samplers = samplers(&begun, ends);
        assert!(samplers.watch(Device::Cpu, |_| ()).is_none());
        let watch = |samplers: &Samplers| {
            let (sender, readings) = sync_channel(1000);
            (
                samplers.watch(DEVICE, move |reading| sender.try_send(reading).unwrap_or(())),
                readings,
            )
        };
        let (first, from_first) = watch(&samplers);
        assert_eq!(from_first.recv().unwrap().busy_percent, Some(1));
        let (second, from_second) = watch(&samplers);
        assert!(from_second.recv().unwrap().busy_percent > Some(1));
        drop(first);
        // The first is told nothing more, and the second goes on.
        while from_first.recv().is_ok() {}
        from_second.recv().unwrap();
        assert!(ended.try_recv().is_err());
        drop(second);
        ended.recv().unwrap();
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        let (third, from_third) = watch(&samplers);
        assert_eq!(from_third.recv().unwrap().busy_percent, Some(1));
        drop(third);
        ended.recv().unwrap();
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_device_without_a_meter_is_never_told_of() {
        let (looked, found) = sync_channel(9);
        let find = move |_| {
            looked.send(()).unwrap();
            None
        };
        let samplers = Samplers::new(|_| true, find).every(Duration::from_millis(1));
        let (sender, readings) = sync_channel::<Reading>(9);
        let watch = samplers.watch(DEVICE, move |reading| sender.send(reading).unwrap());
        found.recv().unwrap();
        drop(watch);
        assert!(readings.recv().is_err());
    }
}
