//! What Ballista's event loop is to look at next.
//!
//! A look is an event of its queue, and while the loop handles it, it puts more of them there itself: one in any case,
//! and one for each job that has ended. Were the queue full, it would wait for itself for ever. So what is asked for
//! while it looks is gathered, and it is made to look once at all of it, after it has begun with the look before.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A look has so many jobs at most, as all of them may have ended: far fewer than the queue has room for, and more than
/// there ever are.
const JOBS_MAX: usize = 100_000;

/// The jobs that are to be looked at, if the loop is to look.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    asked_for: Mutex<Option<BTreeSet<String>>>,
    asked: Notify,
    begun: Notify,
}

impl Looks {
    /// Asks for a look at these jobs; of none, at what is free and who waits for it.
    pub(crate) fn ask(&self, jobs: impl IntoIterator<Item = String>) {
        self.asked_for.lock().get_or_insert_default().extend(jobs);
        self.asked.notify_one();
    }

    /// Takes what was asked for, once there is something. One task may wait for it.
    pub(crate) async fn next(&self) -> BTreeSet<String> {
        loop {
            if let Some(jobs) = self.take() {
                return jobs;
            }
            self.asked.notified().await;
        }
    }

    /// Takes what was asked for until now, if anything was.
    pub(crate) fn take(&self) -> Option<BTreeSet<String>> {
        let mut asked_for = self.asked_for.lock();
        let mut jobs = asked_for.take()?;
        if let Some(first) = jobs.iter().nth(JOBS_MAX).cloned() {
            *asked_for = Some(jobs.split_off(&first));
        }
        Some(jobs)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.asked_for.lock().is_none()
    }

    /// The event loop begins with the look that it was told of.
    pub(crate) fn begin(&self) {
        self.begun.notify_one();
    }

    /// Waits until it does.
    pub(crate) async fn begun(&self) {
        self.begun.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn names(jobs: &[&str]) -> Vec<String> {
        jobs.iter().map(|&job| job.to_owned()).collect()
    }

    #[tokio::test]
    async fn what_is_asked_for_meanwhile_is_one_look() {
        let looks = Looks::default();
        assert!(looks.next().now_or_never().is_none());
        for jobs in [&["b", "a"][..], &[], &["a"]] {
            looks.ask(names(jobs));
        }
        assert!(looks.next().await.into_iter().eq(names(&["a", "b"])));
        assert!(looks.next().now_or_never().is_none());
        looks.ask([]);
        assert!(looks.next().await.is_empty(), "a look at no job is a look");
    }

    #[tokio::test]
    async fn jobs_that_are_too_many_are_looked_at_one_part_after_the_other() {
        let looks = Looks::default();
        let all: Vec<String> = (0..2 * JOBS_MAX + 1).map(|job| format!("{job:06}")).collect();
        looks.ask(all.clone());
        let mut found = vec![];
        for count in [JOBS_MAX, JOBS_MAX, 1] {
            let jobs = looks.next().await;
            assert_eq!(jobs.len(), count);
            found.extend(jobs);
        }
        assert_eq!(found, all);
        assert!(looks.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn the_next_look_waits_for_the_one_before() {
        let looks = Looks::default();
        assert!(looks.begun().now_or_never().is_none());
        looks.begin();
        assert!(looks.begun().now_or_never().is_some());
        assert!(looks.begun().now_or_never().is_none());
    }
}
