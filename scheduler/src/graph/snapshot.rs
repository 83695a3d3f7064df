//! A graph as bytes, in place of the steps that made it.
//!
//! It has all of a graph, but for steps that nobody has taken yet: also the stages and edges as they were planned. These
//! are few, and what a task needs that merges runs is known only while the job runs.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::bind::BindError;
use super::ids::Millis;
use super::job::JobGraph;
use super::spec::{GraphError, JobSpec};
use super::step::Step;

/// No byte of a compressed snapshot can stand for more.
const UNPACKED_MAX: usize = 255;

/// A graph as far as it is written down: others go on from there with the steps that come after it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Tells of which plan it is. Compared by whoever goes on, and nothing to the graph.
    pub cut: u32,
    time: Millis,
    graph: Graph,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Graph {
    /// Nothing has happened to it.
    New(JobSpec),
    /// Something has.
    Changed(Box<JobGraph>),
}

/// Why there is no snapshot.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SnapshotError {
    /// The job would be refused.
    #[error(transparent)]
    Spec(#[from] GraphError),
    /// Steps are of another graph.
    #[error(transparent)]
    Step(#[from] BindError),
    /// It cannot be written, or bytes are not those of one.
    #[error("a graph cannot be written or read: {0}")]
    Bytes(String),
}

impl SnapshotError {
    fn bytes(problem: impl ToString) -> Self {
        Self::Bytes(problem.to_string())
    }
}

impl Snapshot {
    /// Of a graph to which nothing has happened.
    pub fn new(cut: u32, spec: JobSpec) -> Self {
        Self { cut, time: Millis::default(), graph: Graph::New(spec) }
    }

    /// The latest time that it knows.
    pub fn time(&self) -> Millis {
        self.time
    }

    /// The graph, if something has happened to it.
    pub fn changed(self) -> Option<JobGraph> {
        match self.graph {
            Graph::New(_) => None,
            Graph::Changed(graph) => Some(*graph),
        }
    }

    /// The graph after these steps.
    ///
    /// # Errors
    /// If they are not those of this graph.
    pub fn after(self, steps: impl IntoIterator<Item = Step>) -> Result<Self, SnapshotError> {
        let Self { cut, mut time, graph } = self;
        let mut graph = match graph {
            Graph::New(spec) => Box::new(JobGraph::try_new(spec)?),
            Graph::Changed(graph) => graph,
        };
        for step in steps {
            time = time.max(step.time());
            graph.replay(step)?;
        }
        Ok(Self { cut, time, graph: Graph::Changed(graph) })
    }

    /// As it is written down.
    ///
    /// # Errors
    /// If it is too large.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SnapshotError> {
        let bytes = postcard::to_allocvec(self).map_err(SnapshotError::bytes)?;
        if u32::try_from(bytes.len()).is_err() {
            return Err(SnapshotError::bytes(format!("{} bytes are too many", bytes.len())));
        }
        // Names of workers are most of it, and come again and again.
        Ok(lz4_flex::block::compress_prepend_size(&bytes))
    }

    /// What [`Self::to_bytes`] has written.
    ///
    /// # Errors
    /// If it has not.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let (size, packed) =
            lz4_flex::block::uncompressed_size(bytes).map_err(SnapshotError::bytes)?;
        if size > packed.len().saturating_mul(UNPACKED_MAX) {
            return Err(SnapshotError::bytes(format!("{} bytes cannot be {size}", packed.len())));
        }
        let bytes = lz4_flex::block::decompress(packed, size).map_err(SnapshotError::bytes)?;
        all_of(&bytes)
    }
}

fn all_of<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, SnapshotError> {
    match postcard::take_from_bytes(bytes).map_err(SnapshotError::bytes)? {
        (found, []) => Ok(found),
        (_, rest) => Err(SnapshotError::bytes(format!("{} bytes follow it", rest.len()))),
    }
}
