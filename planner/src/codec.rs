//! Physical plans as bytes: plugs the operators' wire forms into DataFusion's codec.
//!
//! ```text
//!  magic (8)  Node { format, one of: the operators' messages, an expression's }   as protobuf
//! ```
//!
//! What does not begin with the magic is somebody else's and goes to the inner codec untouched, so
//! this codec can stand around another one: a distributed engine's, for its shuffles. A plan is read
//! by the format that wrote it and no other, and whoever receives a plan of another format is told
//! both. That no byte changes on the way is the connection's care; a node that is cut short is not
//! read as one with options missing, since what it holds begins with its length.
//!
//! The operators' messages are beside them: see `engine/src/exchange/wire.rs`,
//! `engine/src/inference/wire.rs`, `engine/src/files/wire.rs`, `engine/src/projection/wire.rs`,
//! `engine/src/write/wire.rs`, and
//! `physical/field_expr.rs` for an expression.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, not_impl_err};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::execution::TaskContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::{AggregateUDF, HigherOrderUDF, ScalarUDF, WindowUDF};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::proto_decode::PhysicalExprDecodeCtx;
use datafusion::physical_expr_common::physical_expr::proto_encode::PhysicalExprEncodeCtx;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion_proto::physical_plan::{
    DefaultPhysicalExtensionCodec, PhysicalExtensionCodec, PhysicalPlanDecodeContext,
    PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::{Field, PhysicalExprNode, PhysicalPlanNode};
use forebay_engine::exchange::wire::{Exchange, RestoreOrder};
use forebay_engine::files::wire::ReadFiles;
use forebay_engine::inference::wire::{Inference, Transform};
use forebay_engine::projection::wire::BoundedProjection;
use forebay_engine::wire::ExprCodec;
use forebay_engine::write::wire::{SinkCodec, Write};
use forebay_engine::{
    BoundedProjectionExec, CommitExec, InferenceExec, ReadFilesExec, RestoreOrderExec,
    StreamingExchangeExec, TransformExec, WriteExec,
};
use forebay_udf::feature;
use prost::Message;

use crate::bounded;
use crate::logical::{SingleValue, Unknown};
use crate::physical::{FieldExpr, NotedExec};

/// Before each node of ours.
const MAGIC: &[u8] = b"\x89FOREBAY";

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
    pub const FORMAT: u32 = 11;

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
        kind: Kind,
        inputs: &[Arc<dyn ExecutionPlan>],
        exprs: &Exprs<'_>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let name = kind.name();
        let input = || match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => exec_err!("{name} takes one input, found {}", inputs.len()),
        };
        Ok(match kind {
            Kind::ReadFiles(message) if inputs.is_empty() => {
                Arc::new(ReadFilesExec::from_wire(message)?)
            }
            Kind::ReadFiles(_) => {
                return exec_err!("{name} takes no input, found {}", inputs.len());
            }
            Kind::Exchange(message) => {
                Arc::new(StreamingExchangeExec::from_wire(message, input()?, exprs)?)
            }
            Kind::RestoreOrder(message) => {
                Arc::new(RestoreOrderExec::from_wire(message, input()?)?)
            }
            Kind::Transform(message) => {
                Arc::new(TransformExec::from_wire(message, input()?, exprs)?)
            }
            Kind::Inference(message) => Arc::new(InferenceExec::from_wire(message, input()?)?),
            Kind::BoundedProjection(message) => {
                Arc::new(BoundedProjectionExec::from_wire(message, input()?, exprs)?)
            }
            Kind::Write(message) => {
                Arc::new(WriteExec::from_wire(&message, input()?, exprs, exprs)?)
            }
            Kind::Commit(message) => {
                Arc::new(CommitExec::from_wire(&message, input()?, exprs, exprs)?)
            }
            Kind::Field(_) => return exec_err!("an expression stands where an operator should"),
        })
    }
}

/// Whatever of a plan is ours.
#[derive(Clone, PartialEq, Message)]
struct Node {
    /// [`ForebayPhysicalCodec::FORMAT`] of the process that wrote it.
    #[prost(uint32, optional, tag = "1")]
    format: Option<u32>,
    #[prost(oneof = "Kind", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10")]
    kind: Option<Kind>,
}

/// What is read of a [`Node`] first: in another format the rest may mean something else.
#[derive(Clone, PartialEq, Message)]
struct Format {
    #[prost(uint32, optional, tag = "1")]
    format: Option<u32>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "2")]
    Exchange(Exchange),
    #[prost(message, tag = "3")]
    RestoreOrder(RestoreOrder),
    #[prost(message, tag = "4")]
    Transform(Transform),
    #[prost(message, tag = "5")]
    Inference(Inference),
    #[prost(message, tag = "6")]
    ReadFiles(ReadFiles),
    #[prost(message, tag = "7")]
    BoundedProjection(BoundedProjection),
    /// No operator, but what a [`FieldExpr`] adds to the expression in it.
    #[prost(message, tag = "8")]
    Field(Field),
    #[prost(message, tag = "9")]
    Write(Write),
    #[prost(message, tag = "10")]
    Commit(Write),
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Exchange(_) => "StreamingExchangeExec",
            Self::RestoreOrder(_) => "RestoreOrderExec",
            Self::Transform(_) => "TransformExec",
            Self::Inference(_) => "InferenceExec",
            Self::ReadFiles(_) => "ReadFilesExec",
            Self::BoundedProjection(_) => "BoundedProjectionExec",
            Self::Field(_) => "FieldExpr",
            Self::Write(_) => "WriteExec",
            Self::Commit(_) => "CommitExec",
        }
    }

    fn write(self, buf: &mut Vec<u8>) {
        buf.extend(MAGIC);
        let format = Some(ForebayPhysicalCodec::FORMAT);
        buf.extend(Node { format, kind: Some(self) }.encode_to_vec());
    }

    /// What `buf` holds; `None` if the bytes are not Forebay's.
    fn read(buf: &[u8]) -> Result<Option<Self>> {
        let Some(node) = buf.strip_prefix(MAGIC) else { return Ok(None) };
        let reads = ForebayPhysicalCodec::FORMAT;
        match Format::decode(node).map_err(|error| damaged(&error))?.format {
            Some(found) if found == reads => {}
            Some(found) => {
                return exec_err!(
                    "a plan of format {found} was sent to a forebay {} that reads format {reads}; \
                     run the same version of forebay in every process",
                    env!("CARGO_PKG_VERSION")
                );
            }
            None => return Err(damaged(&"it ends before its format")),
        }
        let node = Node::decode(node).map_err(|error| damaged(&error))?;
        node.kind.map(Some).ok_or_else(|| damaged(&"it ends before its operator"))
    }
}

fn damaged(problem: &dyn fmt::Display) -> DataFusionError {
    exec_datafusion_err!(
        "a plan of forebay is damaged, or of another version: {problem} (expected format {})",
        ForebayPhysicalCodec::FORMAT
    )
}

/// Expressions and sinks by DataFusion's messages, converted as the caller wants it.
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

impl SinkCodec for Exprs<'_> {
    fn encode_sink(&self, sink: Arc<dyn DataSink>) -> Result<Vec<u8>> {
        let nothing = Arc::new(EmptyExec::new(Arc::clone(sink.schema())));
        let plan: Arc<dyn ExecutionPlan> = Arc::new(DataSinkExec::new(nothing, sink, None));
        Ok(self.converter.execution_plan_to_proto(&plan, self.codec)?.encode_to_vec())
    }

    fn decode_sink(&self, bytes: &[u8]) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(context) = self.context else {
            return not_impl_err!("sinks are decoded with a task context");
        };
        let node = PhysicalPlanNode::decode(bytes)
            .map_err(|error| damaged(&format!("a sink: {error}")))?;
        let context = PhysicalPlanDecodeContext::new(context, self.codec);
        self.converter.proto_to_execution_plan(&node, &context)
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
        let Some(kind) = Kind::read(buf)? else {
            return self.inner.try_decode(buf, inputs, context, converter);
        };
        let exprs = Exprs { codec: self, converter, context: Some(context) };
        let name = kind.name();
        let operator = self.operator(kind, inputs, &exprs);
        operator.map_err(|error| error.context(format!("{name} cannot be decoded")))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let exprs = Exprs { codec: self, converter, context: None };
        let kind = if let Some(exchange) = node.downcast_ref::<StreamingExchangeExec>() {
            Kind::Exchange(exchange.to_wire(&exprs)?)
        } else if let Some(restore) = node.downcast_ref::<RestoreOrderExec>() {
            Kind::RestoreOrder(restore.to_wire())
        } else if let Some(transform) = node.downcast_ref::<TransformExec>() {
            Kind::Transform(transform.to_wire(&exprs)?)
        } else if let Some(inference) = node.downcast_ref::<InferenceExec>() {
            Kind::Inference(inference.to_wire()?)
        } else if let Some(files) = node.downcast_ref::<ReadFilesExec>() {
            Kind::ReadFiles(files.to_wire())
        } else if let Some(projection) = node.downcast_ref::<BoundedProjectionExec>() {
            Kind::BoundedProjection(projection.to_wire(&exprs)?)
        } else if let Some(write) = node.downcast_ref::<WriteExec>() {
            Kind::Write(write.to_wire(&exprs, &exprs)?)
        } else if let Some(commit) = node.downcast_ref::<CommitExec>() {
            Kind::Commit(commit.to_wire(&exprs, &exprs)?)
        } else if node.is::<NotedExec>() {
            return not_impl_err!(
                "NotedExec stays where the query was asked; send the plan below it"
            );
        } else {
            return self.inner.try_encode(node, buf, converter);
        };
        kind.write(buf);
        Ok(())
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        if buf != MAGIC {
            return self.inner.try_decode_udf(name, buf);
        }
        let function = self.functions().find(|function| function.name() == name);
        function
            .ok_or_else(|| damaged(&format!("it calls {name}, which is not a function of Forebay")))
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
        match Kind::read(buf)? {
            Some(Kind::Field(field)) => Ok(Arc::new(FieldExpr::from_wire(&field, inputs)?)),
            Some(kind) => exec_err!("a {} stands where an expression should", kind.name()),
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
        Kind::Field(expr.to_wire()?).write(buf);
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
    use datafusion_proto::physical_plan::DefaultPhysicalProtoConverter;
    use proptest::prelude::*;

    use super::*;

    fn decode(bytes: &[u8]) -> Result<Arc<dyn ExecutionPlan>> {
        let (codec, context) = (ForebayPhysicalCodec::default(), TaskContext::default());
        let input: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
        codec.try_decode(bytes, &[input], &context, &DefaultPhysicalProtoConverter {})
    }

    /// A node of which the field `tag` has these bytes.
    fn node(tag: u8, message: &[u8]) -> Vec<u8> {
        let format = Node { format: Some(ForebayPhysicalCodec::FORMAT), kind: None };
        [MAGIC, &format.encode_to_vec(), &field(tag, message)].concat()
    }

    /// A field that begins with its length.
    fn field(tag: u8, message: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag << 3 | 2];
        prost::encoding::encode_varint(message.len() as u64, &mut bytes);
        [bytes.as_slice(), message].concat()
    }

    proptest! {
        /// Nobody sends these: the frame is right, and the message is anything.
        #[test]
        fn a_message_that_makes_no_sense_is_an_error_and_no_panic(
            tag in 2u8..12,
            message in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let error = decode(&node(tag, &message)).unwrap_err().to_string();
            let refused = error.contains("damaged, or of another version")
                || error.contains("cannot be decoded");
            prop_assert!(refused, "{error}");
        }
    }

    #[test]
    fn a_message_of_any_depth_is_an_error_and_no_overflow() {
        let within_itself =
            |wrap: fn(&[u8]) -> Vec<u8>| (0..5000).fold(vec![], |inner, _| wrap(&inner));
        // The argument of a transform: NOT NOT NOT …; and a field that is a child of a child.
        let not = field(2, &within_itself(|inner| field(7, &field(1, inner))));
        let child = within_itself(|inner| field(4, inner));
        for (tag, message) in [(4, not), (8, child)] {
            let error = decode(&node(tag, &message)).unwrap_err().to_string();
            assert!(error.contains("recursion limit reached"), "{error}");
        }
    }
}
