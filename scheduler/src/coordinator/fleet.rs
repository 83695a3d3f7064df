//! The workers as placement sees them, and what a job needs that none of them has.

use forebay_engine::{ErrorKind, RemoteError};
use forebay_udf::runtime::Device as Placed;

use crate::graph::{JobGraph, StageId, StageState, WorkerId};
use crate::inventory;
use crate::placement::{Device, Fleet, WorkerState, could_ever_fit, waiting_for};
use crate::protocol::messages::{Accelerator, Worker};
use crate::resources::{Lease, Need, WHOLE};

pub(crate) fn worker_state(worker: &Worker) -> WorkerState {
    let inventory = &worker.inventory;
    let devices = inventory.accelerators.iter();
    let device = |found: &Accelerator| {
        Device::new(found.kind.clone(), found.memory).with_ordinal(found.ordinal)
    };
    let devices = devices.map(device).collect();
    let id = WorkerId::new(worker.id.as_str());
    let mut state = WorkerState::new(id, inventory.cpus * WHOLE, inventory.memory)
        .with_work_bytes(inventory.work_limit.unwrap_or(u64::MAX));
    state.labels = inventory.labels.iter().cloned().collect();
    state.is_draining = worker.draining;
    state.with_devices(devices)
}

/// The devices that a task was given, as its plan names them.
pub(crate) fn leased(fleet: &Fleet, worker: &WorkerId, lease: &Lease) -> Vec<Placed> {
    let Some(worker) = fleet.worker(worker) else { return vec![] };
    let devices = lease.devices.iter().filter_map(|at| worker.devices.get(*at as usize));
    devices.filter_map(|device| inventory::device(&device.kind, device.ordinal)).collect()
}

/// What a stage waits for that has work of which nothing runs, and for which no worker has room.
pub(crate) fn waits_for(workers: &[WorkerState], graph: &JobGraph) -> Option<String> {
    if workers.is_empty() {
        return Some(NO_WORKER.to_owned());
    }
    let has_room = |need: &Need| workers.iter().any(|w| !w.is_draining && w.fit(need).is_some());
    let stages = graph.stage_rows().filter(|stage| stage.running == 0);
    // What would begin early waits for other tasks.
    let mut stages =
        stages.filter(|stage| graph.ready(stage.id).is_some() && !graph.begins_early(stage.id));
    stages.find_map(|stage| {
        let need = &graph.stage(stage.id).need;
        (!has_room(need)).then(|| format!("stage {}: {}", stage.id, waiting_for(workers, need)))
    })
}

/// Said while there is none, and when the job is given up.
pub(crate) const NO_WORKER: &str =
    "there is no worker; start one with `forebay worker --scheduler HOST:PORT`";

/// What no worker has and some stage that is not done needs.
pub(crate) fn missing(workers: &[WorkerState], graph: &JobGraph) -> Option<RemoteError> {
    if !graph.is_running_job() {
        return None;
    }
    if workers.is_empty() {
        return Some(RemoteError::new(ErrorKind::Unavailable, NO_WORKER));
    }
    let stages = graph.consumers_first().filter(|id| graph.stage_state(*id) != StageState::Done);
    let lacks = |id: StageId| could_ever_fit(workers, &graph.stage(id).need).err();
    let missing = stages.filter_map(lacks).next()?;
    Some(RemoteError::new(ErrorKind::ResourceExhausted, missing.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::messages::Inventory;

    fn worker(inventory: Inventory) -> Worker {
        let (id, address) = ("w".to_owned(), String::new());
        Worker { id, address, inventory, draining: false, busy_milli: 0 }
    }

    #[test]
    fn a_worker_that_does_not_say_what_it_may_keep_has_room_for_everything() {
        for (work_limit, expected) in [(Some(7), 7), (None, u64::MAX)] {
            let worker = worker(Inventory { cpus: 1, work_limit, ..Inventory::default() });
            assert_eq!(worker_state(&worker).work_bytes, expected);
        }
    }

    #[test]
    fn a_lease_names_the_devices_of_its_worker() {
        let accelerator = |kind: &str, ordinal| Accelerator {
            kind: kind.to_owned(),
            ordinal,
            name: String::new(),
            memory: 1,
        };
        let accelerators =
            vec![accelerator("cuda", 3), accelerator("emulated", 0), accelerator("emulated", 1)];
        let inventory = Inventory { cpus: 1, memory: 1, accelerators, ..Inventory::default() };
        let worker = worker(inventory);
        let mut fleet = Fleet::default();
        fleet.attend(vec![worker_state(&worker)]);
        let leased = |worker: &str, devices: &[u32]| {
            super::leased(&fleet, &WorkerId::new(worker), &Lease { devices: devices.to_vec() })
        };
        assert_eq!(leased("w", &[2]), [Placed::Emulated(1)]);
        assert_eq!(leased("w", &[0, 1]), [Placed::Cuda(3), Placed::Emulated(0)]);
        assert_eq!(leased("w", &[]), []);
        assert_eq!(leased("gone", &[0]), []);
    }
}
