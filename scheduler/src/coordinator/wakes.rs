//! When which job must be looked at again.
//!
//! Nobody looks through all jobs for those whose waits are over: a job that waits is listed here under
//! the time at which it does no more.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::graph::Millis;

/// Jobs by the time at which they are to be looked at.
#[derive(Debug, Default)]
pub(crate) struct Wakes(Mutex<BTreeSet<(Millis, String)>>);

impl Wakes {
    /// Lists a job, which may be listed under other times as well: it is looked at at each of them.
    pub(crate) fn list(&self, job: &str, at: Millis) {
        self.0.lock().insert((at, job.to_owned()));
    }

    /// Takes the jobs whose time has come, each of them once.
    pub(crate) fn due(&self, now: Millis) -> BTreeSet<String> {
        let mut listed = self.0.lock();
        let mut due = BTreeSet::new();
        while listed.first().is_some_and(|(at, _)| *at <= now) {
            due.extend(listed.pop_first().map(|(_, job)| job));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_due_once_its_time_has_come_and_not_before() {
        let wakes = Wakes::default();
        wakes.list("b", Millis(20));
        wakes.list("a", Millis(10));
        wakes.list("a", Millis(15));
        assert!(wakes.due(Millis(9)).is_empty());
        assert!(wakes.due(Millis(15)).iter().eq(["a"]), "listed twice, due once");
        assert!(wakes.due(Millis(15)).is_empty());
        assert!(wakes.due(Millis(100)).iter().eq(["b"]));
    }
}
