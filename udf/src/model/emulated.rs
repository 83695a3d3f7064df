//! What a package says of the device that an emulated model stands for.

use serde::{Deserialize, Serialize};

/// A device that an emulated model loses: from then on every batch there fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmulatedLoss {
    /// The number of the emulated accelerator in its process.
    pub device: u16,
    /// Batches that it computes before.
    pub after: u32,
}

/// What an emulated batch takes beside its fixed time. A unit is a row or, of texts, a padded token.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Nanoseconds for each unit.
    pub unit_ns: u64,
    /// Bytes of the accelerator's memory for each unit.
    #[serde(default)]
    pub unit_bytes: u64,
    /// Pairs of a number of batches and the bytes that are free once so many were computed; without them there is
    /// memory for any batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub free_bytes: Vec<[u64; 2]>,
}
