//! A whole cluster in one process: a scheduler and a worker on loopback, for trying and testing.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay_engine::Devices;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::functions::Functions;
use super::scheduler::Scheduler;
use super::worker::{Ports, Worker};

/// Long: both stop and go on together.
const WORKER_TIMEOUT: Duration = Duration::from_secs(60);

/// A scheduler and a worker, gone when it is dropped.
#[derive(Debug)]
pub struct Standalone {
    scheduler: Scheduler,
    _worker: SpawnedTask<()>,
    _folder: TempDir,
}

impl Standalone {
    /// Starts both and waits until the worker is ready.
    ///
    /// # Errors
    /// If they cannot listen, or use a folder for temporary files.
    pub async fn start(
        devices: Arc<Devices>,
        runtime: Arc<RuntimeEnv>,
        functions: Functions,
    ) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let host = Ipv4Addr::LOCALHOST.to_string();
        let scheduler = Scheduler::start(
            address,
            host,
            Arc::clone(&runtime),
            WORKER_TIMEOUT,
            functions.clone(),
            None,
        )
        .await?;
        let folder = TempDir::new()?;
        let worker = Worker {
            scheduler: scheduler.address().to_string(),
            bind: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            host: Ipv4Addr::LOCALHOST.to_string(),
            advertised: Ports::default(),
            work_dir: folder.path().to_owned(),
            devices,
            work_limit: None,
            runtime,
            functions,
            labels: BTreeMap::new(),
            metrics: None,
            drain_limit: Duration::ZERO,
            tls: None,
        };
        let (ready, is_ready) = oneshot::channel();
        let worker = SpawnedTask::spawn(async move {
            let on_ready = |_: &str| {
                ready.send(()).ok();
            };
            if let Err(error) = Box::pin(worker.run(on_ready, std::future::pending())).await {
                log::error!("the worker of this process: {error}");
            }
        });
        match is_ready.await {
            Ok(()) => Ok(Self { scheduler, _worker: worker, _folder: folder }),
            Err(_) => exec_err!("the worker of this process did not start; see the log"),
        }
    }

    /// `host:port` of the scheduler.
    pub fn address(&self) -> String {
        self.scheduler.address().to_string()
    }
}
