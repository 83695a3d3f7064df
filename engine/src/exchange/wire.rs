//! The wire form of the exchange and of the operator that restores its order.

use std::sync::Arc;

use datafusion::common::{Result, exec_datafusion_err};
use datafusion::physical_plan::ExecutionPlan;
use forebay_udf::model::BatchLimits;
use prost::Message;

use super::exec::{ExchangeOptions, StreamingExchangeExec};
use super::restore::RestoreOrderExec;
use super::window::Sharing;
use crate::wire::{self, ExprCodec, SortKey, Time};

/// A [`StreamingExchangeExec`] without its input.
#[derive(Clone, PartialEq, Message)]
pub struct Exchange {
    #[prost(uint64, tag = "1")]
    replicas: u64,
    #[prost(uint64, tag = "2")]
    byte_budget: u64,
    #[prost(message, optional, tag = "3")]
    batch: Option<Batch>,
    #[prost(bool, tag = "4")]
    ordered: bool,
    #[prost(bool, tag = "5")]
    share_equal_inputs: bool,
    #[prost(message, optional, tag = "6")]
    no_progress_limit: Option<Time>,
    #[prost(message, repeated, tag = "7")]
    ordering: Vec<SortKey>,
    #[prost(uint64, tag = "8")]
    byte_budget_max: u64,
}

/// A [`RestoreOrderExec`] without its input. It has nothing else: the exchange is found below.
#[derive(Clone, PartialEq, Message)]
pub struct RestoreOrder {}

#[derive(Clone, PartialEq, Message)]
struct Batch {
    #[prost(uint32, tag = "1")]
    max_rows: u32,
    #[prost(uint32, optional, tag = "2")]
    max_tokens: Option<u32>,
    #[prost(uint64, optional, tag = "3")]
    max_bytes: Option<u64>,
    #[prost(uint32, tag = "4")]
    window_rows: u32,
}

impl From<BatchLimits> for Batch {
    fn from(BatchLimits { max_rows, max_tokens, max_bytes, window_rows }: BatchLimits) -> Self {
        Self { max_rows, max_tokens, max_bytes, window_rows }
    }
}

impl From<Batch> for BatchLimits {
    fn from(Batch { max_rows, max_tokens, max_bytes, window_rows }: Batch) -> Self {
        Self { max_rows, max_tokens, max_bytes, window_rows }
    }
}

impl StreamingExchangeExec {
    /// All but the input.
    ///
    /// # Errors
    /// If the order that the exchange relies on has no wire form.
    pub fn to_wire(&self, exprs: &dyn ExprCodec) -> Result<Exchange> {
        let ExchangeOptions {
            replicas,
            byte_budget,
            byte_budget_max,
            batch,
            ordered,
            sharing,
            no_progress_limit,
        } = self.options().clone();
        Ok(Exchange {
            replicas: replicas as u64,
            byte_budget: byte_budget as u64,
            byte_budget_max: byte_budget_max as u64,
            batch: Some(batch.into()),
            ordered,
            share_equal_inputs: sharing == Sharing::EqualInputs,
            no_progress_limit: no_progress_limit.map(Time::from),
            ordering: wire::sort_keys(self.ordering(), exprs)?,
        })
    }

    /// The exchange of a message, above `input`.
    ///
    /// # Errors
    /// If the message lacks something, or such an exchange cannot stand above `input`.
    pub fn from_wire(
        message: Exchange,
        input: Arc<dyn ExecutionPlan>,
        exprs: &dyn ExprCodec,
    ) -> Result<Self> {
        let count = |number: u64, name: &str| {
            usize::try_from(number)
                .map_err(|_| exec_datafusion_err!("{name} = {number} is too much for this machine"))
        };
        let batch = message.batch.ok_or_else(|| exec_datafusion_err!("the limits are missing"))?;
        let options = ExchangeOptions {
            replicas: count(message.replicas, "replicas")?,
            byte_budget: count(message.byte_budget, "byte_budget")?,
            byte_budget_max: count(message.byte_budget_max, "byte_budget_max")?,
            batch: batch.into(),
            ordered: message.ordered,
            sharing: if message.share_equal_inputs { Sharing::EqualInputs } else { Sharing::None },
            no_progress_limit: message.no_progress_limit.map(TryInto::try_into).transpose()?,
        };
        let ordering = wire::ordering(&message.ordering, &input.schema(), exprs)?;
        // The order that was relied on when the exchange was planned, not what can be seen below
        // it now: across a cut between two machines an input shows less.
        Ok(Self::try_new(input, options)?.with_ordering(ordering))
    }
}

impl RestoreOrderExec {
    /// All but the input, which is all that there is.
    pub fn to_wire(&self) -> RestoreOrder {
        RestoreOrder {}
    }

    /// The operator above `input`.
    ///
    /// # Errors
    /// If `input` carries no positions.
    pub fn from_wire(RestoreOrder {}: RestoreOrder, input: Arc<dyn ExecutionPlan>) -> Result<Self> {
        Self::try_new(input)
    }
}
