//! Groups of blocks or of outputs that wait for each other.

use super::ids::StageId;
use super::job::JobGraph;
use super::ready::ReadyItem;

/// Of what may wait in front of a stage, the part that a group may ask for: the rest is for what comes
/// while it is read.
const PART_OF_BUDGET: u64 = 2;

impl JobGraph {
    /// Whether what is ready of a stage is too little for a group, and more will come.
    pub(super) fn waits_for_more(&self, stage: StageId) -> bool {
        let found = &self.stages[stage.at()];
        let least = match found.spec.group_bytes_min {
            0 => 0,
            _ => self.group_bytes_min(stage),
        };
        if least == 0 {
            return false;
        }
        let mut ready = 0;
        for item in found.ready.iter() {
            match item {
                // It has its input.
                ReadyItem::Unit(_) => return false,
                ReadyItem::Block { block, .. } => ready += self.block(block).bytes,
                ReadyItem::Output { unit, .. } => ready += self.output_size(unit).0,
            }
            if ready >= least {
                return false;
            }
        }
        self.more_will_come(stage)
    }

    /// What a group waits for, within the budgets of what may wait.
    pub(crate) fn group_bytes_min(&self, stage: StageId) -> u64 {
        let found = &self.stages[stage.at()];
        let inputs = found.inputs.iter().map(|edge| &self.edges[edge.at()].spec);
        let streaming = inputs.filter(|edge| !edge.kind.is_blocking());
        let budgets =
            streaming.map(|edge| edge.budget_bytes).chain([self.limits.buffered_bytes_max]);
        let room = budgets.min().unwrap_or(u64::MAX) / PART_OF_BUDGET;
        found.spec.group_bytes_min.min(room)
    }

    fn more_will_come(&self, stage: StageId) -> bool {
        self.streams_from(stage).any(|from| {
            let producer = &self.stages[from.at()];
            !producer.closed || producer.undeclared > 0
        })
    }
}
