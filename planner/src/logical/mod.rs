//! The logical plan's one node of our own, and the DataFrame call that builds it.

pub mod dataframe;
pub mod inference;

pub use inference::Inference;
