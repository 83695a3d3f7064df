//! Writes into file systems that fail, and what readers see of them.

mod delta;
mod left;
mod resume;
mod store;
mod whole;
