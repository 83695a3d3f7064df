//! Arrow Flight SQL: its server in this process, with the clients of the arrow crates; and clients
//! of others, in processes of their own.

mod codes;
mod endings;
pub(crate) mod hostile;
mod jobs;
mod logins;
mod owners;
mod process;
mod python;
mod resume;
mod shell;
mod slots;
mod streams;
mod worker_process;
