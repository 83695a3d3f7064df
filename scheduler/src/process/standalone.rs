//! A whole cluster in one process: a scheduler and a worker on loopback, for trying and testing.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay_engine::Devices;
use tempfile::TempDir;

use crate::functions::Functions;
use crate::process::scheduler::{RunningScheduler, Scheduler};
use crate::process::worker::{RunningWorker, Worker};

/// Long: both stop and go on together.
const WORKER_TIMEOUT: Duration = Duration::from_secs(60);

/// A scheduler and a worker, gone when it is dropped.
#[derive(Debug)]
pub struct Standalone {
    scheduler: RunningScheduler,
    _worker: RunningWorker,
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
        let scheduler = Scheduler {
            worker_timeout: WORKER_TIMEOUT,
            functions: functions.clone(),
            ..Scheduler::new(Arc::clone(&runtime))
        };
        let scheduler = scheduler.start().await?;
        let folder = TempDir::new()?;
        let worker = Worker {
            work_dir: folder.path().to_owned(),
            functions,
            ..Worker::new(scheduler.address().to_string(), devices, runtime)
        };
        let worker = worker.start().await?;
        Ok(Self { scheduler, _worker: worker, _folder: folder })
    }

    /// `host:port` of the scheduler.
    pub fn address(&self) -> String {
        self.scheduler.address().to_string()
    }
}
