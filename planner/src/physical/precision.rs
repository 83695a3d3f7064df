//! What the session's devices say of a model before there is a query: whether they compute in its precision, and which
//! of its programs they take.

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

/// By device of this process that the model may run on: which program of its package it takes, and why; empty where
/// there is no choice.
pub(crate) fn programs(config: &SessionConfig, model: &ModelDeclaration) -> Vec<(String, String)> {
    let devices = config.get_extension::<Devices>();
    devices.map(|devices| devices.programs(model)).unwrap_or_default()
}
