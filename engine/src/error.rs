//! What can go wrong in the engine, as a typed value that crosses DataFusion whole.

use arrow::error::ArrowError;
use datafusion::common::DataFusionError;
use forebay_udf::{ModelError, RuntimeError};

/// A model that cannot be placed, loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The package or declaration.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A runtime that cannot be loaded, or cannot load or run a model.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The devices that there are lack what the model needs.
    #[error("model '{model}' cannot be placed: {problem}; {remedy}")]
    Placement {
        /// The model's name in the catalog.
        model: String,
        /// What was asked for and what there is.
        problem: String,
        /// What the user can do, as the end of a sentence.
        remedy: String,
    },
    /// No device could run the model as it is asked for.
    #[error("model '{model}' cannot be placed: {problem}; {remedy}")]
    Unplaceable {
        /// The model's name in the catalog.
        model: String,
        /// What was asked for and what contradicts it.
        problem: String,
        /// What the user can do, as the end of a sentence.
        remedy: String,
    },
    /// The model failed on a batch that could not be divided further.
    #[error("model '{model}' on {device} failed on a batch of {rows} rows: {}", of_batch(source))]
    Batch {
        /// The model's name in the catalog.
        model: String,
        /// The device that it ran on, such as `cpu` or `cuda:0`.
        device: String,
        /// Rows of the batch that reached the model.
        rows: usize,
        /// What the runtime says, which knows nothing of the batch.
        source: Box<RuntimeError>,
    },
    /// Arrow refused to build a column.
    #[error("internal error: {0}")]
    Arrow(#[from] ArrowError),
    /// More rows failed than the model may fail.
    #[error(
        "model '{model}': {failed} of {rows} rows failed, more than max_error_ratio = \
         {max_error_ratio} allows; look at them with on_error = 'route' and a higher ratio"
    )]
    TooManyErrors {
        /// The model's name in the catalog.
        model: String,
        /// Rows that failed, of all replicas.
        failed: u64,
        /// Rows that came, those that failed included.
        rows: u64,
        /// The share of rows that may fail: 0 to 1.
        max_error_ratio: f64,
    },
    /// Nothing has happened for too long.
    #[error(
        "{operator} has made no progress for {seconds} s: {waits_for}; SET \
         forebay.no_progress_limit_s to wait longer (0: for ever)"
    )]
    NoProgress {
        /// The operator, with its model if it has one.
        operator: String,
        /// For how long nothing happened, which is the limit or a little more.
        seconds: u64,
        /// What it waits for.
        waits_for: String,
    },
    /// The thread that runs the model ended unexpectedly.
    #[error("model '{model}' on {device}: {problem}")]
    Panic {
        /// The model's name in the catalog.
        model: String,
        /// The device that it ran on, such as `cpu` or `cuda:0`.
        device: String,
        /// How the thread ended, with the panic's message if it has one.
        problem: String,
    },
}

impl EngineError {
    /// Whether the same work may succeed when it is tried again, perhaps elsewhere.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Runtime(source) => source.is_retryable(),
            Self::Batch { source, .. } => source.is_retryable(),
            Self::NoProgress { .. } | Self::Model(ModelError::Unreachable { .. }) => true,
            Self::Model(_)
            | Self::Arrow(_)
            | Self::Placement { .. }
            | Self::Unplaceable { .. }
            | Self::TooManyErrors { .. }
            | Self::Panic { .. } => false,
        }
    }
}

impl From<EngineError> for DataFusionError {
    fn from(error: EngineError) -> Self {
        match error {
            // Whole, so that it is seen to be one that may pass.
            EngineError::Model(ModelError::Unreachable { .. }) => Self::External(Box::new(error)),
            EngineError::Model(error) => error.into(),
            EngineError::Unplaceable { .. } => Self::Plan(error.to_string()),
            other => Self::External(Box::new(other)),
        }
    }
}

/// What the model's and the batch's names do not say already.
fn of_batch(error: &RuntimeError) -> String {
    match error {
        RuntimeError::Program { problem, .. } => {
            format!("{problem}; on_error = 'route' finds the rows at fault")
        }
        RuntimeError::Broken { problem, .. } => format!(
            "{problem}; it would on any row: try precision = 'fp32', or export the model again"
        ),
        RuntimeError::OutOfMemory { problem, .. } => format!("out of memory: {problem}"),
        other => other.to_string(),
    }
}

/// The message of a caught panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown panic".to_owned())
}
