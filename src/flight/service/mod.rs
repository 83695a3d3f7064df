//! The calls of clients, each in its session.
//!
//! - `front`: what every call passes; `clients`, `client`: whose it is, and what is remembered of that one
//! - `flight_sql`: Flight SQL's calls; `tickets`: what they stand for; `ingest`: rows that clients send

mod client;
pub(super) mod clients;
pub(super) mod flight_sql;
pub(super) mod front;
mod ingest;
mod tickets;
