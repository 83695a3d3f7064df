//! What travels, as protobuf. Fields are never renumbered.
//!
//! By who says it to whom: a worker and the scheduler in `control`, a client and the scheduler in
//! `cluster`, `jobs` and `tables`, whoever reads a block and the worker that has it in `blocks`.

mod blocks;
mod cluster;
mod control;
mod jobs;
mod tables;

use tonic::Status;

pub use blocks::{BlockFilePart, BlockFiles, Chunk, FetchRequest};
pub use cluster::{Accelerator, ClusterDescription, DescribeRequest, Inventory, Worker};
pub use control::{
    Busy, DealtAnswer, DealtRequest, Draining, Free, FromWorker, Full, Hello, Holds, Leave, Sealed,
    TaskName, ToWorker, Welcome, from_worker, to_worker,
};
pub use jobs::{
    Accepted, Failed, Finished, LostBlock, Progress, ReadAnswer, ReadDone, ReadRequest, RunRequest,
    RunUpdate, SessionOption, run_update,
};
pub use tables::{Analysis, AnalyzeRequest, TableRequest, TableRows};

/// Bumped when a worker and a scheduler could no longer understand each other, or what one of them has written
/// down of a job.
pub const PROTOCOL: u32 = 11;

/// The version of this process, which travels for people beside [`PROTOCOL`].
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why a scheduler with the state `own`, or none, cannot go on for `whom`, whose scheduler had the state `before`.
pub(crate) fn is_no_successor(own: &str, whom: &str, before: &str) -> String {
    let own = match own {
        "" => "no state".to_owned(),
        id => format!("the state {id}"),
    };
    format!(
        "this scheduler has {own}, and {whom} belongs to one with the state {before}: it is no successor of that; start \
         one with that --state at this address, or begin {whom} anew with this one"
    )
}

/// Refuses a caller of another protocol: `who`, which said so of itself, calls `callee`.
pub(crate) fn check_protocol(
    who: &str,
    protocol: u32,
    version: &str,
    callee: &str,
) -> Result<(), Status> {
    if protocol == PROTOCOL {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "{who} speaks protocol {protocol} (forebay {version}), {callee} {PROTOCOL} (forebay \
         {VERSION}); run the same version on all machines"
    )))
}
