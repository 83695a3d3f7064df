//! What one replica of a model leases: cores, a share of an accelerator, memory.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::error::ModelError;

/// A number of cores or accelerators, kept in thousandths so that shares add up exactly.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "f64", into = "f64")]
pub struct Share {
    millis: u32,
}

impl Share {
    /// No core and no accelerator.
    pub const ZERO: Self = Self { millis: 0 };
    /// One whole core or accelerator.
    pub const ONE: Self = Self { millis: 1000 };

    /// So many whole ones, 4,294,967 at most.
    pub const fn whole(count: u32) -> Self {
        Self { millis: count * 1000 }
    }

    /// In thousandths of one.
    pub const fn millis(self) -> u32 {
        self.millis
    }

    /// Whether this is nothing.
    pub const fn is_zero(self) -> bool {
        self.millis == 0
    }

    /// The whole number that covers this share.
    pub const fn ceil(self) -> u32 {
        self.millis.div_ceil(1000)
    }

    /// Refuses what no accelerator can give: more than one that is not a whole number.
    pub fn check_gpus(self, option: &str) -> Result<Self, ModelError> {
        if self.millis > 1000 && !self.millis.is_multiple_of(1000) {
            return Err(invalid(option, self, "0, a fraction up to 1, or a whole number"));
        }
        Ok(self)
    }
}

impl TryFrom<f64> for Share {
    type Error = ModelError;

    fn try_from(value: f64) -> Result<Self, ModelError> {
        let millis = (value * 1000.0).round();
        if !(0.0..=1e6).contains(&millis) || (value > 0.0 && millis < 1.0) {
            return Err(invalid(
                "cpus or gpus",
                value,
                "a number from 0 to 1000, in steps of 0.001",
            ));
        }
        Ok(Self { millis: millis as u32 })
    }
}

impl From<Share> for f64 {
    fn from(share: Share) -> f64 {
        f64::from(share.millis) / 1000.0
    }
}

impl FromStr for Share {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let expected = "a number from 0 to 1000, in steps of 0.001";
        let value: f64 =
            text.trim().parse().map_err(|_| invalid("cpus or gpus", text, expected))?;
        Self::try_from(value)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(*self))
    }
}

fn invalid(option: &str, value: impl fmt::Display, expected: &str) -> ModelError {
    ModelError::InvalidValue {
        option: option.to_owned(),
        value: value.to_string(),
        expected: expected.to_owned(),
    }
}

/// What one replica leases while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Cores; on a CPU also the threads that one forward pass uses. May be 0 on an accelerator.
    pub cpus: Share,
    /// Share of an accelerator: 0, a fraction up to 1, or a whole number.
    pub gpus: Share,
    /// Host memory of one loaded model.
    #[serde(with = "byte_size")]
    pub memory: u64,
    /// Accelerator memory of one loaded model with its largest batch.
    #[serde(default, with = "byte_size")]
    pub gpu_memory: u64,
    /// `key=value` that a worker of a cluster must carry. One process carries none, and runs it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub worker_labels: BTreeSet<String>,
}

/// Parses `zone=a, disk=ssd`.
pub(crate) fn parse_labels(option: &str, text: &str) -> Result<BTreeSet<String>, ModelError> {
    let labels = text.split(',').map(str::trim).filter(|label| !label.is_empty());
    let parse = |label: &str| match label.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok(format!("{}={}", key.trim(), value.trim()))
        }
        _ => Err(invalid(option, text, "labels such as 'zone=a, disk=ssd'")),
    };
    labels.map(parse).collect()
}

/// Parses `512 MiB`, `2GB`, `1024`.
pub(crate) fn parse_bytes(option: &str, text: &str) -> Result<u64, ModelError> {
    text.trim()
        .parse::<ByteSize>()
        .map(|size| size.as_u64())
        .map_err(|_| invalid(option, text, "a size such as '512 MiB' or '2 GB'"))
}

mod byte_size {
    use bytesize::ByteSize;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &u64, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{bytes} B"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
        ByteSize::deserialize(d).map(|size| size.as_u64())
    }
}
