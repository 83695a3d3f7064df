//! What processes say to each other beside Ballista's messages: our own gRPC services.
//!
//! - [`messages`]: what travels; [`location`]: where a block is, and what it must hold
//! - [`server`]: the scheduler's side, [`membership`]: the workers that it hears; [`control_stream`]: the worker's side
//! - [`connection`]: how processes reach each other, `schedulers`: the scheduler among several; [`tls`]: encrypted, by
//!   certificates
//!
//! May name tonic; names no `ballista_*`.

use std::pin::Pin;

use futures::Stream;
use tonic::Status;

pub mod connection;
pub mod control_stream;
pub mod location;
pub mod membership;
pub mod messages;
pub(crate) mod schedulers;
pub mod server;
pub mod tls;

#[allow(missing_docs, unreachable_pub, reason = "generated")]
#[allow(clippy::all, clippy::clone_on_ref_ptr, clippy::too_many_lines, reason = "generated")]
#[allow(clippy::allow_attributes_without_reason, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/forebay.Blocks.rs"));
    include!(concat!(env!("OUT_DIR"), "/forebay.Cluster.rs"));
}

/// What a streaming call answers.
pub type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

pub use generated::blocks_client::BlocksClient;
pub use generated::blocks_server;

pub use generated::cluster_client::ClusterClient;
pub use generated::cluster_server::ClusterServer;
