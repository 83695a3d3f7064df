//! The logical plan's one node of our own, the DataFrame call that builds it, and an aggregate of plans for
//! clusters.

pub mod dataframe;
pub mod inference;
mod single_value;

pub use inference::Inference;
pub use single_value::SingleValue;
