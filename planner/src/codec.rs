//! Physical plans as bytes: plugs the operators' wire forms into DataFusion's codec.
//!
//! ```text
//!  magic (8)  format (4)  operator (1)  checksum (8)  message of the operator's `wire.rs`
//! ```
//!
//! What does not begin with the magic is somebody else's and goes to the inner codec untouched, so
//! this codec can stand around another one: a distributed engine's, for its shuffles. A plan is read
//! by the format that wrote it and no other, and whoever receives a plan of another format is told
//! both. The checksum is there because a message that is cut short still reads as a message, with
//! options missing.
//!
//! Nothing here has a message of its own: see `engine/src/exchange/wire.rs`,
//! `engine/src/inference/wire.rs`, `engine/src/files/wire.rs`, `engine/src/projection/wire.rs`, and
//! `physical/field_expr.rs` for an expression.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::{Result, exec_datafusion_err, exec_err, not_impl_err};
use datafusion::execution::TaskContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::{AggregateUDF, HigherOrderUDF, ScalarUDF, WindowUDF};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::proto_decode::PhysicalExprDecodeCtx;
use datafusion::physical_expr_common::physical_expr::proto_encode::PhysicalExprEncodeCtx;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{
    DefaultPhysicalExtensionCodec, PhysicalExtensionCodec, PhysicalPlanDecodeContext,
    PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::PhysicalExprNode;
use forebay_engine::wire::ExprCodec;
use forebay_engine::{
    BoundedProjectionExec, InferenceExec, ReadFilesExec, RestoreOrderExec, StreamingExchangeExec,
    TransformExec,
};
use forebay_udf::feature;
use prost::Message;

use crate::bounded;
use crate::logical::{SingleValue, Unknown};
use crate::physical::{FieldExpr, VerdictExec};

const MAGIC: [u8; 8] = *b"\x89FOREBAY";

/// The operators of Forebay as bytes, and everything else by an inner codec.
///
/// The functions that [`install`](fn@crate::install) registers are found again wherever this codec is,
/// even where others are registered under their names, and so are those that planning puts in.
///
/// ```
/// # use std::sync::Arc;
/// # use datafusion::arrow::datatypes::Schema;
/// # use datafusion::physical_plan::{ExecutionPlan, empty::EmptyExec};
/// # use datafusion::prelude::SessionContext;
/// use datafusion_proto::bytes::{
///     physical_plan_from_bytes_with_extension_codec, physical_plan_to_bytes_with_extension_codec,
/// };
/// use forebay_planner::ForebayPhysicalCodec;
///
/// # fn main() -> datafusion::common::Result<()> {
/// # let plan: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
/// # let context = SessionContext::new().task_ctx();
/// let codec = ForebayPhysicalCodec::default();
/// let bytes = physical_plan_to_bytes_with_extension_codec(plan, &codec)?;
/// let plan = physical_plan_from_bytes_with_extension_codec(&bytes, &context, &codec)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ForebayPhysicalCodec {
    inner: Arc<dyn PhysicalExtensionCodec>,
    /// Where functions find packages of models.
    stores: Arc<RuntimeEnv>,
}

impl Default for ForebayPhysicalCodec {
    /// Around DataFusion's, which knows no other operators.
    fn default() -> Self {
        Self::new(Arc::new(DefaultPhysicalExtensionCodec {}))
    }
}

impl ForebayPhysicalCodec {
    /// The format that this build writes, and the only one that it reads. Goes up with every change
    /// of a message.
    pub const FORMAT: u32 = 7;

    /// Leaves to `inner` what is not Forebay's.
    pub fn new(inner: Arc<dyn PhysicalExtensionCodec>) -> Self {
        Self { inner, stores: Arc::default() }
    }

    /// The functions of decoded plans read packages of models from these stores; without this, from
    /// local folders only.
    #[must_use]
    pub fn with_stores(self, stores: Arc<RuntimeEnv>) -> Self {
        Self { stores, ..self }
    }

    /// All that plans may name, also those that no session has by name.
    fn functions(&self) -> impl Iterator<Item = Arc<ScalarUDF>> {
        let ours = feature::functions().into_iter().chain(feature::planned_functions(&self.stores));
        ours.chain(bounded::functions()).chain([Unknown::function()])
    }

    fn operator(
        &self,
        frame: &Frame<'_>,
        inputs: &[Arc<dyn ExecutionPlan>],
        exprs: &Exprs<'_>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let message = frame.message;
        let input = || match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => exec_err!("{} takes one input, found {}", frame.operator.name(), inputs.len()),
        };
        Ok(match frame.operator {
            Operator::ReadFiles if inputs.is_empty() => {
                Arc::new(ReadFilesExec::from_wire(message)?)
            }
            Operator::ReadFiles => {
                return exec_err!("ReadFilesExec takes no input, found {}", inputs.len());
            }
            Operator::Exchange => {
                Arc::new(StreamingExchangeExec::from_wire(message, input()?, exprs)?)
            }
            Operator::RestoreOrder => Arc::new(RestoreOrderExec::from_wire(message, input()?)?),
            Operator::Transform => Arc::new(TransformExec::from_wire(message, input()?, exprs)?),
            Operator::Inference => Arc::new(InferenceExec::from_wire(message, input()?)?),
            Operator::BoundedProjection => {
                Arc::new(BoundedProjectionExec::from_wire(message, input()?, exprs)?)
            }
            Operator::Field => return exec_err!("an expression stands where an operator should"),
        })
    }
}

/// Which operator a message is of. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Operator {
    Exchange = 1,
    RestoreOrder = 2,
    Transform = 3,
    Inference = 4,
    ReadFiles = 5,
    /// No operator, but an expression.
    Field = 6,
    BoundedProjection = 7,
}

impl Operator {
    const ALL: [Self; 7] = [
        Self::Exchange,
        Self::RestoreOrder,
        Self::Transform,
        Self::Inference,
        Self::ReadFiles,
        Self::Field,
        Self::BoundedProjection,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Exchange => "StreamingExchangeExec",
            Self::RestoreOrder => "RestoreOrderExec",
            Self::Transform => "TransformExec",
            Self::Inference => "InferenceExec",
            Self::ReadFiles => "ReadFilesExec",
            Self::Field => "FieldExpr",
            Self::BoundedProjection => "BoundedProjectionExec",
        }
    }
}

/// An operator's message and what stands before it.
struct Frame<'a> {
    operator: Operator,
    message: &'a [u8],
}

impl<'a> Frame<'a> {
    fn write(&self, buf: &mut Vec<u8>) {
        buf.extend(MAGIC);
        buf.extend(ForebayPhysicalCodec::FORMAT.to_le_bytes());
        buf.push(self.operator as u8);
        buf.extend(self.checksum().to_le_bytes());
        buf.extend(self.message);
    }

    /// The frame in `buf`; `None` if the bytes are not Forebay's.
    fn read(buf: &'a [u8]) -> Result<Option<Self>> {
        let known = MAGIC.len().min(buf.len());
        if known == 0 || buf[..known] != MAGIC[..known] {
            return Ok(None);
        }
        let Some((format, rest)) = buf.get(MAGIC.len()..).and_then(|rest| rest.split_first_chunk())
        else {
            return Err(damaged("it ends before its format"));
        };
        let (found, reads) = (u32::from_le_bytes(*format), ForebayPhysicalCodec::FORMAT);
        if found != reads {
            return exec_err!(
                "a plan of format {found} was sent to a forebay {} that reads format {reads}; run \
                 the same version of forebay in every process",
                env!("CARGO_PKG_VERSION")
            );
        }
        let Some(([kind], rest)) = rest.split_first_chunk() else {
            return Err(damaged("it ends before its operator"));
        };
        let Some((checksum, message)) = rest.split_first_chunk() else {
            return Err(damaged("it ends before its checksum"));
        };
        let operator = Operator::ALL.into_iter().find(|operator| *operator as u8 == *kind);
        let operator = operator.ok_or_else(|| damaged(&format!("there is no operator {kind}")))?;
        let frame = Self { operator, message };
        match frame.checksum() == u64::from_le_bytes(*checksum) {
            true => Ok(Some(frame)),
            false => Err(damaged(&format!("the checksum of a {} differs", operator.name()))),
        }
    }

    /// FNV-1a, 64 bits (Fowler, Noll, Vo), of the operator and its message.
    fn checksum(&self) -> u64 {
        let bytes = [self.operator as u8];
        let bytes = bytes.iter().chain(self.message);
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

fn damaged(problem: &str) -> datafusion::common::DataFusionError {
    exec_datafusion_err!(
        "a plan of forebay is damaged: {problem} (expected format {})",
        ForebayPhysicalCodec::FORMAT
    )
}

/// Expressions by DataFusion's messages, converted as the caller wants it.
struct Exprs<'a> {
    codec: &'a ForebayPhysicalCodec,
    converter: &'a dyn PhysicalProtoConverterExtension,
    /// When decoding.
    context: Option<&'a TaskContext>,
}

impl ExprCodec for Exprs<'_> {
    fn encode(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Vec<u8>> {
        Ok(self.converter.physical_expr_to_proto(expr, self.codec)?.encode_to_vec())
    }

    fn decode(&self, bytes: &[u8], schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
        let Some(context) = self.context else {
            return not_impl_err!("expressions are decoded with a task context");
        };
        let node = PhysicalExprNode::decode(bytes)
            .map_err(|error| damaged(&format!("an expression: {error}")))?;
        let context = PhysicalPlanDecodeContext::new(context, self.codec);
        self.converter.proto_to_physical_expr(&node, schema, &context)
    }
}

impl PhysicalExtensionCodec for ForebayPhysicalCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(frame) = Frame::read(buf)? else {
            return self.inner.try_decode(buf, inputs, context, converter);
        };
        let exprs = Exprs { codec: self, converter, context: Some(context) };
        let name = frame.operator.name();
        let operator = self.operator(&frame, inputs, &exprs);
        operator.map_err(|error| error.context(format!("{name} cannot be decoded")))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let exprs = Exprs { codec: self, converter, context: None };
        let (operator, message) =
            if let Some(exchange) = node.downcast_ref::<StreamingExchangeExec>() {
                (Operator::Exchange, exchange.to_wire(&exprs)?)
            } else if let Some(restore) = node.downcast_ref::<RestoreOrderExec>() {
                (Operator::RestoreOrder, restore.to_wire())
            } else if let Some(transform) = node.downcast_ref::<TransformExec>() {
                (Operator::Transform, transform.to_wire(&exprs)?)
            } else if let Some(inference) = node.downcast_ref::<InferenceExec>() {
                (Operator::Inference, inference.to_wire()?)
            } else if let Some(files) = node.downcast_ref::<ReadFilesExec>() {
                (Operator::ReadFiles, files.to_wire())
            } else if let Some(projection) = node.downcast_ref::<BoundedProjectionExec>() {
                (Operator::BoundedProjection, projection.to_wire(&exprs)?)
            } else if node.is::<VerdictExec>() {
                return not_impl_err!(
                    "VerdictExec stays where the query was asked; send the plan below it"
                );
            } else {
                return self.inner.try_encode(node, buf, converter);
            };
        Frame { operator, message: &message }.write(buf);
        Ok(())
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        if buf != MAGIC {
            return self.inner.try_decode_udf(name, buf);
        }
        let function = self.functions().find(|function| function.name() == name);
        function.ok_or_else(|| damaged(&format!("there is no function {name}")))
    }

    fn try_encode_udf(&self, node: &ScalarUDF, buf: &mut Vec<u8>) -> Result<()> {
        if !self.functions().any(|function| function.as_ref() == node) {
            return self.inner.try_encode_udf(node, buf);
        }
        // By name alone it would be whatever is registered over there: DataFusion has functions of
        // these names too.
        buf.extend(MAGIC);
        Ok(())
    }

    fn try_decode_higher_order_function(
        &self,
        name: &str,
        buf: &[u8],
    ) -> Result<Arc<HigherOrderUDF>> {
        self.inner.try_decode_higher_order_function(name, buf)
    }

    fn try_encode_higher_order_function(
        &self,
        node: &HigherOrderUDF,
        buf: &mut Vec<u8>,
    ) -> Result<()> {
        self.inner.try_encode_higher_order_function(node, buf)
    }

    fn try_decode_expr(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn PhysicalExpr>],
        context: &PhysicalExprDecodeCtx<'_>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        match Frame::read(buf)? {
            Some(Frame { operator: Operator::Field, message }) => {
                Ok(Arc::new(FieldExpr::from_wire(message, inputs)?))
            }
            Some(frame) => {
                exec_err!("a {} stands where an expression should", frame.operator.name())
            }
            None => self.inner.try_decode_expr(buf, inputs, context),
        }
    }

    fn try_encode_expr(
        &self,
        node: &Arc<dyn PhysicalExpr>,
        buf: &mut Vec<u8>,
        context: &PhysicalExprEncodeCtx<'_>,
    ) -> Result<()> {
        let Some(expr) = node.downcast_ref::<FieldExpr>() else {
            return self.inner.try_encode_expr(node, buf, context);
        };
        Frame { operator: Operator::Field, message: &expr.to_wire()? }.write(buf);
        Ok(())
    }

    fn try_decode_udaf(&self, name: &str, buf: &[u8]) -> Result<Arc<AggregateUDF>> {
        // Not among a session's functions, as it is not for users.
        if name == SingleValue::NAME {
            return Ok(SingleValue::function());
        }
        self.inner.try_decode_udaf(name, buf)
    }

    fn try_encode_udaf(&self, node: &AggregateUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.inner.try_encode_udaf(node, buf)
    }

    fn try_decode_udwf(&self, name: &str, buf: &[u8]) -> Result<Arc<WindowUDF>> {
        self.inner.try_decode_udwf(name, buf)
    }

    fn try_encode_udwf(&self, node: &WindowUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.inner.try_encode_udwf(node, buf)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::physical_plan::empty::EmptyExec;
    use datafusion_proto::physical_plan::DefaultPhysicalProtoConverter;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Nobody sends these: the checksum is right, and the message is anything.
        #[test]
        fn a_message_that_makes_no_sense_is_an_error_and_no_panic(
            operator in prop::sample::select(Operator::ALL.to_vec()),
            message in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut bytes = Vec::new();
            Frame { operator, message: &message }.write(&mut bytes);
            let codec = ForebayPhysicalCodec::default();
            let (context, converter) =
                (TaskContext::default(), DefaultPhysicalProtoConverter {});
            let input: Arc<dyn ExecutionPlan> =
                Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
            let error = codec.try_decode(&bytes, &[input], &context, &converter).unwrap_err();
            let expected = format!("{} cannot be decoded", operator.name());
            prop_assert!(error.to_string().contains(&expected), "{}", error);
        }
    }
}
