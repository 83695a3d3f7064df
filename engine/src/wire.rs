//! What the wire forms of the operators share.
//!
//! Each operator has its message in the `wire.rs` beside it and the two functions `to_wire` and
//! `from_wire`; an operator's input travels outside of its message. The planner's codec has one
//! message around all of them and plugs it into DataFusion. Here nobody knows DataFusion's own
//! messages, so physical expressions go through an [`ExprCodec`] and are bytes.

use std::sync::Arc;
use std::time::Duration;

use arrow::compute::SortOptions;
use arrow::datatypes::Schema;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use forebay_udf::model::ModelDeclaration;

/// DataFusion's part of a wire form: physical expressions as bytes, and back.
pub trait ExprCodec {
    /// An expression as bytes.
    ///
    /// # Errors
    /// If the expression has no wire form.
    fn encode(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Vec<u8>>;

    /// The expression of these bytes, over columns of `schema`.
    ///
    /// # Errors
    /// If the bytes are none, or name a function that is not known here.
    fn decode(&self, bytes: &[u8], schema: &Schema) -> Result<Arc<dyn PhysicalExpr>>;
}

/// A time, exact.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Time {
    #[prost(uint64, tag = "1")]
    seconds: u64,
    #[prost(uint32, tag = "2")]
    nanos: u32,
}

impl From<Duration> for Time {
    fn from(time: Duration) -> Self {
        Self { seconds: time.as_secs(), nanos: time.subsec_nanos() }
    }
}

impl TryFrom<Time> for Duration {
    type Error = datafusion::common::DataFusionError;

    fn try_from(Time { seconds, nanos }: Time) -> Result<Self> {
        if nanos >= 1_000_000_000 {
            return exec_err!("a time has {nanos} ns beside its seconds, more than a second");
        }
        Ok(Self::new(seconds, nanos))
    }
}

/// One key of an order.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SortKey {
    #[prost(bytes = "vec", tag = "1")]
    expr: Vec<u8>,
    #[prost(bool, tag = "2")]
    descending: bool,
    #[prost(bool, tag = "3")]
    nulls_first: bool,
}

/// An order as its keys; none for no order.
pub(crate) fn sort_keys(
    ordering: Option<&LexOrdering>,
    exprs: &dyn ExprCodec,
) -> Result<Vec<SortKey>> {
    let key = |PhysicalSortExpr { expr, options }: &PhysicalSortExpr| {
        let SortOptions { descending, nulls_first } = *options;
        Ok(SortKey { expr: exprs.encode(expr)?, descending, nulls_first })
    };
    ordering.into_iter().flatten().map(key).collect()
}

/// The order of these keys.
pub(crate) fn ordering(
    keys: &[SortKey],
    schema: &Schema,
    exprs: &dyn ExprCodec,
) -> Result<Option<LexOrdering>> {
    let key = |SortKey { expr, descending, nulls_first }: &SortKey| {
        let options = SortOptions { descending: *descending, nulls_first: *nulls_first };
        Ok(PhysicalSortExpr::new(exprs.decode(expr, schema)?, options))
    };
    Ok(LexOrdering::new(keys.iter().map(key).collect::<Result<Vec<_>>>()?))
}

/// The declaration in an operator's message.
pub(crate) fn model(text: &str) -> Result<Arc<ModelDeclaration>> {
    Ok(Arc::new(ModelDeclaration::from_text(text)?))
}

/// A column's position.
pub(crate) fn position(at: u64) -> Result<usize> {
    usize::try_from(at).map_err(|_| exec_datafusion_err!("there is no column {at}"))
}
