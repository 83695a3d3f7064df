//! The session options under `forebay.`: `SET forebay.byte_budget = 33554432`.

use datafusion::common::extensions_options;
use datafusion::config::ConfigExtension;

extensions_options! {
    /// Options of one session.
    pub struct ForebayConfig {
        /// Bytes that one exchange may hold between its producers and its replicas.
        pub byte_budget: usize, default = 64 * 1024 * 1024

        /// Whether to put exchanges in front of inference; off only to compare.
        pub exchange: bool, default = true

        /// Whether rows with equal model inputs are computed once, within a window and unless the
        /// model is volatile.
        pub share_equal_inputs: bool, default = true
    }
}

impl ConfigExtension for ForebayConfig {
    const PREFIX: &'static str = "forebay";
}
