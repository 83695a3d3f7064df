//! What a task reads of a stage that deals its rows out by hash.

use super::bind::Input;
use super::block::Block;
use super::ids::{StageId, UnitId};
use super::job::JobGraph;

impl JobGraph {
    /// What a partition has in the blocks of a stage that deals its rows out by hash: of each block that is
    /// there and has some of it, its segment.
    pub fn segments(&self, stage: StageId, partition: u32) -> Vec<Input> {
        let units = (0..self.stages[stage.at()].units.len() as u32).map(|index| stage.unit(index));
        units.flat_map(|unit| self.segments_of(unit, partition)).collect()
    }

    /// The same of one unit.
    pub(super) fn segments_of(
        &self,
        unit: UnitId,
        partition: u32,
    ) -> impl Iterator<Item = Input> + '_ {
        let segment = move |(seq, block): (u32, &Block)| {
            let segments = block.segments.as_ref().filter(|_| block.is_alive());
            let segment = segments?.of(partition)?;
            Some(Input {
                bytes: segment.bytes.into(),
                rows: segment.rows.into(),
                checksum: segment.checksum.into(),
                segment_at: Some(segment.at.into()),
                ..self.input(unit.block(seq))
            })
        };
        self.unit(unit).blocks.iter().filter_map(segment)
    }
}
