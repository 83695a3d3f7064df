//! `forebay serve`: a scheduler, to which workers and clients connect.

use datafusion::common::Result;
use forebay::Scheduler;

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
    let scheduler = Scheduler::start(args.bind, worker::runtime(None)?).await?;
    let _figures = match args.metrics {
        Some(address) => Some(scheduler.serve_metrics(address).await?),
        None => None,
    };
    println!("listening on {}", scheduler.address());
    if args.worker {
        let worker = worker::open(args.resources, scheduler.address().to_string())?;
        return Box::pin(worker.run(|_| (), told_to_stop())).await;
    }
    told_to_stop().await;
    Ok(())
}
