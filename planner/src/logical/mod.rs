//! The logical plan's one node of our own, the DataFrame call that builds it, and functions that rules put
//! into plans.

pub mod dataframe;
pub mod inference;
mod single_value;
mod unknown;
pub(crate) mod vector_literal;

pub use inference::Inference;
pub use single_value::SingleValue;
pub use unknown::Unknown;
