//! What a task reads of a stage that deals its rows out by hash.

use super::bind::Input;
use super::block::Block;
use super::ids::{BlockId, StageId};
use super::job::JobGraph;

impl JobGraph {
    /// What a partition has in the blocks of a stage that deals its rows out by hash: of each block that is
    /// there and has some of it, its segment.
    pub fn segments(&self, stage: StageId, partition: u32) -> Vec<Input> {
        let units = self.stages[stage.at()].units.iter().enumerate();
        let blocks = units.flat_map(|(index, unit)| {
            let id = stage.unit(index as u32);
            unit.blocks.iter().map(move |(seq, block)| (id.block(seq), block))
        });
        let segment = |(id, block): (BlockId, &Block)| {
            let segments = block.segments.as_ref().filter(|_| block.is_alive());
            let segment = segments?.of(partition)?;
            let whole = self.input(id);
            Some(Input {
                bytes: segment.bytes.into(),
                rows: segment.rows.into(),
                checksum: segment.checksum.into(),
                segment_at: Some(segment.at.into()),
                ..whole
            })
        };
        blocks.filter_map(segment).collect()
    }
}
