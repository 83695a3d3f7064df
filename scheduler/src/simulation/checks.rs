//! What must hold after each event, and at the end.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{
    Action, Bound, EdgeFill, JobFailure, JobStatus, Millis, StageId, TaskId, UnitId, UnitState,
    WorkerId, check,
};
use crate::placement::{Admission, Binding, Device, WorkerState, could_ever_fit};

use super::scenario::Rows;
use super::world::{Checked, World, ensure};

impl World {
    /// Canceled are exactly those that read what is gone. At the end of the job: all that run.
    pub(super) fn check_canceled(&self, actions: &[Action], hopeless: BTreeSet<TaskId>) -> Checked {
        let canceled: BTreeSet<_> = actions
            .iter()
            .filter_map(|action| match action {
                Action::CancelTask { task, .. } => Some(*task),
                _ => None,
            })
            .collect();
        let is_over = !self.graph.is_running_job();
        ensure(is_over || canceled == hopeless, || {
            format!("canceled {canceled:?}, and what reads lost blocks is {hopeless:?}")
        })
    }

    pub(super) fn check_failure(&self, reason: &JobFailure) -> Checked {
        let JobFailure::Unit(failed) = reason else {
            return Err(format!("the job failed for no reason: {reason}"));
        };
        let is_fatal = failed.limit.is_empty() && failed.error.message == "injected fatal";
        let is_worn_out = !failed.limit.is_empty() && failed.attempts > 0;
        ensure((is_fatal && self.weather.fatal > 0) || is_worn_out, || reason.to_string())
    }

    /// Everything that always holds. The costly half is asked of some histories at every event,
    /// and of all of them after a fault.
    pub(super) fn check(&self, is_fault: bool) -> Checked {
        if is_fault || self.checks_all {
            check(&self.graph)?;
            self.check_lineage()?;
        }
        Ok(())
    }

    pub(super) fn check_lineage(&self) -> Checked {
        if !self.graph.is_running_job() {
            return Ok(());
        }
        let not_done = self.reference.not_done();
        for (id, known) in &self.reference.units {
            let state = self.graph.unit_state(*id);
            let expected = match (known.running, not_done.contains(id)) {
                (Some(task), _) => state == UnitState::Running(task.index),
                (None, true) => state == UnitState::Pending,
                (None, false) => matches!(state, UnitState::Done(_)),
            };
            ensure(expected, || {
                let must = not_done.contains(id);
                format!("unit {id} is {state:?}; it must run: {must}, known: {known:?}")
            })?;
        }
        Ok(())
    }

    pub(super) fn fills(&self) -> Vec<Vec<(u64, u64)>> {
        if self.admission != Admission::Reserve {
            return vec![];
        }
        let stages = (0..self.scenario.spec.stages.len() as u32).map(StageId);
        let now = Millis(self.now);
        let fill =
            |edge: EdgeFill| (edge.unconsumed_bytes + edge.expected_bytes, edge.budget_bytes);
        stages.map(|stage| self.graph.budgeted_outputs(stage, now).map(fill).collect()).collect()
    }

    /// An edge is only filled above its budget by one producer that found it empty, or that was
    /// let in because nothing ran at all.
    pub(super) fn check_budget<'a>(
        &self,
        before: &[Vec<(u64, u64)>],
        ran_anything: bool,
        bound: impl Iterator<Item = &'a Bound> + Clone,
    ) -> Checked {
        for (stage, (before, after)) in (0..).zip(before.iter().zip(self.fills())) {
            let new = bound.clone().filter(|bound| bound.unit.stage.0 == stage);
            // What a re-run writes is known, and need not be what is expected of a new one.
            let is_rerun = new.clone().any(|bound| bound.attempt > 1);
            let new = new.count();
            for ((was, _), (is, budget)) in before.iter().zip(after) {
                let may_exceed = new == 0 || is_rerun || (new == 1 && (*was == 0 || !ran_anything));
                ensure(is <= budget || may_exceed, || {
                    format!("stage {stage}: {was} bytes became {is} of {budget}, by {new} tasks")
                })?;
            }
        }
        Ok(())
    }

    /// What counts as lying on each worker.
    pub(super) fn held(&self) -> BTreeMap<WorkerId, u64> {
        self.workers.keys().map(|id| (id.clone(), self.graph.bytes_on(id))).collect()
    }

    /// A worker is only given more than it may keep if nothing lies there and no other may keep more, if nothing ran
    /// at all, by what makes room, or by what is of use to nobody before all of it is there.
    pub(super) fn check_rooms(
        &self,
        mut held: BTreeMap<WorkerId, u64>,
        ran_anything: bool,
        bindings: &[Binding],
    ) -> Checked {
        let is_forced = !ran_anything && bindings.len() == 1;
        for Binding { bound, worker, .. } in bindings {
            let state = &self.workers[worker].state;
            let on = held.entry(worker.clone()).or_default();
            let was = *on;
            *on += self.graph.adds_bytes(bound.task);
            // What a re-run writes is known, and need not be what is expected of a new one.
            let is_free = bound.attempt > 1 || self.graph.has_streaming_input(bound.unit.stage);
            if *on <= state.work_bytes.max(was) || is_free || is_forced {
                continue;
            }
            let may = match self.graph.is_drained(bound.unit.stage) {
                true => was == 0 && !self.is_another_larger(bound.unit.stage, state),
                false => !self.is_unlimited_for(bound.unit.stage),
            };
            ensure(may || self.admission != Admission::Reserve, || {
                format!("{was} bytes on {worker} became {on} of {} by {bound:?}", state.work_bytes)
            })?;
        }
        ensure(held == self.held(), || format!("{held:?} are counted as {:?}", self.held()))
    }

    fn able(&self, stage: StageId) -> impl Iterator<Item = &WorkerState> {
        let need = &self.graph.stage(stage).need;
        let workers = self.fleet.workers().iter();
        workers.filter(|worker| could_ever_fit(std::slice::from_ref(worker), need).is_ok())
    }

    /// Whether another worker that could run a stage may keep more.
    fn is_another_larger(&self, stage: StageId, state: &WorkerState) -> bool {
        self.able(stage).any(|other| other.work_bytes > state.work_bytes)
    }

    /// Whether a worker that could run a stage may keep all that it likes.
    fn is_unlimited_for(&self, stage: StageId) -> bool {
        let broken = self.graph.broken_disks();
        self.able(stage).any(|other| other.work_bytes == u64::MAX && !broken.contains(&other.id))
    }

    /// What really runs on a worker fits there, with what was canceled and has not stopped. Not
    /// known of a worker that was given up and came back: it still runs what is forgotten here. Nor of
    /// tasks that were lost with the scheduler that gave them: they are stopped when their worker comes.
    pub(super) fn check_seats(&self, worker: &WorkerId) -> Checked {
        let found = &self.workers[worker];
        if !found.is_alive || found.paused_until > 0 {
            return Ok(());
        }
        let mut state = found.state.clone();
        for (task, running) in &self.tasks {
            if running.worker == *worker && !running.is_stopped && !running.is_forgotten {
                let need = &self.scenario.spec.stages[task.stage.0 as usize].need;
                state.take(need, &running.lease);
            }
        }
        let is_full = |device: &Device| device.used_milli > 1000;
        let is_over = state.used_cpus_milli > state.cpus_milli || state.devices.iter().any(is_full);
        ensure(!is_over, || format!("more runs than fits: {state:?}"))
    }

    fn check_received(&self, expected: &Rows) -> Checked {
        let mut rows = self.received.rows.clone();
        rows.sort_unstable();
        ensure(rows == *expected, || {
            format!("the client read {} rows, expected {}", rows.len(), expected.len())
        })
    }

    pub(super) fn check_end(&self) -> Checked {
        match self.graph.status() {
            JobStatus::Failed(_) => return check(&self.graph),
            JobStatus::Running => {
                let open = self.graph.units().filter(|(_, s)| !matches!(s, UnitState::Done(_)));
                let open: Vec<(UnitId, UnitState)> = open.collect();
                return Err(format!("deadlock: nothing happens any more, not done are {open:?}"));
            }
            JobStatus::Finished => check(&self.graph)?,
        }
        ensure(self.graph.slots().next().is_none(), || "a lease is never given back".to_owned())?;
        for (stage, expected) in (0..).map(StageId).zip(&self.scenario.result) {
            if self.graph.client() == Some(stage) {
                self.check_received(expected)?;
                continue;
            }
            if self.scenario.spec.edges.iter().any(|edge| edge.from == stage) {
                continue;
            }
            let mut rows = Rows::new();
            for input in self.graph.outputs(stage) {
                let stored = &self.workers[&input.worker].store.get(&(input.block, input.writer));
                let stored = stored.ok_or_else(|| format!("{} is nowhere", input.block))?;
                ensure(!stored.is_freed, || format!("{}, a result, is deleted", input.block))?;
                rows.extend(&stored.rows);
            }
            rows.sort_unstable();
            ensure(rows == *expected, || {
                format!("stage {stage} gave {} rows, expected {}", rows.len(), expected.len())
            })?;
        }
        Ok(())
    }
}
