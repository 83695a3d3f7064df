//! The command line. Its grammar is in `args`; each command is a module that calls the library.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command's output is its purpose")]

mod allocator;
mod args;
mod demo;
mod doctor;
mod exit;
mod gc;
mod logging;
mod model_cmd;
mod on_path;
mod serve;
mod shell;
mod signals;
mod terminal;
mod tls;
mod user_cmd;
mod version;
mod worker;

use std::time::Duration;

use clap::Parser;

use args::{Cli, Command};
use exit::end;

/// As much as the main thread has: a plan's operators poll each other, one within the other.
const STACK_BYTES: usize = 8 << 20;

/// How long what still runs at the end has to remove its temporary files. A thread inside a batch does not hear
/// of the end.
const TIDY_FOR: Duration = Duration::from_secs(1);

fn main() {
    forebay::keep_freed_memory();
    let cli = Cli::parse();
    if matches!(cli.command, Command::Worker(_)) {
        allocator::offer_freed_memory();
    }
    logging::start();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = match builder.enable_all().thread_stack_size(STACK_BYTES).build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no threads could be started: {error}");
            end(1)
        }
    };
    let status = runtime.block_on(run(cli));
    runtime.shutdown_timeout(TIDY_FOR);
    end(status)
}

/// Runs a command; returns the exit status.
async fn run(cli: Cli) -> i32 {
    match cli.command {
        Command::Demo(args) => Box::pin(demo::run(args, cli.catalog)).await,
        Command::Shell(args) => Box::pin(shell::run(args, cli.catalog)).await,
        Command::Model(command) => Box::pin(model_cmd::run(command, cli.catalog)).await,
        Command::Serve(args) => Box::pin(serve::run(*args, cli.catalog)).await,
        Command::User(command) => user_cmd::run(command),
        Command::Worker(args) => Box::pin(worker::run(args)).await,
        Command::Gc(args) => Box::pin(gc::run(args)).await,
        Command::Doctor => Box::pin(doctor::run(cli.catalog)).await,
    }
}
