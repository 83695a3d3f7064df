//! Every physical plan as bytes and back before it runs: what another process would be sent.

use std::fmt;
use std::sync::{Arc, Mutex};

use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::prelude::SessionContext;
use datafusion_proto::bytes::{
    physical_plan_from_bytes_with_proto_converter, physical_plan_to_bytes_with_proto_converter,
};
use datafusion_proto::physical_plan::{
    DeduplicatingProtoConverter, PhysicalExtensionCodec, PhysicalProtoConverterExtension,
};
use forebay_planner::ForebayPhysicalCodec;

/// Operators of DataFusion's that its codec does not know. They are handed over as they are, and
/// what is above and below them is encoded all the same. No operator of Forebay's may be here.
const WITHOUT_WIRE_FORM: [&str; 2] = [
    // INSERT INTO a table in memory.
    "DataSinkExec",
    // SHOW, and information_schema.
    "StreamingTableExec",
];

/// Sends every plan of the session through its bytes, as the last rule of the physical optimizer.
pub(crate) fn send_plans(session: &SessionContext) {
    let state = session.state_weak_ref();
    let context = move || Some(TaskContext::from(&*state.upgrade()?.read()));
    let rule = Arc::new(SendPlan { context: Box::new(context) });
    let state = session.state_ref();
    let mut state = state.write();
    *state = SessionStateBuilder::new_from_existing(state.clone())
        .with_physical_optimizer_rule(rule)
        .build();
}

struct SendPlan {
    context: Box<dyn Fn() -> Option<TaskContext> + Send + Sync>,
}

impl fmt::Debug for SendPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendPlan")
    }
}

impl PhysicalOptimizerRule for SendPlan {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let context = (self.context)().ok_or_else(|| internal_datafusion_err!("no session"))?;
        let codec = ForebayPhysicalCodec::new(Arc::new(Kept::default()));
        let converter = DeduplicatingProtoConverter {};
        let before = text(&plan);
        let kept = Arc::clone(&plan);
        let bytes = physical_plan_to_bytes_with_proto_converter(plan, &codec, &converter)?;
        let read =
            physical_plan_from_bytes_with_proto_converter(&bytes, &context, &codec, &converter);
        let plan = match read {
            // A message is read to a depth of 100. The scheduler sends deeper plans in parts, with its own tests.
            Err(error) if error.to_string().contains("recursion limit reached") => return Ok(kept),
            read => read?,
        };
        let after = text(&plan);
        match before == after {
            true => Ok(plan),
            false => internal_err!("the plan\n{before}became on its way\n{after}"),
        }
    }

    fn name(&self) -> &str {
        "send_plan"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn text(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).set_show_schema(true).indent(true).to_string()
}

/// Keeps the operators [`WITHOUT_WIRE_FORM`] on this side; their bytes are their numbers.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Arc<dyn ExecutionPlan>>>);

impl PhysicalExtensionCodec for Kept {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        _context: &TaskContext,
        _converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [number] = buf else { return internal_err!("no number: {buf:?}") };
        let node = Arc::clone(&self.0.lock().unwrap()[usize::from(*number)]);
        match inputs.is_empty() {
            true => Ok(node),
            false => replace_children_if_necessary(node, inputs.to_vec()),
        }
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        _converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        if !WITHOUT_WIRE_FORM.contains(&node.name()) {
            return internal_err!("{} has no wire form", node.name());
        }
        let mut kept = self.0.lock().unwrap();
        buf.push(u8::try_from(kept.len()).unwrap());
        kept.push(node);
        Ok(())
    }
}
