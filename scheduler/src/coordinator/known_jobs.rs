//! The jobs that the scheduler has planned, those that are over included for a while.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::coordinator::job::RunningJob;
use crate::coordinator::totals::Totals;

/// A job, which the event loop, the control streams and its client change.
pub(crate) type Shared = Arc<Mutex<RunningJob>>;

/// Jobs that are over and can still be looked at.
pub(super) const OVER_MAX: usize = 1000;

/// Planned jobs. What is done at every tick is done for the live ones only: its cost must not grow
/// with what is over.
#[derive(Default)]
pub(super) struct KnownJobs {
    /// All that can be looked at, in the order of their ids, which is that of their starts.
    pub(super) all: BTreeMap<String, Shared>,
    /// Those that are not [over](RunningJob::is_over).
    pub(super) live: BTreeMap<String, Shared>,
    /// The others, in the order in which that was noticed.
    over: VecDeque<String>,
    /// What those did that are over, whether they can be looked at or not.
    pub(super) done: Totals,
}

impl KnownJobs {
    pub(super) fn add(&mut self, id: String, job: &Shared) {
        self.all.insert(id.clone(), Arc::clone(job));
        self.live.insert(id, Arc::clone(job));
    }

    /// From now on nothing happens to a job, which has done all this.
    pub(super) fn retire(&mut self, id: String, done: &Totals) {
        self.live.remove(&id);
        self.done.add(done);
        self.over.push_back(id);
        if self.over.len() > OVER_MAX
            && let Some(oldest) = self.over.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}
