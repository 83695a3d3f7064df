//! What needs Rust to test: the DataFrame API, real models, damage, cancellation, the code itself.
//! One binary, because each one links all of DataFusion.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on should say where at once"
)]

mod api {
    mod as_a_dependency;
    mod batches;
    mod cancellation;
    mod cut_texts;
    mod dataframe;
    mod demo;
    mod failures;
    mod files;
    mod flight;
    mod fuzz;
    mod joins;
    mod labels;
    mod large_rows;
    mod minilm;
    mod native;
    mod orders;
    mod packages;
    mod random;
    mod random_types;
    #[path = "../sql/wire.rs"]
    mod sending;
    mod short_memory;
    mod stage_orders;
    mod stages;
    mod standalone;
    mod tidy;
    mod wire;
}
