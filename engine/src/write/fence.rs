//! What is asked before a commit.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
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
