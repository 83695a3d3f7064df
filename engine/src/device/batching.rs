//! A model's batches on a device: as large as its declaration says on CPU cores, as large as was learned on an
//! accelerator, and on either no larger than what fits.

use std::sync::Arc;
use std::time::Duration;

use forebay_udf::model::{BatchLimits, Learned, ModelDeclaration, Observed, SearchRange, Taken};
use forebay_udf::runtime::{Device, Usage};

/// What one model's batches on one device are, and what they teach.
#[derive(Debug)]
pub(crate) struct Batching {
    learned: Arc<Learned>,
    model: Arc<ModelDeclaration>,
    device: Device,
    device_type: String,
    range: Option<SearchRange>,
}

/// A fifth of the memory that is free is left to others: libraries allocate for themselves, and a batch of the
/// same size may take more than the last one.
const FREE_TO_TAKE: f64 = 0.8;

/// In what range the size of a model's batches is looked for on a device; `None` where it is declared.
pub(crate) fn batch_range(model: &ModelDeclaration, device: Device) -> Option<SearchRange> {
    match device {
        Device::Cpu => None,
        Device::Cuda(_) | Device::Emulated(_) => model.batch_range(),
    }
}

impl Batching {
    /// `device_type`: what the device is called where lessons on it are kept.
    pub(super) fn new(
        learned: Arc<Learned>,
        model: &Arc<ModelDeclaration>,
        device: Device,
        device_type: String,
    ) -> Self {
        Self {
            learned,
            model: Arc::clone(model),
            device,
            device_type,
            range: batch_range(model, device),
        }
    }

    /// Where they are computed.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// What batches should be at this moment.
    pub(crate) fn limits(&self) -> BatchLimits {
        let Self { learned, model, device_type, range, .. } = self;
        let advice = learned.advice(model, device_type, *range);
        match range {
            Some(range) => model.searched_limits(*range, advice),
            None => model.declared_limits(advice),
        }
    }

    /// The padded size of batches at this moment, where it is looked for.
    pub(crate) fn size(&self) -> Option<u64> {
        let range = self.range?;
        self.learned.advice(&self.model, &self.device_type, Some(range)).size
    }

    /// A batch was computed in this time, or did not fit if it is `None`.
    pub(crate) fn observe(&self, rows: usize, padded: usize, busy: Option<Duration>, usage: Usage) {
        let memory = usage.bytes.zip(usage.free);
        let batch = Observed {
            rows: rows as u64,
            padded: padded as u64,
            busy,
            memory: memory.map(|(bytes, free)| Taken { bytes, bytes_max: self.may_take(free) }),
        };
        self.learned.observe(&self.model, &self.device_type, self.range, &batch);
    }

    /// A replica's batches are over, of which it computed so many rows per second if that was measured.
    pub(crate) fn ended(&self, rows_per_second: Option<f64>) {
        match rows_per_second {
            Some(rate) => self.learned.measured(&self.model, &self.device_type, rate),
            None if self.range.is_some() => self.learned.keep(&self.model),
            None => {}
        }
    }

    /// Bytes that one batch may take of those that are free: replicas share a device as they lease it, and a
    /// user may have said how much is theirs.
    fn may_take(&self, free: u64) -> u64 {
        let share = f64::from(self.model.resources.gpus.millis()) / 1000.0;
        let share = if share > 0.0 { share.min(1.0) } else { 1.0 };
        let bytes = (free as f64 * FREE_TO_TAKE * share) as u64;
        self.model.batch_caps.gpu_memory.map_or(bytes, |most| bytes.min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Devices, Inventory};
    use crate::testing::emulated_model;
    use forebay_udf::model::{Curve, RuntimeKind, Share};

    fn model(gpus: f64, gpu_memory: Option<u64>) -> Arc<ModelDeclaration> {
        let mut model = emulated_model("m");
        let curve = Some(Curve { unit_ns: 1, unit_bytes: 1, free_bytes: vec![] });
        model.runtime = RuntimeKind::Emulated {
            service_ms: 0,
            fail_on: None,
            memory_rows: None,
            curve,
            loses: None,
        };
        model.resources.gpus = Share::try_from(gpus).unwrap();
        model.batch_caps.gpu_memory = gpu_memory;
        Arc::new(model)
    }

    #[test]
    fn a_batch_leaves_memory_to_others() {
        let devices = Devices::new(Inventory::detect());
        for (gpus, gpu_memory, expected) in
            [(1.0, None, 800), (0.5, None, 400), (0.0, None, 800), (1.0, Some(300), 300)]
        {
            let batching = devices.batching(&model(gpus, gpu_memory), Device::Emulated(0));
            assert_eq!(batching.may_take(1000), expected, "{gpus} {gpu_memory:?}");
        }
    }

    #[test]
    fn sizes_are_looked_for_on_accelerators_only() {
        let devices = Devices::new(Inventory::detect());
        let model = model(1.0, None);
        assert_eq!(devices.batching(&model, Device::Emulated(0)).limits().max_rows, 128);
        let on_cores = devices.batching(&model, Device::Cpu);
        assert_eq!((on_cores.limits(), on_cores.size()), (model.batch.clone(), None));
        let fixed = Arc::new(emulated_model("m"));
        let fixed = devices.batching(&fixed, Device::Emulated(0));
        assert_eq!((fixed.limits(), fixed.size()), (model.batch.clone(), None));
        fixed.observe(8, 8, None, Usage::default());
        assert_eq!(fixed.limits().max_rows, 4, "what did not fit holds everywhere");
    }
}
