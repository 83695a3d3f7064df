//! Writes into file systems that fail, and what readers see of them.

mod delta;
mod fence;
mod left;
mod resume;
mod row_groups;
mod store;
mod whole;
