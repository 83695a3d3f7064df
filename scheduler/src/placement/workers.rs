//! What a worker has and what is taken of it, and whether what a task needs fits.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::graph::WorkerId;
use crate::resources::{AcceleratorNeed, Lease, Need, WHOLE};

/// An accelerator of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// What it is, such as `cuda`. Shared: a round of placement copies all workers.
    pub kind: Arc<str>,
    /// Its number among those of its kind on its worker.
    pub ordinal: u32,
    /// All of its memory, taken or not.
    pub memory_bytes: u64,
    /// What is taken of it.
    pub used_milli: u32,
    /// What is taken of its memory.
    pub used_memory_bytes: u64,
}

impl Device {
    /// The first device of its kind, of which nothing is taken.
    pub fn new(kind: impl Into<Arc<str>>, memory_bytes: u64) -> Self {
        Self { kind: kind.into(), ordinal: 0, memory_bytes, used_milli: 0, used_memory_bytes: 0 }
    }

    /// The same device as another one of its kind.
    pub fn with_ordinal(mut self, ordinal: u32) -> Self {
        self.ordinal = ordinal;
        self
    }

    fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind
            && (self.ordinal, self.memory_bytes) == (other.ordinal, other.memory_bytes)
    }

    fn fits(&self, need: &AcceleratorNeed) -> bool {
        need.kind().is_none_or(|kind| *kind == *self.kind)
            && self.used_milli + need.per_device_milli() <= WHOLE
            && self.used_memory_bytes + need.memory_bytes() <= self.memory_bytes
    }
}

/// A worker: what it has, and what is taken of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerState {
    /// The worker, as graphs know it.
    pub id: WorkerId,
    /// Its cores, in thousandths, taken or not.
    pub cpus_milli: u32,
    /// What is taken of them.
    pub used_cpus_milli: u32,
    /// Memory that tasks may use.
    pub memory_bytes: u64,
    /// What is taken of it.
    pub used_memory_bytes: u64,
    /// What tasks may leave on its disk; [`u64::MAX`] if it did not say.
    pub work_bytes: u64,
    /// What lies there to be read, with what the tasks that run there are expected to add.
    pub used_work_bytes: u64,
    /// Its accelerators; a lease names them by their places here.
    pub devices: Vec<Device>,
    /// What needs can ask for by name.
    pub labels: BTreeSet<String>,
    /// It is about to stop: it ends what it runs, and gets nothing new.
    pub is_draining: bool,
}

impl WorkerState {
    /// A worker of which nothing is taken.
    pub fn new(id: WorkerId, cpus_milli: u32, memory_bytes: u64) -> Self {
        Self {
            id,
            cpus_milli,
            used_cpus_milli: 0,
            memory_bytes,
            used_memory_bytes: 0,
            work_bytes: u64::MAX,
            used_work_bytes: 0,
            devices: vec![],
            labels: BTreeSet::new(),
            is_draining: false,
        }
    }

    /// The same worker with these accelerators.
    pub fn with_devices(mut self, devices: Vec<Device>) -> Self {
        self.devices = devices;
        self
    }

    /// The same worker, which may keep so many bytes of what tasks write.
    pub fn with_work_bytes(mut self, bytes: u64) -> Self {
        self.work_bytes = bytes;
        self
    }

    /// Whether the need fits beside what is taken, and on which devices. Fractions go where the
    /// least is left over, so that whole devices stay whole.
    pub fn fit(&self, need: &Need) -> Option<Lease> {
        let is_taken = need.cpus_milli > self.cpus_milli.saturating_sub(self.used_cpus_milli)
            || self.memory(need) > self.memory_bytes.saturating_sub(self.used_memory_bytes);
        if is_taken || !need.labels.is_subset(&self.labels) {
            return None;
        }
        let Some(accelerator) = &need.accelerator else { return Some(Lease::default()) };
        let fitting = (0..).zip(&self.devices).filter(|(_, device)| device.fits(accelerator));
        let mut fitting: Vec<(u32, &Device)> = fitting.collect();
        fitting.sort_by_key(|(place, device)| {
            let left = device.memory_bytes - device.used_memory_bytes;
            (WHOLE - device.used_milli, left, *place)
        });
        let devices = fitting.into_iter().map(|(place, _)| place).take(accelerator.devices());
        let lease = Lease { devices: devices.collect() };
        (lease.devices.len() == accelerator.devices()).then_some(lease)
    }

    /// Takes what a task needs. Not checked: what runs, runs, even if the worker has shrunk.
    pub fn take(&mut self, need: &Need, lease: &Lease) {
        self.used_cpus_milli = self.used_cpus_milli.saturating_add(need.cpus_milli);
        self.used_memory_bytes = self.used_memory_bytes.saturating_add(self.memory(need));
        self.change_devices(need, lease, u32::saturating_add, u64::saturating_add);
    }

    /// Gives back what [`take`](Self::take) took.
    pub fn release(&mut self, need: &Need, lease: &Lease) {
        self.used_cpus_milli = self.used_cpus_milli.saturating_sub(need.cpus_milli);
        self.used_memory_bytes = self.used_memory_bytes.saturating_sub(self.memory(need));
        self.change_devices(need, lease, u32::saturating_sub, u64::saturating_sub);
    }

    /// The memory that a task takes here.
    fn memory(&self, need: &Need) -> u64 {
        need.memory().min(self.memory_bytes.max(need.memory_bytes))
    }

    fn change_devices(
        &mut self,
        need: &Need,
        lease: &Lease,
        share: impl Fn(u32, u32) -> u32,
        memory: impl Fn(u64, u64) -> u64,
    ) {
        let Some(accelerator) = &need.accelerator else { return };
        for place in &lease.devices {
            if let Some(device) = self.devices.get_mut(*place as usize) {
                device.used_milli = share(device.used_milli, accelerator.per_device_milli());
                device.used_memory_bytes =
                    memory(device.used_memory_bytes, accelerator.memory_bytes());
            }
        }
    }

    /// How many tasks of this need the worker could run at once, if nothing were taken.
    pub fn slots(&self, need: &Need) -> u64 {
        let empty = self.emptied();
        if empty.fit(need).is_none() {
            return 0;
        }
        let by = |total: u64, needed: u64| total.checked_div(needed).unwrap_or(u64::MAX);
        let cpus = by(self.cpus_milli.into(), need.cpus_milli.into());
        let slots = cpus.min(by(self.memory_bytes, self.memory(need)));
        let Some(accelerator) = &need.accelerator else { return slots };
        let fitting = empty.devices.iter().filter(|device| device.fits(accelerator));
        slots.min(if accelerator.is_fraction() {
            fitting
                .map(|device| {
                    u64::from(WHOLE / accelerator.milli())
                        .min(by(device.memory_bytes, accelerator.memory_bytes()))
                })
                .sum()
        } else {
            (fitting.count() / accelerator.devices()) as u64
        })
    }

    /// So many bytes more lie there. Not counted where there is room for everything.
    pub(super) fn hold(&mut self, bytes: u64) {
        if self.work_bytes < u64::MAX {
            self.used_work_bytes = self.used_work_bytes.saturating_add(bytes);
        }
    }

    /// Thousandths of its accelerators that are taken.
    pub(super) fn device_load(&self) -> u64 {
        let used = self.devices.iter().map(|device| u64::from(device.used_milli)).sum::<u64>();
        used.checked_div(self.devices.len() as u64).unwrap_or(0)
    }

    /// Thousandths of its cores that are taken.
    pub(super) fn cpu_load(&self) -> u64 {
        let used = u64::from(self.used_cpus_milli) * u64::from(WHOLE);
        used.checked_div(self.cpus_milli.into()).unwrap_or(0)
    }

    fn emptied(&self) -> Self {
        let mut empty = self.clone();
        empty.free();
        empty
    }

    /// Gives back all that was taken.
    pub(super) fn free(&mut self) {
        (self.used_cpus_milli, self.used_memory_bytes, self.used_work_bytes) = (0, 0, 0);
        for device in &mut self.devices {
            (device.used_milli, device.used_memory_bytes) = (0, 0);
        }
    }

    /// Whether it is the same worker with the same things, whatever is taken of them.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.id == other.id
            && self.is_draining == other.is_draining
            && (self.cpus_milli, self.memory_bytes) == (other.cpus_milli, other.memory_bytes)
            && self.work_bytes == other.work_bytes
            && self.labels == other.labels
            && self.devices.len() == other.devices.len()
            && self.devices.iter().zip(&other.devices).all(|(own, given)| own.is_like(given))
    }
}

/// No worker could run a task, even if it had nothing else to do.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("no worker can run a task that needs {need}; {offered}")]
pub struct MissingResource {
    need: String,
    offered: String,
}

/// Whether one of these workers could run a task of this need, if it had nothing else to do.
pub(super) fn any_could_ever_fit<'a>(
    mut workers: impl Iterator<Item = &'a WorkerState>,
    need: &Need,
) -> bool {
    workers.any(|worker| !worker.is_draining && worker.emptied().fit(need).is_some())
}

/// Whether some worker could run a task of this need, if it had nothing else to do.
pub fn could_ever_fit(workers: &[WorkerState], need: &Need) -> Result<(), MissingResource> {
    if any_could_ever_fit(workers.iter(), need) {
        return Ok(());
    }
    let serving = || workers.iter().filter(|worker| !worker.is_draining);
    let most = serving().max_by_key(|worker| {
        let labels = need.labels.intersection(&worker.labels).count();
        (labels, matching(worker, need), worker.cpus_milli, worker.memory_bytes)
    });
    let offered = match most {
        None => "no worker is there".to_owned(),
        Some(worker) => format!("the best of {} workers is {worker}", serving().count()),
    };
    Err(MissingResource { need: need.to_string(), offered })
}

fn matching(worker: &WorkerState, need: &Need) -> u64 {
    let Some(accelerator) = &need.accelerator else { return 0 };
    let is_kind = |device: &&Device| accelerator.kind().is_none_or(|kind| *kind == *device.kind);
    let memory = worker.devices.iter().filter(is_kind).map(|device| device.memory_bytes >> 20);
    memory.map(|mib| mib + 1).sum()
}

/// What a query that cannot be bound at the moment waits for, in words.
pub fn waiting_for(workers: &[WorkerState], need: &Need) -> String {
    match could_ever_fit(workers, need) {
        Err(missing) => missing.to_string(),
        Ok(()) => {
            let able = workers.iter().filter(|worker| worker.emptied().fit(need).is_some());
            let (draining, busy): (Vec<_>, Vec<_>) = able.partition(|worker| worker.is_draining);
            format!(
                "waits for a worker with {need}: {} could run it and are busy, {} stop",
                busy.len(),
                draining.len()
            )
        }
    }
}

fn cores(milli: u32) -> f64 {
    f64::from(milli) / f64::from(WHOLE)
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cores", cores(self.cpus_milli))?;
        if let Some(accelerator) = &self.accelerator {
            let kind = accelerator.kind().unwrap_or("any");
            write!(f, ", {} accelerators (kind: {kind}", cores(accelerator.milli()))?;
            if accelerator.memory_bytes() > 0 {
                write!(f, ", {} each", mib(accelerator.memory_bytes()))?;
            }
            f.write_str(")")?;
        }
        if self.memory_bytes > 0 {
            write!(f, ", {} of memory", mib(self.memory_bytes))?;
        }
        if self.labels.is_empty() { Ok(()) } else { write!(f, ", labels {:?}", self.labels) }
    }
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cpus, memory) = (cores(self.cpus_milli), mib(self.memory_bytes));
        write!(f, "{} with {cpus} cores, {memory} of memory", self.id)?;
        let device = |device: &Device| format!("{} {}", device.kind, mib(device.memory_bytes));
        let devices: Vec<_> = self.devices.iter().map(device).collect();
        if devices.is_empty() {
            f.write_str(", no accelerator")?;
        } else {
            write!(f, ", accelerators [{}]", devices.join(", "))?;
        }
        if self.labels.is_empty() { Ok(()) } else { write!(f, ", labels {:?}", self.labels) }
    }
}
