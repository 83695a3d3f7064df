//! How large batches may be, as users say it.

use serde::{Deserialize, Serialize};

use super::options::ModelOptions;

/// What options say of batches: it holds on every device, where what a package says is about CPU cores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BatchCaps {
    /// `max_batch_rows`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u32>,
    /// `max_batch_tokens`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// `max_batch_bytes`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// `batch_window_rows`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_rows: Option<u32>,
    /// `gpu_memory`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<u64>,
}

impl BatchCaps {
    /// Whether no option says anything.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// With those of more options.
    pub(super) fn add(&mut self, options: &ModelOptions) {
        self.rows = options.max_batch_rows.or(self.rows);
        self.tokens = options.max_batch_tokens.or(self.tokens);
        self.bytes = options.max_batch_bytes.or(self.bytes);
        self.window_rows = options.batch_window_rows.or(self.window_rows);
        self.gpu_memory = options.gpu_memory.or(self.gpu_memory);
    }
}
