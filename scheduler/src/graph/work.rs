//! What can be bound.

use serde::{Deserialize, Serialize};

use super::ids::{BlockId, EdgeId, UnitId};

/// What is to be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// A unit that exists.
    Unit(UnitId),
    /// Sealed blocks of one edge, which become a unit.
    Blocks {
        /// The edge over which they are read.
        edge: EdgeId,
        /// The blocks, in the order in which they are read.
        blocks: Vec<BlockId>,
    },
    /// Whole outputs of one edge, which become a unit.
    Outputs {
        /// The edge over which they are read.
        edge: EdgeId,
        /// Whose they are, in the order in which they are read.
        units: Vec<UnitId>,
    },
}
