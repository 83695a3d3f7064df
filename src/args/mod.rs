//! The grammar of the command line.

pub(crate) mod cluster;
pub(crate) mod gc;
pub(crate) mod model;
mod pairs;
pub(crate) mod serve;
pub(crate) mod shell;
pub(crate) mod user;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::version;
use cluster::WorkerArgs;
use gc::GcArgs;
use model::ModelCommand;
use serve::ServeArgs;
use shell::ShellArgs;
use user::UserCommand;

/// Model inference as SQL, on Apache DataFusion
#[derive(Debug, Parser)]
#[command(name = "forebay", version, long_version = version::long(), arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Folder of the model catalog [default: $FOREBAY_CATALOG or ~/.local/share/forebay/catalog]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) catalog: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Fetch a model, embed 8,000 definitions and search them by meaning
    Demo(DemoArgs),
    /// Run SQL: interactively, from -c, from -f or from standard input
    Shell(ShellArgs),
    /// Make, add, look at, check and remove models
    #[command(subcommand)]
    Model(ModelCommand),
    /// Serve queries: a scheduler, to which workers and shells connect, and Arrow Flight SQL
    Serve(Box<ServeArgs>),
    /// Run tasks of a scheduler on this machine
    Worker(WorkerArgs),
    /// Say who may connect with Arrow Flight SQL, and what they may do
    #[command(subcommand)]
    User(UserCommand),
    /// Remove what writes have left that did not come to their end
    Gc(GcArgs),
    /// Say what was found on this machine, what is wrong and how to fix it
    Doctor,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Take the model's wheel from this file or URL [default: $FOREBAY_DEMO_MODEL, or what the index
    /// $PIP_INDEX_URL or https://pypi.org/simple says]
    #[arg(long, value_name = "FILE|URL")]
    pub(crate) model_url: Option<String>,
    /// Fetch the model and run no SQL, for machines that will have no network
    #[arg(long)]
    pub(crate) fetch_only: bool,
}
