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

#[derive(Clone, PartialEq, Message)]
struct Exchange {
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
}

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
    /// All but the input, as bytes.
    ///
    /// # Errors
    /// If the order that the exchange relies on has no wire form.
    pub fn to_wire(&self, exprs: &dyn ExprCodec) -> Result<Vec<u8>> {
        let ExchangeOptions { replicas, byte_budget, batch, ordered, sharing, no_progress_limit } =
            self.options().clone();
        let message = Exchange {
            replicas: replicas as u64,
            byte_budget: byte_budget as u64,
            batch: Some(batch.into()),
            ordered,
            share_equal_inputs: sharing == Sharing::EqualInputs,
            no_progress_limit: no_progress_limit.map(Time::from),
            ordering: wire::sort_keys(self.ordering(), exprs)?,
        };
        Ok(message.encode_to_vec())
    }

    /// The exchange of these bytes above `input`.
    ///
    /// # Errors
    /// If the bytes are not an exchange's, or one of this kind cannot stand above `input`.
    pub fn from_wire(
        bytes: &[u8],
        input: Arc<dyn ExecutionPlan>,
        exprs: &dyn ExprCodec,
    ) -> Result<Self> {
        let message: Exchange = wire::decode(bytes)?;
        let count = |number: u64, name: &str| {
            usize::try_from(number)
                .map_err(|_| exec_datafusion_err!("{name} = {number} is too much for this machine"))
        };
        let batch = message.batch.ok_or_else(|| exec_datafusion_err!("the limits are missing"))?;
        let options = ExchangeOptions {
            replicas: count(message.replicas, "replicas")?,
            byte_budget: count(message.byte_budget, "byte_budget")?,
            batch: batch.into(),
            ordered: message.ordered,
            sharing: match message.share_equal_inputs {
                true => Sharing::EqualInputs,
                false => Sharing::None,
            },
            no_progress_limit: message.no_progress_limit.map(TryInto::try_into).transpose()?,
        };
        let ordering = wire::ordering(&message.ordering, &input.schema(), exprs)?;
        // The order that was relied on when the exchange was planned, not what can be seen below
        // it now: across a cut between two machines an input shows less.
        Ok(Self::try_new(input, options)?.with_ordering(ordering))
    }
}

impl RestoreOrderExec {
    /// All but the input, as bytes: nothing, since the exchange is found below.
    pub fn to_wire(&self) -> Vec<u8> {
        Vec::new()
    }

    /// The operator above `input`.
    ///
    /// # Errors
    /// If `input` carries no positions, or there are bytes.
    pub fn from_wire(bytes: &[u8], input: Arc<dyn ExecutionPlan>) -> Result<Self> {
        match bytes.len() {
            0 => Self::try_new(input),
            found => Err(exec_datafusion_err!("expected no bytes, found {found}")),
        }
    }
}
