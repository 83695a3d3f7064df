//! What one of many clients may take.
//!
//! - [`Limits`]: what all together, and each of them, may have at a time; `slots`: who has it;
//!   `threads`: where the queries of one run
//! - `options`, `sizes`, `uses`: what no statement may ask for

pub(super) mod options;
pub(super) mod sizes;
pub(super) mod slots;
pub(super) mod threads;
pub(super) mod uses;

use std::time::Duration;

/// What all clients together, and each of them, may have at a time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sessions. When there are so many, of whoever has most the one ends that was not used for
    /// longest.
    pub sessions_max: usize,
    /// Queries that run of one user, in all its sessions, or where nobody is asked who he is of one
    /// session. One user never has all of [`Self::queries_max`].
    pub queries_per_client_max: usize,
    /// Queries of all clients that run.
    pub queries_max: usize,
    /// Prepared statements of one client, and queries that it has not read.
    pub statements_max: usize,
    /// Bytes of one result.
    pub result_bytes_max: Option<u64>,
    /// Detached jobs that run, of all clients.
    pub jobs_max: usize,
    /// Those of one user. One user never has all of [`Self::jobs_max`]; where nobody is asked who he is,
    /// only that counts.
    pub jobs_per_user_max: usize,
    /// Bytes of files in which results of detached jobs are kept, those of one user together; where
    /// nobody is asked who he is, of all.
    pub job_results_max: u64,
    /// For so long a detached job that is over is known, and its result kept.
    pub jobs_kept: Duration,
    /// A query ends whose client has taken none of its rows for so long.
    pub read_timeout: Duration,
    /// After so long without a call a session ends.
    pub session_timeout: Duration,
    /// After so long without use a statement is forgotten.
    pub statement_timeout: Duration,
    /// Whether there are several clients, of which none may take what the others need: options, sizes
    /// and plans have bounds then.
    pub is_shared: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions_max: 1000,
            queries_per_client_max: 16,
            queries_max: 256,
            statements_max: 1000,
            result_bytes_max: None,
            jobs_max: 32,
            jobs_per_user_max: 8,
            job_results_max: 10_000_000_000,
            jobs_kept: Duration::from_secs(24 * 60 * 60),
            read_timeout: Duration::from_secs(5 * 60),
            session_timeout: Duration::from_secs(30 * 60),
            statement_timeout: Duration::from_secs(10 * 60),
            is_shared: true,
        }
    }
}
