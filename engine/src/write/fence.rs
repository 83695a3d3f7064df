//! What is asked before a commit.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use futures::future::BoxFuture;

/// Knows whether this process may commit. Another one may go on with what it has begun, having taken it for gone.
pub trait Fence: fmt::Debug + Send + Sync {
    /// Asked right before a write becomes visible. Between the answer and that somebody else may come yet.
    ///
    /// # Errors
    /// Why it must not become visible.
    fn check(&self) -> BoxFuture<'_, Result<()>>;
}

/// The one that all writes of a session ask, as an extension of its configuration.
#[derive(Clone, Debug)]
pub struct CommitFence(pub Arc<dyn Fence>);

/// What a write passes before others can see something of it, and once more after what takes its time.
#[derive(Debug)]
pub(super) struct Passage {
    fence: Option<Arc<CommitFence>>,
    /// As whoever wrote the statement knows it.
    target: String,
}

impl Passage {
    pub(super) fn of(target: &str, context: &TaskContext) -> Self {
        let fence = context.session_config().get_extension::<CommitFence>();
        Self { fence, target: target.to_owned() }
    }

    /// # Errors
    /// Why the write must not become visible.
    pub(super) async fn pass(&self) -> Result<()> {
        let Some(fence) = &self.fence else { return Ok(()) };
        let passed = fence.0.check().await;
        passed.map_err(|error| error.context(format!("'{}' is not committed", self.target)))
    }
}
