//! What a task takes of its worker: what it needs, and what it was given.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A whole device, or a whole core, in thousandths.
pub const WHOLE: u32 = 1000;

/// What one task takes of its worker while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// Thousandths of a core. 0 takes none: the task waits for its accelerator only.
    pub cpus_milli: u32,
    /// What it takes of accelerators.
    pub accelerator: Option<AcceleratorNeed>,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// More memory, which it will hold for a while: where there is less of it in all, it takes all there is, and no
    /// worker is too small for it.
    pub memory_wanted: u64,
    /// Labels that the worker must carry.
    pub labels: BTreeSet<String>,
}

impl Need {
    /// Some cores and nothing else.
    pub fn cpus(milli: u32) -> Self {
        Self { cpus_milli: milli, ..Self::default() }
    }

    /// Memory that it takes of a machine that has enough.
    pub fn memory(&self) -> u64 {
        self.memory_bytes.saturating_add(self.memory_wanted)
    }

    /// The same need with an accelerator.
    pub fn with_accelerator(mut self, need: AcceleratorNeed) -> Self {
        self.accelerator = Some(need);
        self
    }
}

/// What one task takes of accelerators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceleratorNeed {
    kind: Option<String>,
    milli: u32,
    memory_bytes: u64,
}

/// A need that no device could ever meet.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "a task needs a fraction of one accelerator or a whole number of them, found {milli} \
     thousandths"
)]
pub struct NotAShare {
    milli: u32,
}

impl AcceleratorNeed {
    /// A fraction of one device, or whole devices. 1.5 devices cannot be given.
    pub fn try_new(milli: u32) -> Result<Self, NotAShare> {
        if milli == 0 || (milli > WHOLE && !milli.is_multiple_of(WHOLE)) {
            return Err(NotAShare { milli });
        }
        Ok(Self { kind: None, milli, memory_bytes: 0 })
    }

    /// The same need, of one kind of device only.
    pub fn with_kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// The same need with memory on each of the devices.
    pub fn with_memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// The only kind of device that will do.
    pub fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// Memory on each of the devices.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Thousandths of a device.
    pub fn milli(&self) -> u32 {
        self.milli
    }

    pub(crate) fn is_fraction(&self) -> bool {
        self.milli < WHOLE
    }

    pub(crate) fn devices(&self) -> usize {
        self.milli.div_ceil(WHOLE) as usize
    }

    /// What is taken of each device.
    pub(crate) fn per_device_milli(&self) -> u32 {
        self.milli.min(WHOLE)
    }
}

/// The devices that a task was given, by their place on its worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Places in its worker's devices.
    pub devices: Vec<u32>,
}
