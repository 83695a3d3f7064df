//! The logical plan's nodes of our own, the DataFrame call that builds it, and functions that rules put
//! into plans.

pub mod dataframe;
pub mod inference;
mod single_value;
mod staged;
mod unknown;
pub(crate) mod vector_literal;

pub use inference::Inference;
pub use single_value::SingleValue;
pub(crate) use staged::Staged;
pub use unknown::Unknown;
