//! The threads of one loaded model. Where the calling thread computes, each stream has one for as long as it
//! lives. Where a device does, threads stay with the model from one query to the next, each with its streams on
//! the device and what libraries keep for a thread (handles, workspaces, plans): all that is made once, and the
//! first thread's when the model is loaded.

#[cfg(test)]
pub(crate) mod ahead;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use datafusion::common::{Result as DataFusionResult, exec_datafusion_err};
use forebay_udf::model::ModelDeclaration;
use forebay_udf::runtime::{Device, Replica, enter_thread};
use parking_lot::Mutex;

use super::slot::{BatchError, Site, Slot, Visit, flat};
use crate::error::EngineError;

/// The threads that run a loaded model.
#[derive(Debug)]
pub(super) struct Threads {
    replica: Arc<dyn Replica>,
    device: Device,
    idle: Arc<Idle>,
}

/// Those that nobody uses at this moment; `None` once the model is unloaded.
type Idle = Mutex<Option<Vec<Resident>>>;

/// Told once whether a thread could begin.
type Ready = mpsc::SyncSender<Result<(), BatchError>>;

/// A thread that waits for the next stream.
#[derive(Debug)]
struct Resident {
    /// Empty whenever the thread is idle.
    visits: mpsc::SyncSender<(Visit, Option<Resident>)>,
    thread: JoinHandle<()>,
}

impl Threads {
    /// None yet.
    pub(super) fn new(device: Device, replica: Arc<dyn Replica>) -> Self {
        Self { replica, device, idle: Arc::new(Mutex::new(Some(Vec::new()))) }
    }

    /// Starts the first thread, if threads stay, and waits until it could begin. Blocks.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot be set up.
    pub(super) fn warm_up(&self, model: &Arc<ModelDeclaration>) -> Result<(), EngineError> {
        if !self.stay() {
            return Ok(());
        }
        let (ready, is_ready) = mpsc::sync_channel(1);
        let failed = |problem: String| EngineError::Panic {
            model: model.name.clone(),
            device: self.device.to_string(),
            problem,
        };
        let resident =
            self.spawn(model, 0, Some(ready)).map_err(|error| failed(error.to_string()))?;
        match is_ready.recv() {
            Ok(Ok(())) => give_back(&self.idle, resident),
            Ok(Err(BatchError::Runtime(error))) => return Err(error.into()),
            Ok(Err(BatchError::Panic(text))) => {
                return Err(failed(format!("readying a thread for it panicked: {text}")));
            }
            Err(_) => return Err(failed("a thread for it has ended".to_owned())),
        }
        Ok(())
    }

    /// A thread for stream `partition`.
    ///
    /// # Errors
    /// If there is none, and none can be started.
    pub(super) fn slot(
        &self,
        site: Site,
        model: Arc<ModelDeclaration>,
        partition: usize,
    ) -> DataFusionResult<Slot> {
        let idle = self.idle.lock().as_mut().and_then(Vec::pop);
        let resident = match idle {
            Some(resident) => resident,
            None => self.spawn(&model, partition, None)?,
        };
        let (slot, visit) = Slot::new(site, model, self.replica.depth());
        let visits = resident.visits.clone();
        // If the thread is gone, the slot's batches say so.
        let _ = visits.send((visit, self.stay().then_some(resident)));
        Ok(slot)
    }

    /// Whether threads are kept.
    fn stay(&self) -> bool {
        self.replica.depth() > 1
    }

    fn spawn(
        &self,
        model: &Arc<ModelDeclaration>,
        number: usize,
        ready: Option<Ready>,
    ) -> DataFusionResult<Resident> {
        let (visits, queue) = mpsc::sync_channel(1);
        let (replica, model, device) = (Arc::clone(&self.replica), Arc::clone(model), self.device);
        let idle = Arc::clone(&self.idle);
        let name = format!("forebay-{}-{number}", model.name);
        let body = move || live(&queue, &*replica, &model, device, &idle, ready);
        let thread = std::thread::Builder::new().name(name).spawn(body).map_err(|error| {
            exec_datafusion_err!("a thread for a model cannot be started: {error}")
        })?;
        Ok(Resident { visits, thread })
    }
}

impl Drop for Threads {
    /// Ends the threads that wait, so that what they have on the device is freed before the model is. One that still
    /// computes what nobody wants any more ends after that.
    fn drop(&mut self) {
        let residents = self.idle.lock().take();
        for Resident { visits, thread } in residents.into_iter().flatten() {
            drop(visits);
            // It does nothing that could panic any more.
            let _ = thread.join();
        }
    }
}

/// A thread's life: from one stream to the next, until nobody can send one.
fn live(
    visits: &mpsc::Receiver<(Visit, Option<Resident>)>,
    replica: &dyn Replica,
    model: &ModelDeclaration,
    device: Device,
    idle: &Idle,
    ready: Option<Ready>,
) {
    let readied = catch_unwind(AssertUnwindSafe(|| {
        let guard = enter_thread(model, device)?;
        Ok((replica.lane()?, guard))
    }));
    let (mut lane, _guard) = match (flat(readied), ready) {
        (Ok(readied), ready) => {
            if let Some(ready) = ready {
                let _ = ready.send(Ok(()));
            }
            readied
        }
        (Err(error), Some(ready)) => {
            let _ = ready.send(Err(error));
            return;
        }
        (Err(error), None) => {
            return visits.iter().for_each(|(visit, _)| visit.refuse(&error));
        }
    };
    for (visit, home) in visits {
        visit.serve(&mut *lane);
        drop(visit);
        home.into_iter().for_each(|resident| give_back(idle, resident));
    }
}

/// The thread waits for the next stream, or ends if the model is unloaded.
fn give_back(idle: &Idle, resident: Resident) {
    if let Some(idle) = idle.lock().as_mut() {
        idle.push(resident);
    }
}
