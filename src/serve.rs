//! `forebay serve`: a scheduler, to which workers and clients connect.

use std::net::IpAddr;
use std::time::Duration;

use datafusion::common::Result;
use forebay::{Scheduler, Worker};

use crate::ServeArgs;
use crate::shell::errors;
use crate::worker::{self, told_to_stop};

/// Serves until it is told to stop; returns the exit status.
pub(crate) async fn run(args: ServeArgs) -> i32 {
    match serve(args).await {
        Ok(()) => 0,
        Err(error) => {
            errors::print(&error);
            1
        }
    }
}

async fn serve(args: ServeArgs) -> Result<()> {
    let tls = args.tls.open()?;
    let metrics = args.metrics.map(|address| ("--metrics", address));
    let ports: Vec<_> = [("--bind", args.bind)].into_iter().chain(metrics).collect();
    args.listen.check(&ports, tls.as_ref())?;
    let host = args.host.unwrap_or_else(|| host(args.bind.ip()));
    let scheduler = Scheduler {
        bind: args.bind,
        host: host.clone(),
        worker_timeout: Duration::from_secs(args.worker_timeout),
        metrics: args.metrics,
        tls: tls.clone(),
        ..Scheduler::new(worker::runtime(None)?)
    };
    let scheduler = scheduler.start().await?;
    println!("listening on {}", scheduler.address());
    if args.worker {
        let address = format!("{host}:{}", scheduler.address().port());
        let worker = worker::open(args.resources, address)?;
        let worker = Worker { bind: args.bind.ip(), host, tls, ..worker };
        return Box::pin(worker.run(|_| (), told_to_stop())).await;
    }
    told_to_stop().await;
    Ok(())
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
