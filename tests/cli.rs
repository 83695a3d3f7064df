//! The `forebay` command as users run it: real processes, their output and exit status.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cli {
    mod cluster;
    mod command;
    mod doctor;
    mod endings;
    mod errors;
    mod functions;
    mod gc;
    mod input;
    mod memory;
    mod models;
    mod nvidia;
    mod printing;
    mod secrets;
    mod setup;
}
