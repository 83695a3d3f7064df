//! The client: it reads block after block, and nothing twice.

use std::collections::BTreeMap;

use crate::graph::{Bound, Event, Millis, TaskId, UnitInput, WorkerId};
use crate::placement::WorkerState;
use crate::resources::Lease;

use super::world::{Checked, Worker, World, ensure};

const CLIENT: &str = "client";

impl World {
    /// It is no worker: nothing is placed on it, and it does not die.
    pub(super) fn admit_client(&mut self) {
        let id = WorkerId::new(CLIENT);
        let client = Worker {
            state: WorkerState::new(id.clone(), 0, 0),
            is_known: false,
            is_alive: true,
            paused_until: 0,
            store: BTreeMap::new(),
        };
        self.workers.insert(id, client);
    }

    /// Binds what it reads next. Says whether there was anything.
    pub(super) fn let_client_read(&mut self) -> Result<bool, String> {
        let Some(bound) = self.graph.bind_client(Millis(self.now)) else { return Ok(false) };
        self.check_order(&bound)?;
        self.start(bound, WorkerId::new(CLIENT), Lease::default())?;
        Ok(true)
    }

    /// The blocks of a unit come in their order, each once it is known that the last was read.
    fn check_order(&self, bound: &Bound) -> Checked {
        if let UnitInput::Output(from) = self.graph.unit_input(bound.unit)
            && self.graph.ranges(from.stage).is_some()
        {
            let read = self.received.ended.len();
            ensure(from.index as usize == read, || {
                format!("range {from} is read as number {read}")
            })?;
        }
        let mut next = self.received.blocks.clone();
        for input in &bound.inputs {
            let next = next.entry(input.block.unit).or_default();
            ensure(input.block.seq == *next, || format!("{} is read before {next}", input.block))?;
            *next += 1;
        }
        Ok(())
    }

    /// What a task read is not known any more, and nobody had told the client that it was.
    pub(super) fn unconfirm(&mut self, task: TaskId) {
        let is_client = self.graph.client() == Some(task.stage);
        if !is_client || !self.reference.runs(task) || !self.received.ended.remove(&task) {
            return;
        }
        let running = &self.tasks[&task];
        self.received.unconfirmed.insert(running.bound.unit);
        for input in &running.bound.inputs {
            *self.received.blocks.entry(input.block.unit).or_default() -= 1;
        }
    }

    /// The client is told to have read what a task read.
    pub(super) fn received(&mut self, event: &Event) {
        let Event::TaskFinished { task, .. } = event else { return };
        let is_client = self.graph.client() == Some(task.stage);
        if !is_client || !self.reference.runs(*task) || !self.received.ended.insert(*task) {
            return;
        }
        let running = &self.tasks[task];
        for input in &running.bound.inputs {
            *self.received.blocks.entry(input.block.unit).or_default() += 1;
        }
        // It was told by nobody that it is known what it read of this, and was told to read it again.
        if !self.received.unconfirmed.remove(&running.bound.unit) {
            self.received.rows.extend(&running.streamed);
        }
    }
}
