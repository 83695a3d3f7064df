//! What happens to the cluster: workers come, drain, die, and fall silent.

use std::collections::BTreeMap;

use crate::graph::{Event, WorkerId};
use crate::placement::{Device, WorkerState};

use super::world::{Checked, Happening, Weather, Worker, World};

impl World {
    pub(super) fn join(&mut self) -> WorkerId {
        let id = WorkerId::new(format!("w{}", self.workers.len()));
        let devices = (0..self.rng.below(3)).map(|_| Device::new("cuda", 1)).collect();
        let state = WorkerState::new(id.clone(), self.rng.between(1, 3) as u32 * 1000, 1);
        let work_bytes = [u64::MAX, u64::MAX, 2000, 300, 40][self.rng.index(5)];
        let worker = Worker {
            state: state.with_devices(devices).with_work_bytes(work_bytes),
            is_known: true,
            is_alive: true,
            paused_until: 0,
            store: BTreeMap::new(),
        };
        self.say(|| format!("{} joins", worker.state));
        self.workers.insert(id.clone(), worker);
        id
    }

    /// Something happens to the cluster, perhaps.
    pub(super) fn trouble(&mut self) -> Checked {
        if self.is_calm || !self.graph.is_running_job() {
            return Ok(());
        }
        let later = self.rng.between(5, 30);
        self.at(later, Happening::Trouble);
        if !self.rng.chance(self.weather.crash * 5) {
            return Ok(());
        }
        let is_well = |w: &Worker| w.is_known && w.is_alive && w.paused_until <= self.now;
        let well = self.workers.iter().filter(|(_, worker)| is_well(worker));
        let known: Vec<_> = well.map(|(id, _)| id.clone()).collect();
        let picked = known.get(self.rng.index(known.len())).cloned();
        match (self.rng.below(6), picked) {
            (0, _) | (_, None) => {
                self.join();
            }
            (1, Some(worker)) => {
                self.say(|| format!("{worker} drains"));
                self.with(&worker).state.is_draining = true;
            }
            (2, Some(worker)) => self.pause(worker),
            (3, Some(worker)) => {
                let late = self.rng.below(15);
                self.at(late, Happening::Report(Event::WorkerFull { worker }));
            }
            (_, Some(worker)) => self.crash(worker),
        }
        Ok(())
    }

    pub(super) fn crash(&mut self, worker: WorkerId) {
        self.say(|| format!("{worker} dies"));
        self.troubles += 1;
        self.with(&worker).is_alive = false;
        let late = self.rng.below(15);
        // Until that is noticed, it may still be given work.
        self.at(late, Happening::Report(Event::WorkerLost { worker }));
    }

    /// Silent for so long that it is given up, and then it comes back with all its reports.
    pub(super) fn pause(&mut self, worker: WorkerId) {
        self.troubles += 1;
        let length = self.rng.between(20, 80);
        let until = self.now + length;
        self.say(|| format!("{worker} is silent until {until}"));
        self.with(&worker).paused_until = until;
        let noticed = self.rng.between(5, 19);
        self.at(noticed, Happening::Report(Event::WorkerLost { worker: worker.clone() }));
        self.at(length, Happening::Resume(worker));
    }

    /// From now on nothing goes wrong, and there is a worker for everything.
    pub(super) fn calm(&mut self) -> Checked {
        self.is_calm = true;
        self.weather = Weather { fatal: self.weather.fatal, ..Weather::default() };
        let worker = self.join();
        let state = &mut self.with(&worker).state;
        state.cpus_milli = 2000;
        state.devices = vec![Device::new("cuda", 1)];
        self.round()
    }
}
