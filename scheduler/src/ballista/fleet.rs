//! The workers as placement sees them, and what a job needs that none of them has.

use crate::graph::{JobGraph, StageId, StageState, WorkerId};
use crate::placement::{Device, Need, WHOLE, WorkerState, could_ever_fit, waiting_for};
use crate::rpc::messages::Worker;

pub(super) fn worker_state(worker: &Worker) -> WorkerState {
    let inventory = &worker.inventory;
    let devices = inventory.accelerators.iter();
    let devices = devices.map(|found| Device::new(found.kind.clone(), found.memory)).collect();
    let id = WorkerId::new(worker.id.as_str());
    let mut state = WorkerState::new(id, inventory.cpus * WHOLE, inventory.memory);
    state.labels = inventory.labels.iter().cloned().collect();
    state.is_draining = worker.draining;
    state.with_devices(devices)
}

/// What a stage waits for that has work of which nothing runs, and for which no worker has room.
pub(super) fn waits_for(workers: &[WorkerState], graph: &JobGraph) -> Option<String> {
    let has_room = |need: &Need| workers.iter().any(|w| !w.is_draining && w.fit(need).is_some());
    let stages = graph.stage_rows().filter(|stage| stage.running == 0);
    let mut stages = stages.filter(|stage| graph.ready(stage.id).is_some());
    stages.find_map(|stage| {
        let need = &graph.stage(stage.id).need;
        (!has_room(need)).then(|| format!("stage {}: {}", stage.id, waiting_for(workers, need)))
    })
}

/// What no worker has and some stage that is not done needs. Workers may still be on their way: if
/// there are none, the job waits.
pub(super) fn missing(workers: &[WorkerState], graph: &JobGraph) -> Option<String> {
    if workers.is_empty() || !graph.is_running_job() {
        return None;
    }
    let stages = graph.consumers_first().filter(|id| graph.stage_state(*id) != StageState::Done);
    let lacks = |id: StageId| could_ever_fit(workers, &graph.stage(id).need).err();
    stages.filter_map(lacks).map(|missing| missing.to_string()).next()
}
