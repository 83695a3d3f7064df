//! What an emulated batch takes: time, and memory of a device that others may fill. All of it is declared, so
//! what is learned from it does not depend on how fast the machine is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytesize::ByteSize;

use super::super::replica::Usage;
use crate::model::Curve;

/// What batches take of an emulated device.
#[derive(Debug)]
pub(super) struct Times {
    fixed: Duration,
    curve: Option<Curve>,
    /// Batches that were computed.
    computed: AtomicU64,
}

impl Times {
    pub(super) fn new(fixed: Duration, curve: Option<Curve>) -> Self {
        Self { fixed, curve, computed: AtomicU64::new(0) }
    }

    /// For how long a batch of this padded size holds the device.
    pub(super) fn of(&self, padded: usize) -> Duration {
        let unit_ns = self.curve.as_ref().map_or(0, |curve| curve.unit_ns);
        self.fixed.saturating_add(Duration::from_nanos(unit_ns.saturating_mul(padded as u64)))
    }

    /// Counts a batch that is to be computed.
    ///
    /// # Errors
    /// If it takes more memory than is free.
    pub(super) fn check(&self, padded: usize) -> Result<(), String> {
        let Some(curve) = &self.curve else { return Ok(()) };
        let (bytes, free) = (bytes_of(curve, padded), self.free(curve));
        if bytes > free {
            let (bytes, free) = (ByteSize(bytes), ByteSize(free));
            return Err(format!("it takes {bytes} and the emulated memory has {free}"));
        }
        self.computed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// As a device with a clock and a count of its memory says it. Nothing without a curve.
    pub(super) fn usage(&self, padded: usize) -> Usage {
        let Some(curve) = &self.curve else { return Usage::default() };
        let is_bounded = !curve.free_bytes.is_empty();
        Usage {
            busy: Some(self.of(padded)),
            bytes: is_bounded.then(|| bytes_of(curve, padded)),
            free: is_bounded.then(|| self.free(curve)),
        }
    }

    /// Bytes that are free at this moment.
    fn free(&self, curve: &Curve) -> u64 {
        let computed = self.computed.load(Ordering::Relaxed);
        let before = curve.free_bytes.iter().rev().find(|[batches, _]| *batches <= computed);
        before.map_or(u64::MAX, |[_, free]| *free)
    }
}

fn bytes_of(curve: &Curve, padded: usize) -> u64 {
    curve.unit_bytes.saturating_mul(padded as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_memory_grow_with_a_batch_and_others_take_memory_and_return_it() {
        let free_bytes = vec![[0, 1000], [2, 100], [3, 1000]];
        let curve = Curve { unit_ns: 500, unit_bytes: 10, free_bytes };
        let times = Times::new(Duration::from_millis(1), Some(curve));
        assert_eq!(times.of(4), Duration::from_micros(1002));
        let usage = |free| {
            let busy = Some(Duration::from_micros(1002));
            Usage { busy, bytes: Some(40), free: Some(free) }
        };
        assert_eq!(times.usage(4), usage(1000));
        assert_eq!((times.check(100), times.check(100)), (Ok(()), Ok(())));
        assert_eq!(times.usage(4), usage(100));
        let error = "it takes 110 B and the emulated memory has 100 B".to_owned();
        assert_eq!((times.check(11), times.check(11)), (Err(error.clone()), Err(error)));
        assert_eq!((times.check(10), times.check(100)), (Ok(()), Ok(())));
    }

    #[test]
    fn without_a_curve_batches_take_equally_long_and_nothing_is_said() {
        let times = Times::new(Duration::from_millis(3), None);
        assert_eq!(
            (times.of(1), times.of(1 << 20)),
            (Duration::from_millis(3), Duration::from_millis(3))
        );
        assert_eq!((times.usage(9), times.check(usize::MAX)), (Usage::default(), Ok(())));
        let curve = Curve { unit_ns: 1, unit_bytes: u64::MAX, free_bytes: vec![] };
        let times = Times::new(Duration::ZERO, Some(curve));
        assert_eq!(times.check(usize::MAX), Ok(()), "no bound, whatever batches take");
        assert_eq!(times.usage(9).free, None);
    }
}
