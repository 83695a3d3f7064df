//! The session options under `forebay.`: `SET forebay.byte_budget = 33554432`.

use std::time::Duration;

use datafusion::common::extensions_options;
use datafusion::config::ConfigExtension;

extensions_options! {
    /// Options of one session.
    pub struct ForebayConfig {
        /// Bytes that one exchange may hold between its producers and its replicas.
        pub byte_budget: usize, default = 64 * 1024 * 1024

        /// Whether to put exchanges in front of inference; off only to compare.
        pub exchange: bool, default = true

        /// Seconds after which a query that makes no progress fails; 0 for never.
        pub no_progress_limit_s: u64, default = 600

        /// Whether rows with equal model inputs are computed once, within a window and unless the
        /// model is volatile.
        pub share_equal_inputs: bool, default = true

        /// Whether conditions that need no model's output run before the model.
        pub push_filters_below_inference: bool, default = true

        /// Whether a LIMIT without ORDER BY bounds the rows that a model sees.
        pub push_limits_below_inference: bool, default = true

        /// Whether ORDER BY with LIMIT over columns that no model computes runs before the model.
        pub push_topk_below_inference: bool, default = true

        /// Whether IN and EXISTS over columns that no model computes run before the model.
        pub push_semi_joins_below_inference: bool, default = true

        /// Whether the same model over the same columns runs once in a query.
        pub merge_equal_inferences: bool, default = true

        /// Whether inference drops the columns and outputs that nobody needs, and itself if none is
        /// needed.
        pub prune_unused_columns: bool, default = true

        /// Whether conditions on models run one after the other, the smallest model first.
        pub order_filters_by_cost: bool, default = true
    }
}

impl ForebayConfig {
    /// After how long a query that makes no progress fails.
    pub fn no_progress_limit(&self) -> Option<Duration> {
        (self.no_progress_limit_s > 0).then(|| Duration::from_secs(self.no_progress_limit_s))
    }
}

impl ConfigExtension for ForebayConfig {
    const PREFIX: &'static str = "forebay";
}
