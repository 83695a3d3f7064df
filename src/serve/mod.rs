//! `forebay serve`: a scheduler, to which workers and shells connect, and Arrow Flight SQL for all
//! other clients.

mod state;
mod worker_process;

use std::io::{self, Write, stdout};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, thread};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::prelude::SessionConfig;
use forebay::flight::{FlightServer, FlightTls, Limits, Listening, Users};
use forebay::{ForebayBuilder, ForebayContext, RunningScheduler, Scheduler, Tls};
use forebay_scheduler::journal::Hold;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::args::serve::{FlightArgs, ServeArgs};
use crate::signals::obeying;
use crate::terminal::errors;
use crate::worker;
use state::{let_go, lost, take};
use worker_process::OwnWorker;

/// The token of whoever started a private server; as for the shell, secrets stay off command lines.
const TOKEN: &str = "FOREBAY_TOKEN";

/// Serves until it is told to stop; returns the exit status.
pub(crate) async fn run(args: ServeArgs, catalog: Option<PathBuf>) -> i32 {
    match obeying(|stop| Box::pin(serve(args, catalog, stop))).await {
        Ok(()) => 0,
        Err(error) => {
            errors::print(&error);
            1
        }
    }
}

async fn serve(args: ServeArgs, catalog: Option<PathBuf>, stop: CancellationToken) -> Result<()> {
    check(&args.flight, args.listen.insecure)?;
    if args.embedded {
        Box::pin(serve_embedded(args, catalog, stop)).await
    } else {
        Box::pin(serve_cluster(args, catalog, stop)).await
    }
}

async fn serve_embedded(
    args: ServeArgs,
    catalog: Option<PathBuf>,
    stop: CancellationToken,
) -> Result<()> {
    let runtime = worker::runtime(args.resources.memory_limit)?;
    // One that is private is asked by whoever started it, and reads what that one names.
    let builder = builder(catalog)?.with_runtime(runtime);
    let builder = if args.private { builder } else { builder.without_url_tables() };
    let context = builder.with_inventory(worker::inventory(&args.resources)?).build()?;
    let owner = args.private.then(private_users).transpose()?;
    let address = args.flight.flight_sql;
    let who = format!("the server with Arrow Flight SQL on {address}");
    let hold = tokio::select! {
        hold = take(&args, &who, vec![address]) => hold?,
        // It may wait for another one to end.
        () = stop.cancelled() => return Ok(()),
    };
    let mut flight = open(context, &args.flight, owner, hold.as_ref()).await?;
    say(&format!("Arrow Flight SQL on {}", flight.address()));
    tokio::select! {
        () = stop.cancelled() => {}
        () = end_of_input(), if args.private => {}
        ended = flight.stopped() => return ended,
        lost = lost(hold.as_ref()) => return Err(lost),
    }
    if args.private {
        // Nobody waits for its queries but whoever wants it to end.
        return Ok(());
    }
    in_time(args.resources.drain_limit, flight.drain()).await?;
    let_go(hold).await;
    Ok(())
}

/// Waits for what runs, but not for ever.
async fn in_time(limit_s: u64, drain: impl Future<Output = Result<()>>) -> Result<()> {
    match tokio::time::timeout(Duration::from_secs(limit_s), drain).await {
        Ok(drained) => drained,
        Err(_) => {
            tracing::warn!("what still ran after {limit_s} s is cut off (--drain-limit)");
            Ok(())
        }
    }
}

/// Nobody but the program that has the token.
fn private_users() -> Result<Users> {
    match env::var(TOKEN) {
        Ok(token) if !token.is_empty() => Ok(Users::with_token(&token)),
        _ => exec_err!(
            "--private needs {TOKEN}: a secret of the program that starts this server, such as 32 \
             random characters"
        ),
    }
}

/// Waits until standard input ends, as it does with the program that holds its other end, however
/// that one ends.
async fn end_of_input() {
    let (sender, ended) = oneshot::channel();
    // Not a task: reading could keep the runtime from ending.
    thread::spawn(move || {
        io::copy(&mut io::stdin(), &mut io::sink()).ok();
        sender.send(()).ok();
    });
    ended.await.ok();
}

async fn serve_cluster(
    args: ServeArgs,
    catalog: Option<PathBuf>,
    stop: CancellationToken,
) -> Result<()> {
    let tls = args.tls.open()?;
    let host = args.host.clone().unwrap_or_else(|| host(args.bind.ip()));
    check_ports(&args, tls.as_ref())?;
    let who = format!("the scheduler at {host}:{}", args.bind.port());
    let ports = [args.bind, args.flight.flight_sql].into_iter().chain(args.metrics).collect();
    let hold = tokio::select! {
        hold = take(&args, &who, ports) => hold?,
        // It may wait for another one to end.
        () = stop.cancelled() => return Ok(()),
    };
    let scheduler = start_scheduler(&args, &host, hold.clone(), tls.as_ref()).await?;
    // This process reaches itself however others do.
    let own = if args.bind.ip().is_unspecified() && tls.is_none() { "127.0.0.1" } else { &host };
    let address = format!("{own}:{}", scheduler.address().port());
    let runtime = worker::runtime(args.resources.memory_limit)?;
    let builder = builder(catalog)?.without_url_tables().with_runtime(runtime);
    let builder = builder.in_schedulers_process();
    let context = match tls {
        Some(tls) => builder.with_tls(tls).connect(&address).await?,
        None => builder.connect(&address).await?,
    };
    // Before the first statement, which may need it.
    let mut worker = args.worker.then(|| OwnWorker::start(&args, &address, &host));
    if let Some(worker) = &mut worker {
        tokio::select! {
            works = worker.works() => if !works? { return Ok(()) },
            () = stop.cancelled() => return Ok(()),
        }
    }
    let mut flight = open(context, &args.flight, None, hold.as_ref()).await?;
    say(&format!("listening on {}", scheduler.address()));
    say(&format!("Arrow Flight SQL on {}", flight.address()));
    tokio::select! {
        () = stop.cancelled() => {}
        ended = ended(&mut worker) => return ended,
        ended = flight.stopped() => return ended,
        failure = scheduler.failed() => return Err(failure),
    }
    // Queries end before what runs them.
    let drain = async {
        flight.drain().await?;
        scheduler.drain().await;
        match worker {
            Some(worker) => worker.leave().await,
            None => Ok(()),
        }
    };
    in_time(args.resources.drain_limit, drain).await?;
    scheduler.end().await;
    let_go(hold).await;
    Ok(())
}

/// Whether its ports are such that it may listen there.
fn check_ports(args: &ServeArgs, tls: Option<&Tls>) -> Result<()> {
    let metrics = args.metrics.map(|address| ("--metrics", address));
    let ports: Vec<_> = [("--bind", args.bind)].into_iter().chain(metrics).collect();
    args.listen.check(&ports, tls)
}

async fn start_scheduler(
    args: &ServeArgs,
    host: &str,
    state: Option<Hold>,
    tls: Option<&Tls>,
) -> Result<RunningScheduler> {
    let scheduler = Scheduler {
        bind: args.bind,
        host: host.to_owned(),
        worker_timeout: Duration::from_secs(args.worker_timeout),
        metrics: args.metrics,
        state,
        scheduler_timeout: Duration::from_secs(args.scheduler_timeout),
        tls: tls.cloned(),
        ..Scheduler::new(worker::runtime(None)?)
    };
    scheduler.start().await
}

/// How the worker of this server ended, if it has one.
async fn ended(worker: &mut Option<OwnWorker>) -> Result<()> {
    match worker {
        Some(worker) => worker.ended().await,
        None => std::future::pending().await,
    }
}

/// What sessions start as: columns have the types that every client knows.
fn builder(catalog: Option<PathBuf>) -> Result<ForebayBuilder> {
    let config = SessionConfig::from_env()?
        .set_bool("datafusion.optimizer.expand_views_at_output", true)
        .set_bool("datafusion.execution.parquet.schema_force_view_types", false)
        .set_bool("datafusion.sql_parser.map_string_types_to_utf8view", false);
    let builder = ForebayContext::builder().with_config(config);
    match catalog {
        Some(folder) => builder.with_catalog_folder(folder),
        None => Ok(builder),
    }
}

/// Listens for clients of Flight SQL: the owner alone, or those of a file, or all.
async fn open(
    context: ForebayContext,
    args: &FlightArgs,
    owner: Option<Users>,
    state: Option<&Hold>,
) -> Result<Listening> {
    if let Some(path) = &args.init {
        run_file(&context, path).await?;
    }
    let limits = Limits {
        sessions_max: args.max_sessions,
        queries_max: args.max_queries,
        queries_per_client_max: args.max_queries_per_client,
        result_bytes_max: args.max_result.map(|bytes| bytes.as_u64()),
        jobs_max: args.max_jobs,
        jobs_per_user_max: args.max_jobs_per_user,
        job_results_max: args.job_results_limit.as_u64(),
        jobs_kept: Duration::from_secs(args.keep_jobs),
        read_timeout: Duration::from_secs(args.read_timeout),
        session_timeout: Duration::from_secs(args.session_timeout),
        is_shared: owner.is_none(),
        ..Limits::default()
    };
    let mut server = FlightServer::new(context).with_limits(limits);
    if let Some(state) = state {
        server = server.with_state(state.clone());
    }
    if let Some(owner) = owner {
        server = server.with_users(owner);
    } else if let Some(users) = &args.users {
        server = server.with_users_file(users)?;
    }
    if args.users.is_some() || !args.roots.is_empty() {
        server = server.with_roots(&args.roots)?;
    }
    if let (Some(certificate), Some(key)) = (&args.flight_tls_cert, &args.flight_tls_key) {
        let clients = args.flight_tls_client_ca.as_deref().map(read).transpose()?;
        let tls = FlightTls { certificate: read(certificate)?, key: read(key)?, clients };
        server = server.with_tls(tls);
    }
    server.bind(args.flight_sql).await
}

async fn run_file(context: &ForebayContext, path: &Path) -> Result<()> {
    let said = |error| exec_datafusion_err!("--init {}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error| said(error.to_string()))?;
    let statements = context.parse(&text).map_err(|error| said(errors::readable(&error)))?;
    for statement in statements {
        let rows = context.execute(statement).await;
        let done = async { rows?.collect().await };
        done.await.map_err(|error| said(errors::readable(&error)))?;
    }
    Ok(())
}

/// A line on standard output, for whoever still reads it.
fn say(line: &str) {
    writeln!(stdout(), "{line}").ok();
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| exec_datafusion_err!("{}: {error}", path.display()))
}

/// Refuses to let anyone in who can reach this machine, unless told to.
fn check(args: &FlightArgs, insecure: bool) -> Result<()> {
    if args.flight_sql.ip().is_loopback() || insecure {
        return Ok(());
    }
    let missing = match (&args.users, &args.flight_tls_cert) {
        (Some(_), Some(_)) => return Ok(()),
        (None, _) if args.flight_tls_client_ca.is_some() => return Ok(()),
        (None, _) => "--users, to say who may connect",
        (Some(_), None) => "--flight-tls-cert and --flight-tls-key, to keep secrets secret",
    };
    exec_err!(
        "--flight-sql {} can be reached from other machines: give {missing}; or --insecure on a \
         network that you trust",
        args.flight_sql.ip()
    )
}

/// By which name others reach an address of this machine.
fn host(ip: IpAddr) -> String {
    if !ip.is_unspecified() {
        return ip.to_string();
    }
    match nix::unistd::gethostname() {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => ip.to_string(),
    }
}
