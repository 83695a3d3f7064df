//! From text to rows, in a session.
//!
//! - `session`: in what statements run
//! - `statement`: parsed, checked and planned; `planning`: on which threads
//! - `query`: runs, and is read; `progress`: how far it is

mod planning;
mod progress;
pub(super) mod query;
pub(super) mod session;
pub(super) mod statement;
