//! The stand-in for a part of a plan, and how it is written and read: see `plan_parts`.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, exec_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};

/// Before the number of a part.
const MAGIC: &[u8] = b"forebay-part-1:";

/// The parts of a plan that have been decoded and are not yet in their place. An extension of the
/// session that decodes.
#[derive(Default)]
pub(crate) struct PlanParts(Mutex<Vec<Option<Arc<dyn ExecutionPlan>>>>);

impl PlanParts {
    pub(super) fn push(&self, part: Arc<dyn ExecutionPlan>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Some(part));
    }

    pub(super) fn take(&self, number: usize) -> Option<Arc<dyn ExecutionPlan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(number)?.take()
    }
}

/// Stands for a part of a plan while the plan is sent. It never runs: decoding puts the part back.
#[derive(Debug)]
pub(super) struct PlanPartExec {
    pub(super) number: usize,
    pub(super) properties: Arc<PlanProperties>,
}

impl DisplayAs for PlanPartExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlanPartExec: number={}", self.number)
    }
}

impl ExecutionPlan for PlanPartExec {
    fn name(&self) -> &'static str {
        "PlanPartExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match children.len() {
            0 => Ok(self),
            many => internal_err!("PlanPartExec is a leaf, found {many} inputs"),
        }
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("part {} of a plan was not put back", self.number)
    }
}

/// Writes and reads [`PlanPartExec`]; all else is the inner codec's.
pub(crate) struct PartCodec {
    inner: Arc<dyn PhysicalExtensionCodec>,
}

impl PartCodec {
    pub(crate) fn new(inner: Arc<dyn PhysicalExtensionCodec>) -> Self {
        Self { inner }
    }
}

impl fmt::Debug for PartCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartCodec").field("inner", &self.inner).finish()
    }
}

impl PhysicalExtensionCodec for PartCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(number) = bytes.strip_prefix(MAGIC) else {
            return self.inner.try_decode(bytes, inputs, context, converter);
        };
        let number = <[u8; 4]>::try_from(number).ok().map(u32::from_le_bytes);
        let parts = context.session_config().get_extension::<PlanParts>();
        let part = number.zip(parts).and_then(|(number, parts)| parts.take(number as usize));
        part.ok_or_else(|| {
            exec_datafusion_err!(
                "a plan names a part that was not sent before it, or was named already"
            )
        })
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(part) = node.downcast_ref::<PlanPartExec>() else {
            return self.inner.try_encode(node, bytes, converter);
        };
        bytes.extend_from_slice(MAGIC);
        bytes.extend((part.number as u32).to_le_bytes());
        Ok(())
    }
}
