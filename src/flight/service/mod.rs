//! The calls of clients, each in its session.
//!
//! - `front`: what every call passes; `clients`, `client`: whose it is, and what is remembered of that one
//! - `flight_sql`: Flight SQL's calls; `queries`: what they offer; `tickets`: what is read with them;
//!   `actions`: what is not Flight SQL's; `ingest`: rows that clients send

mod actions;
mod client;
pub(super) mod clients;
mod flight_sql;
pub(super) mod front;
mod ingest;
mod queries;
mod tickets;

use std::sync::Arc;

use clients::Clients;

/// Answers Flight SQL. Every request has its client in its extensions.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) clients: Arc<Clients>,
}
