//! Test helpers that know no Forebay crate.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where at once")]

pub mod certificates;
pub mod cluster;
pub mod disk;
pub mod proxy;
pub mod random;
pub mod tpch;
pub mod web;
