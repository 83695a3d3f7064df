//! Our own gRPC service, beside Ballista's on the scheduler's port.
//!
//! - [`messages`]: what travels
//! - [`service`]: the scheduler's side; [`attendance`]: the worker's
//!
//! May name tonic; names no `ballista_*`.

pub mod attendance;
pub mod messages;
pub mod service;

#[allow(missing_docs, unreachable_pub, reason = "generated")]
#[allow(clippy::all, clippy::clone_on_ref_ptr, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/forebay.Cluster.rs"));
}

pub use generated::cluster_client::ClusterClient;
pub use generated::cluster_server::ClusterServer;
