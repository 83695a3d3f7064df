//! A graph made again from its steps.

use super::bind::{BindError, Bound};
use super::ids::Millis;
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
            Step::PassedOver { numbers, now } => {
                self.pass_over(numbers, now);
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

    /// Whoever goes on in place of another one gives none of the next numbers to a task: of so many tasks, at each
    /// stage, the other one may not have written down that it bound them, and workers have done something under
    /// their names.
    pub fn pass_over(&mut self, numbers: u32, now: Millis) {
        self.stages.iter_mut().for_each(|stage| stage.tasks.pass_over(numbers));
        let step = self.is_recorded().then_some(Step::PassedOver { numbers, now });
        self.record(step);
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
