//! Whether the session's devices compute in a model's precision, asked before there is a query.

use datafusion::common::Result;
use datafusion::prelude::SessionConfig;
use forebay_engine::Devices;
use forebay_udf::model::ModelDeclaration;

/// Refuses a model that would run on CPUs of this process which only emulate its precision.
///
/// # Errors
/// Why, and what to do.
pub(crate) fn check_precision(config: &SessionConfig, model: &ModelDeclaration) -> Result<()> {
    match config.get_extension::<Devices>() {
        Some(devices) => Ok(devices.check_precision(model)?),
        None => Ok(()),
    }
}
