//! Forebay: model inference as SQL, on Apache DataFusion.
//!
//! [`ForebayContext`] is a DataFusion `SessionContext` with Forebay installed: the same SQL and
//! DataFrame API, and `ml_predict` in both.
//!
//! ```no_run
//! use forebay::prelude::*;
//!
//! # async fn example() -> datafusion::error::Result<()> {
//! let forebay = ForebayContext::new()?;
//! forebay.register_model("minilm", ".forebay/models/all-minilm-l6-v2").await?;
//! let reviews = forebay.session().read_parquet("reviews.parquet", Default::default()).await?;
//! let embedded = reviews.ml_predict("minilm", &["text"], &[])?;
//! embedded.show_limit(10).await?;
//! # Ok(())
//! # }
//! ```
//!
//! This crate holds the doors (Rust API, shell, command line) and nothing that a query needs
//! once it is planned: see `forebay-planner`, `forebay-engine` and `forebay-udf`.

mod context;
pub mod errors;
pub mod flight;
pub mod folders;
mod runs;
pub mod stores;

pub use context::{ForebayBuilder, ForebayContext};
pub use forebay_engine::{
    Accelerator, Devices, ErrorKind, InferenceReport, Inventory, RemoteError, RunReport,
};
pub use forebay_planner::{DataFrameExt, ForebayConfig, install};
pub use forebay_scheduler::{
    Cluster, Functions, Ports, RunningScheduler, RunningWorker, Scheduler, Standalone, Tls, Worker,
};
pub use forebay_udf::model::{Catalog, CatalogEntry};
pub use forebay_udf::runtime::torch::keep_freed_memory;

/// What a program that uses Forebay usually needs.
pub mod prelude {
    pub use crate::{DataFrameExt, ForebayContext};
    pub use datafusion::prelude::*;
}
