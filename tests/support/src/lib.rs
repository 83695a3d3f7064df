//! Test helpers that know no Forebay crate.

pub mod cluster;
