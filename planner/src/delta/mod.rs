//! `STORED AS DELTATABLE`: tables of Delta Lake, whose scans and writes are DataFusion's and the engine's
//! operators for Parquet files.
//!
//! - `factory`: `CREATE EXTERNAL TABLE`
//! - `table`: what a session plans with
//! - `prune`: files that a query need not read

mod factory;
mod prune;
mod table;

pub(crate) use factory::add_to;
