//! What Forebay adds to SQL, for whatever dialect the session speaks.
//!
//! 1. [`mod@normalize`]: our spellings (`TABLE t`, `MODEL m`, `MAP[…]` inside `ml_predict`) become
//!    the portable ones that every dialect parses
//! 2. [`statement`]: splits text into statements; parses those on models, and ([`job_statement`]) on
//!    detached jobs; how deep they may be says [`depth`]
//! 3. [`relation`]: `ml_predict(…)` in FROM → [`Inference`](crate::logical::Inference)
//! 4. [`scalar`]: `ml_predict(…)` as an expression, lifted later by the optimizer
//! 5. [`mod@execute`]: runs a statement in a session; `on_models` those on models
//!
//! Plain DataFusion text still works through `SessionContext::sql` with the portable spellings;
//! [`sql()`] is for text that may also hold ours.

mod arguments;
mod create_model;
pub mod depth;
pub mod execute;
mod functions;
pub mod job_statement;
mod models_table;
mod named_tables;
pub mod normalize;
mod on_models;
pub mod relation;
pub mod scalar;
pub mod statement;
mod words;

pub use execute::{StatementText, execute, sql};
pub use job_statement::JobStatement;
pub use models_table::models;
pub use statement::{ModelStatement, Statement, parse};
