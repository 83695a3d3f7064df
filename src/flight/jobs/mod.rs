//! Detached jobs: statements that run on when their session, client and connection are gone.
//!
//! - `registry`: all of them, whose they are, how many there may be, and when they are forgotten
//! - `job`: one of them; `kept`: the rows that it gave, in a file
//! - `saved`: what is left of jobs that can be resumed when the server ends; `pins`: what they were made of
//! - `table`: both as tables: `job_result('id')`, and rows of `forebay.jobs`
//!
//! What a job does is not known here: `statements` says it.

mod job;
mod kept;
pub(super) mod pins;
pub(super) mod registry;
pub(super) mod saved;
pub(super) mod table;

pub(super) use job::{About, Job};
pub(super) use kept::Keeper;
