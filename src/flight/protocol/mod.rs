//! What goes over the wire. Knows no sessions.
//!
//! - `encode`, `delivery`: rows as messages, until they are read
//! - `answers`: flights, schemas and small results; `metadata`, `sql_info`: what clients ask about the
//!   server
//! - `actions`: messages that arrow-flight lacks

pub(super) mod actions;
pub(super) mod answers;
pub(super) mod delivery;
pub(super) mod encode;
pub(super) mod metadata;
pub(super) mod sql_info;
