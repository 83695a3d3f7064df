//! What a panic in DataFusion's or Ballista's planners becomes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use datafusion::common::{Result, internal_err};

/// A panic while a plan is changed would end the scheduler for all jobs; it fails this one.
pub(crate) fn no_panic<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        internal_err!("a stage of the plan cannot be made: {text}")
    })
}
