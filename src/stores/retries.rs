//! How often a request to a store is made again.

use std::time::Duration;

use object_store::RetryConfig;

/// How often, and until when: what passes does so within seconds, and whoever waits for rows wants to
/// know. A task that waits may hold an accelerator, too.
const RETRIES_MAX: usize = 4;
const RETRIES_LIMIT: Duration = Duration::from_secs(20);

/// For stores of all kinds.
pub(super) fn retries() -> RetryConfig {
    RetryConfig { max_retries: RETRIES_MAX, retry_timeout: RETRIES_LIMIT, ..RetryConfig::default() }
}
