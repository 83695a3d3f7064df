//! Arrow Flight SQL: its server in this process, with the clients of the arrow crates; and clients
//! of others, in processes of their own.

mod hostile;
mod python;
mod shell;
mod streams;
