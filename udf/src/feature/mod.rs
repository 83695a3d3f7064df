//! SQL functions for the work around models.

mod vector;

pub use vector::functions;
