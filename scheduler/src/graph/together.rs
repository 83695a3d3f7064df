//! Where units had best run that read what tasks before them have merged, and those tasks.
//!
//! ```text
//!  merge   0 ─┐ partitions 0, 1, 2                 on a: the first one begins there, its sibling follows
//!          1 ─┘ the same ones, of other tasks
//!  reduce  0    of both                            on a: most of it lies there
//! ```
//! It is no more than a wish: a worker that is free takes what has another home rather than nothing.

use std::collections::BTreeSet;

use super::block::Block;
use super::ids::{UnitId, WorkerId};
use super::job::JobGraph;
use super::ready::ReadyItem;
use super::segments::Segment;
use super::spec::EdgeKind;
use super::unit::{Unit, UnitInput};

impl JobGraph {
    /// A unit has ended well: who reads its partitions had best do so where they lie.
    pub(super) fn note_homes(&mut self, unit: UnitId) {
        for (edge, _, kind, to) in self.edges_of(&self.stages[unit.stage.at()].outputs) {
            if kind != EdgeKind::Hash || !self.edges[edge.at()].spec.lies_together {
                continue;
            }
            let segments = |(_, block): (u32, &Block)| {
                let segments = block.segments.iter().flat_map(|segments| segments.iter());
                let one = |segment: Segment| (block.worker.clone(), segment);
                segments.map(one).collect::<Vec<_>>()
            };
            let given: Vec<_> = self.unit(unit).blocks.iter().flat_map(segments).collect();
            let mut partitions = BTreeSet::new();
            for (worker, Segment { partition, bytes, .. }) in given {
                self.edges[edge.at()].homes.add(partition, worker, bytes.into());
                partitions.insert(partition);
            }
            // Those that read partitions follow each other.
            let units = &self.stages[to.at()].units;
            let is_first = |unit: &Unit| unit.input == UnitInput::Partition(0);
            let Some(first) = units.iter().position(is_first) else { continue };
            let readers: Vec<_> = partitions
                .into_iter()
                .map(|partition| (partition, first + partition as usize))
                .filter(|(partition, at)| {
                    let reader = units.get(*at);
                    reader.is_some_and(|unit| unit.input == UnitInput::Partition(*partition))
                })
                .collect();
            readers.into_iter().for_each(|(_, at)| self.refresh(to.unit(at as u32)));
        }
    }

    /// A unit begins on a worker: those that belong to it had best follow.
    pub(super) fn call_siblings(&mut self, unit: UnitId, worker: &WorkerId) {
        let stage = &mut self.stages[unit.stage.at()];
        let together = stage.spec.units_together;
        if together < 2 {
            return;
        }
        let first = unit.index - unit.index % together;
        stage.homes.insert(first, worker.clone());
        let end = first.saturating_add(together).min(stage.units.len() as u32);
        (first..end).for_each(|index| self.refresh(unit.stage.unit(index)));
    }

    /// Where a unit had best run that reads a partition.
    pub(super) fn home_of_partition(&self, unit: UnitId, partition: u32) -> Option<WorkerId> {
        let stage = &self.stages[unit.stage.at()];
        let first = unit.index - unit.index % stage.spec.units_together.max(1);
        let beside = || stage.homes.get(&first).cloned();
        let edges = stage.inputs.iter().map(|edge| &self.edges[edge.at()].homes);
        let most = edges.filter_map(|homes| homes.of(partition)).max_by_key(|(_, bytes)| *bytes);
        most.map(|(worker, _)| worker.clone()).or_else(beside)
    }

    /// A worker is gone, and with it what lay there.
    pub(super) fn forget_homes(&mut self, worker: &WorkerId) {
        self.edges.iter_mut().for_each(|edge| edge.homes.forget(worker));
        for stage in self.order.clone() {
            let found = &mut self.stages[stage.at()];
            found.homes.retain(|_, home| home != worker);
            let there: Vec<_> = found.ready.at(Some(worker)).collect();
            for item in there {
                if let ReadyItem::Unit(index) = item {
                    self.refresh(stage.unit(index));
                }
            }
        }
    }
}
