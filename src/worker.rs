//! `forebay worker`: runs tasks of a scheduler on this machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay::stores::Stores;
use forebay::{Accelerator, Devices, Inventory, Worker};
use forebay_engine::chain;
use forebay_udf::RuntimeError;
use tokio_util::sync::CancellationToken;

use crate::args::cluster::{EMULATED_MEMORY_BYTES, GpuChoice, ResourceArgs, WorkerArgs};
use crate::signals::obeying;
use crate::terminal::errors;

/// The exit status of a worker that lost a device: EX_TEMPFAIL of sysexits.h. Its supervisor is to start it
/// again.
const DEVICE_LOST: i32 = 75;

/// Runs a worker until it is told to leave, or has lost a device; returns the exit status.
pub(crate) async fn run(args: WorkerArgs) -> i32 {
    match obeying(|stop| Box::pin(work(args, stop))).await {
        Ok(()) => 0,
        Err(error) => {
            errors::print(&error);
            if is_of_lost_device(&error) { DEVICE_LOST } else { 1 }
        }
    }
}

fn is_of_lost_device(error: &DataFusionError) -> bool {
    chain(error).any(|cause| {
        let found = cause.downcast_ref::<RuntimeError>();
        matches!(found, Some(RuntimeError::DeviceLost { .. }))
    })
}

async fn work(args: WorkerArgs, stop: CancellationToken) -> Result<()> {
    let tls = args.tls.open()?;
    let metrics = args.metrics.map(|address| ("--metrics", address));
    let bind = SocketAddr::new(args.bind, args.port);
    let ports: Vec<_> = [("--bind", bind)].into_iter().chain(metrics).collect();
    args.listen.check(&ports, tls.as_ref())?;
    let host = args.host.unwrap_or_else(|| args.bind.to_string());
    let worker = open(args.resources, args.scheduler.clone())?;
    let worker = Worker {
        bind: args.bind,
        port: args.port,
        host,
        advertised: args.advertised_ports,
        metrics: args.metrics,
        ends_with_scheduler: args.ends_with_scheduler,
        tls,
        ..worker
    };
    let ready = |id: &str| println!("working for {} as {id}", args.scheduler);
    let devices = Arc::clone(&worker.devices);
    let stop = async {
        tokio::select! {
            () = stop.cancelled_owned() => {}
            // Nothing but another process can use it again. Until then this one serves what it wrote.
            () = devices.device_lost() => {
                tracing::error!("a device failed for good: this worker drains, then ends");
            }
        }
    };
    Box::pin(worker.run(ready, stop)).await?;
    Ok(devices.check_devices()?)
}

/// A worker of this machine, on loopback.
pub(crate) fn open(args: ResourceArgs, scheduler: String) -> Result<Worker> {
    let found = inventory(&args)?;
    // What tasks may not hold together is not on offer.
    let limit = args.memory_limit.map_or(u64::MAX, |limit| limit.as_u64());
    let memory = found.memory.min(limit);
    let devices = Arc::new(Devices::new(found.with_memory(memory)));
    let plain = Worker::new(scheduler, devices, runtime(args.memory_limit)?);
    Ok(Worker {
        work_dir: args.work_dir.unwrap_or_else(|| plain.work_dir.clone()),
        work_limit: args.work_limit.map(|limit| limit.as_u64()),
        labels: args.labels.into_iter().collect(),
        drain_limit: Duration::from_secs(args.drain_limit),
        ..plain
    })
}

pub(crate) fn inventory(args: &ResourceArgs) -> Result<Inventory> {
    let mut inventory = Inventory::detect().with_native_code(args.allow_native);
    if let Some(cpus) = args.cpus {
        inventory = inventory.with_cpus(cpus);
    }
    inventory = inventory.with_emulated(args.emulated_accelerators, EMULATED_MEMORY_BYTES);
    if args.gpus == GpuChoice::None {
        return Ok(inventory.with_cuda(vec![]));
    }
    if args.gpus == GpuChoice::Auto && args.gpu_memory.is_none() {
        return Ok(inventory);
    }
    let found = Devices::new(inventory.clone()).cuda();
    let mut gpus: Vec<Accelerator> = found.clone().unwrap_or_default();
    if let GpuChoice::Count(wanted) = args.gpus {
        if usize::from(wanted) > gpus.len() {
            let why = found.err().map(|why| format!(" ({why})")).unwrap_or_default();
            return exec_err!("--gpus {wanted}: this machine has {}{why}", gpus.len());
        }
        gpus.truncate(wanted.into());
    }
    if let Some(most) = args.gpu_memory {
        gpus.iter_mut().for_each(|gpu| gpu.memory = gpu.memory.min(most.as_u64()));
    }
    Ok(inventory.with_cuda(gpus))
}

/// Memory, disk and object stores that all tasks share.
pub(crate) fn runtime(memory_limit: Option<bytesize::ByteSize>) -> Result<Arc<RuntimeEnv>> {
    let mut builder = Stores::default().runtime();
    if let Some(limit) = memory_limit {
        let bytes = usize::try_from(limit.as_u64()).unwrap_or(usize::MAX);
        builder = builder.with_memory_limit(bytes, 1.0);
    }
    builder.build_arc()
}
