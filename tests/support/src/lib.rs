//! Test helpers that know no Forebay crate.
