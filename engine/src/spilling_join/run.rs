//! What DataFusion's join and its inputs share while it runs.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::prelude::SessionConfig;
use parking_lot::Mutex;

use super::memory::Memory;
use super::parts::Rows;
use super::shape::Shape;

/// One execution of one of DataFusion's joins. It is in the context that the join is run with; its inputs go on
/// with the context outside.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) shape: Arc<Shape>,
    pub(super) outside: Arc<TaskContext>,
    pub(super) partition: usize,
    /// How often what is gathered was parted; `None` if it is not to be parted again.
    pub(super) level: Option<usize>,
    pub(super) memory: Arc<Memory>,
    probe: Mutex<Probe>,
}

/// The probe side, of which nobody has read as long as the build side is gathered.
#[derive(Default)]
struct Probe(Option<SendableRecordBatchStream>);

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({})", if self.0.is_some() { "not read" } else { "taken" })
    }
}

impl Run {
    pub(super) fn new(
        shape: &Arc<Shape>,
        outside: &Arc<TaskContext>,
        partition: usize,
        level: Option<usize>,
    ) -> Arc<Self> {
        let name = format!("HashJoinInput[{partition}]");
        Arc::new(Self {
            shape: Arc::clone(shape),
            outside: Arc::clone(outside),
            partition,
            level,
            memory: Arc::new(Memory::new(name, outside.memory_pool())),
            probe: Mutex::default(),
        })
    }

    /// The execution that a context was made for.
    pub(super) fn of(context: &TaskContext) -> Option<Arc<Self>> {
        context.session_config().get_extension()
    }

    /// What the join is run with.
    pub(super) fn context(self: &Arc<Self>) -> Arc<TaskContext> {
        let config = self.outside.session_config().clone().with_extension(Arc::clone(self));
        with_pool(&self.outside, config, Arc::clone(&self.memory) as _)
    }

    pub(super) fn put_probe(&self, rows: SendableRecordBatchStream) {
        self.probe.lock().0 = Some(rows);
    }

    /// The probe side, for the one who reads it.
    pub(super) fn take_probe(&self) -> Option<SendableRecordBatchStream> {
        self.probe.lock().0.take()
    }
}

/// The context of an operator that has a pool of its own. It calls no function by its name.
pub(super) fn with_pool(
    outside: &TaskContext,
    config: SessionConfig,
    memory_pool: Arc<dyn MemoryPool>,
) -> Arc<TaskContext> {
    let runtime = RuntimeEnv { memory_pool, ..outside.runtime_env().as_ref().clone() };
    Arc::new(TaskContext::new(
        outside.task_id(),
        outside.session_id(),
        config,
        HashMap::new(),
        HashMap::new(),
        HashMap::new(),
        HashMap::new(),
        Arc::new(runtime),
    ))
}

/// Why a join ends that is not to end: its build side does not fit. Travels as the error of its input, which
/// is the only thing that the join passes on.
#[derive(Debug)]
pub(super) struct TooLarge {
    /// The parts of the build side; `None` if it was not to be parted.
    pub(super) parts: Option<Vec<Rows>>,
    /// The parts of the probe side, of those of its partitions that are there.
    probes: Mutex<Vec<Vec<Rows>>>,
}

impl TooLarge {
    pub(super) fn new(parts: Option<Vec<Rows>>) -> Self {
        Self { parts, probes: Mutex::default() }
    }

    /// Adds a partition of the probe side, of so many. The last one gets all of them, part by part.
    pub(super) fn with_probe(&self, parts: Vec<Rows>, partitions: usize) -> Option<Vec<Rows>> {
        let mut probes = self.probes.lock();
        probes.push(parts);
        if probes.len() < partitions {
            return None;
        }
        let mut all = std::mem::take(&mut *probes).into_iter();
        let first = all.next()?;
        let join = |all: Vec<Rows>, more: Vec<Rows>| {
            all.into_iter().zip(more).map(|(all, more)| all.and(more)).collect()
        };
        Some(all.fold(first, join))
    }

    pub(super) fn into_error(self) -> DataFusionError {
        DataFusionError::External(Box::new(TooLargeError(Arc::new(self))))
    }

    /// What an error says, if it says that.
    pub(super) fn of(error: &DataFusionError) -> Option<Arc<Self>> {
        match error {
            DataFusionError::External(error) => {
                let found: Option<&TooLargeError> = error.downcast_ref();
                found.map(|found| Arc::clone(&found.0))
            }
            DataFusionError::Shared(error) => Self::of(error),
            DataFusionError::Context(_, error) => Self::of(error),
            _ => None,
        }
    }
}

/// Nobody sees it: the operator around the join takes it.
#[derive(Debug)]
struct TooLargeError(Arc<TooLarge>);

impl fmt::Display for TooLargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the build side of a join does not fit into memory")
    }
}

impl Error for TooLargeError {}
