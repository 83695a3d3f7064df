//! Partitions of a hash shuffle that have one segment together, until what was dealt out is merged.
//!
//! ```text
//!  partitions      0  1  2  3  4  5  6        three to a group, and two slices
//!  groups          ├─ 0 ─┤ ├─ 1 ─┤ 2
//!  segments        0 or 1  2 or 3  4 or 5     the first one of each in rounds of units 0, 2, 4 …, the other in 1, 3, 5 …
//! ```

use std::fmt;

/// How partitions form groups, and in which segments of these a task writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// So many partitions form a group: those side by side. At least one.
    pub width: u32,
    /// So many segments has a group, of different tasks: each is read by another one. At least one.
    pub slices: u32,
    /// The one that this task writes, less than their number.
    pub slice: u32,
}

/// Each partition has a segment of its own.
impl Default for Groups {
    fn default() -> Self {
        Self { width: 1, slices: 1, slice: 0 }
    }
}

impl Groups {
    /// As many as there are of so many partitions.
    pub fn count(&self, partitions: u32) -> u32 {
        partitions.div_ceil(self.width)
    }

    /// The segments of all tasks: one more than the largest number.
    pub fn segments(&self, partitions: u32) -> u32 {
        self.count(partitions).saturating_mul(self.slices)
    }

    /// The segment of a partition.
    pub fn segment_of(&self, partition: u32) -> u32 {
        partition / self.width * self.slices + self.slice
    }

    /// The same for the tasks of a unit: the same ones whenever it runs again.
    #[must_use]
    pub fn of_unit(self, unit: u32) -> Self {
        Self { slice: unit % self.slices, ..self }
    }

    /// Whether that is what groups of so many partitions can be: no task has more segments than there are partitions.
    pub(super) fn is_sound(&self, partitions: u32) -> bool {
        let few = |width: u32| {
            partitions.div_ceil(width).saturating_mul(self.slices) <= partitions.max(1)
        };
        self.width > 0 && self.slice < self.slices && few(self.width)
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.width > 1 {
            write!(f, " in groups of {}", self.width)?;
        }
        if self.slices > 1 {
            write!(f, " and {} slices", self.slices)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Whoever reads the segments of a group in all slices has its partitions and no others.
    #[test]
    fn each_segment_is_of_one_group_and_one_slice() {
        for (partitions, width, slices) in [(7, 3, 2), (6, 3, 1), (5, 1, 1), (1, 4, 3), (100, 7, 5)]
        {
            let groups = Groups { width, slices, slice: 0 };
            let mut found = BTreeSet::new();
            for partition in 0..partitions {
                for unit in 0..slices + 2 {
                    let segment = groups.of_unit(unit).segment_of(partition);
                    assert_eq!(segment / slices, partition / width);
                    assert_eq!(segment % slices, unit % slices);
                    found.insert(segment);
                }
            }
            let all: BTreeSet<_> = (0..groups.segments(partitions)).collect();
            assert_eq!(found, all, "{partitions} partitions in {groups:?}");
        }
    }
}
