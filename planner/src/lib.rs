//! From text to a physical plan.
//!
//! - [`sql`]: statements on models, and the forms of `ml_predict` → logical plan
//! - [`logical`]: the [`logical::Inference`] node and the DataFrame call that builds it
//! - [`optimizer`]: rules on logical plans
//! - [`physical`]: `Inference` → operators of the engine, with exchanges between resource classes
//! - [`bounded`]: functions that make values of any size, within bounds
//! - [`codec`]: physical plans as bytes, for other processes
//! - [`install`](fn@install): registers all of it in a DataFusion session, in one call
//! - [`config`]: the session options under `forebay.`
//! - [`location`]: the files that a path or a URL names
//!
//! `sql`, `logical` and `optimizer` do not name the engine; only `physical`,
//! `bounded`, `codec` and what reads and writes files do.

mod arrow_files;
pub mod bounded;
pub mod codec;
pub mod config;
mod delta;
mod install;
pub mod location;
pub mod logical;
pub mod optimizer;
pub mod physical;
mod read_files;
pub mod sql;

pub use codec::ForebayPhysicalCodec;
pub use config::{Admission, ForebayConfig};
pub use install::install;
pub use logical::dataframe::DataFrameExt;
