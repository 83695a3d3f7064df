//! A graph made again from its steps.

use super::bind::{BindError, Bound};
use super::job::JobGraph;
use super::step::Step;

impl JobGraph {
    /// Keeps steps from now on, for [`Self::take_steps`].
    pub fn record_steps(&mut self) {
        self.steps.get_or_insert_default();
    }

    /// The steps since this was last asked, in their order. None if they are not recorded.
    pub fn take_steps(&mut self) -> Vec<Step> {
        self.steps.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Does a step again. The actions that follow were told when it was done first. The task that it makes, if
    /// it makes one.
    ///
    /// # Errors
    /// If it does not follow from the steps before: they are of another job, or not all.
    pub fn replay(&mut self, step: Step) -> Result<Option<Bound>, BindError> {
        match step {
            Step::Event { event, now } => {
                self.apply(event, now);
                Ok(None)
            }
            Step::Advance { stage, now } => {
                if stage.at() < self.stages.len() {
                    self.advance_stage(stage, now);
                }
                Ok(None)
            }
            Step::Ranges { stage, borders, .. } => {
                self.check_ranges(stage, &borders)?;
                Ok(None)
            }
            Step::Bind { work, worker, lease, now } => {
                self.bind(work, &worker, lease, now).map(Some)
            }
        }
    }

    pub(super) fn is_recorded(&self) -> bool {
        self.steps.is_some()
    }

    pub(super) fn record(&mut self, step: Option<Step>) {
        if let (Some(steps), Some(step)) = (&mut self.steps, step) {
            steps.push(step);
        }
    }
}
