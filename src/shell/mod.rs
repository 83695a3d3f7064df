//! `forebay shell`: SQL from a terminal, from arguments, files or standard input.
//!
//! - [`batch`] and [`repl`]: where statements come from, and what an error or Ctrl-C does there
//! - [`statement`]: runs one statement and prints its rows; [`server`]: runs it elsewhere; [`detach`]: and
//!   does not wait for it
//! - [`progress`]: what a running query has done so far; [`rows`]: CSV and JSON, as they come;
//!   [`table`]: tables, of [`cells`]; [`output`]: where both write to
//! - [`input`], [`complete`], [`names`]: the line editor; [`commands`]: `\d` and its like;
//!   [`functions`]: `\h`
//! - [`scan`]: where statements begin and end
//!
//! Editing, highlighting and commands are those of datafusion-cli's library. Its loops are not: they
//! parse with DataFusion's parser, which knows no models. Nor are its tables, which make text of whole
//! values, however large.

mod batch;
mod cells;
mod commands;
mod complete;
mod detach;
mod functions;
mod input;
mod names;
mod output;
mod progress;
mod repl;
mod rows;
mod scan;
mod server;
mod statement;
mod table;

use std::io::{IsTerminal, stderr, stdin, stdout};
use std::path::PathBuf;
use std::sync::Arc;

use datafusion::common::{exec_err, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::prelude::SessionConfig;
use datafusion_cli::object_storage::instrumented::InstrumentedObjectStoreRegistry;
use datafusion_cli::print_options::PrintOptions;
use forebay::stores::Stores;
use forebay::{ForebayContext, Inventory};
use forebay_planner::sql::job_statement::NEEDS_SERVER;

use crate::args::cluster::EMULATED_MEMORY_BYTES;
use crate::args::shell::{ColorChoice, ShellArgs};
use crate::terminal::errors;
use progress::Reader;
use server::Server;

/// Exit statuses beside 0.
const FAILED: i32 = 1;
const CANCELLED: i32 = 130;

/// A session and how it prints.
pub(crate) struct Shell {
    context: ForebayContext,
    /// Who runs the statements, if this process does not.
    server: Option<Server>,
    /// Whether statements are submitted there, and not waited for.
    detaches: bool,
    print: PrintOptions,
    /// Whether tables show values whole.
    whole: bool,
    /// How many files that include each other are running.
    files_open: usize,
}

/// Runs the shell; returns the exit status.
pub(crate) async fn run(args: ShellArgs, catalog: Option<PathBuf>) -> i32 {
    let mut shell = match Shell::open(&args, catalog).await {
        Ok(shell) => shell,
        Err(error) => {
            errors::print(&error);
            return FAILED;
        }
    };
    let is_batch = !args.file.is_empty() || !args.command.is_empty();
    if is_batch || !stdin().is_terminal() {
        return batch::run(&mut shell, &args.file, &args.command).await;
    }
    repl::run(&mut shell).await
}

impl Shell {
    async fn open(args: &ShellArgs, catalog: Option<PathBuf>) -> Result<Self> {
        let stores = Arc::new(InstrumentedObjectStoreRegistry::new());
        let mut runtime = Stores::kept_in(Arc::clone(&stores) as _).runtime();
        if let Some(limit) = args.memory_limit {
            let bytes = usize::try_from(limit.as_u64()).unwrap_or(usize::MAX);
            runtime = runtime.with_memory_limit(bytes, 1.0);
        }
        let mut inventory = Inventory::detect().with_native_code(args.allow_native);
        let mut options = ConfigOptions::from_env()?;
        if std::env::var_os("DATAFUSION_FORMAT_NULL").is_none() {
            options.format.null = "NULL".to_owned();
        }
        let mut config = SessionConfig::from(options);
        if let Some(cpus) = args.cpus {
            inventory = inventory.with_cpus(cpus);
            config = config.with_target_partitions(cpus as usize);
        }
        if args.emulated_accelerators > 0 {
            inventory = inventory.with_emulated(args.emulated_accelerators, EMULATED_MEMORY_BYTES);
        }
        let mut builder =
            ForebayContext::builder().with_config(config).with_runtime(runtime.build_arc()?);
        if let Some(folder) = catalog {
            builder = builder.with_catalog_folder(folder)?;
        }
        let server = match &args.connect {
            Some(uri) if server::is_server(uri) => Some(Server::connect(uri, args).await?),
            _ => None,
        };
        let scheduler = args.connect.as_ref().filter(|_| server.is_none());
        check(args, server.is_some())?;
        let tls = if server.is_none() { args.tls.open()? } else { None };
        let context = match (scheduler, tls) {
            // Plans are made for what its workers have.
            (Some(scheduler), None) => builder.connect(scheduler).await?,
            (Some(scheduler), Some(tls)) => builder.with_tls(tls).connect(scheduler).await?,
            (None, Some(_)) => {
                return exec_err!("--tls-cert is for a cluster: say which one with --connect");
            }
            (None, None) => builder.with_inventory(inventory).build()?,
        };
        let print = PrintOptions {
            format: args.format,
            quiet: args.quiet,
            maxrows: args.maxrows,
            color: has_color(args.color),
            instrumented_registry: stores,
        };
        let (detaches, whole) = (args.detach, args.whole);
        Ok(Self { context, server, detaches, print, whole, files_open: 0 })
    }

    fn reader(&self) -> Reader {
        match (self.print.quiet, stderr().is_terminal()) {
            (true, _) => Reader::Nobody,
            (false, true) => Reader::Terminal,
            (false, false) => Reader::Log,
        }
    }
}

/// Whether there is a server for what is asked for.
fn check(args: &ShellArgs, is_on_server: bool) -> Result<()> {
    if args.detach && !is_on_server {
        return plan_err!("{NEEDS_SERVER}");
    }
    if args.detach && args.command.is_empty() && args.file.is_empty() {
        return plan_err!("--detach submits the statements of -c and -f; give it some");
    }
    match &args.connect {
        Some(address) if !is_on_server && (args.user.is_some() || args.server_ca.is_some()) => {
            exec_err!(
                "--user and --server-ca are for a server of Arrow Flight SQL, grpc://HOST:PORT or \
                 grpc+tls://HOST:PORT; found --connect {address}, which is a scheduler"
            )
        }
        _ => Ok(()),
    }
}

fn has_color(choice: ColorChoice) -> bool {
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
    }
}
