//! The wire form of a bounded projection: its expressions and their names.

use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use prost::Message;

use super::exec::BoundedProjectionExec;
use crate::wire::{self, ExprCodec};

#[derive(Clone, PartialEq, Message)]
struct Projection {
    #[prost(message, repeated, tag = "1")]
    exprs: Vec<Named>,
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(bytes = "vec", tag = "1")]
    expr: Vec<u8>,
    #[prost(string, tag = "2")]
    name: String,
}

impl BoundedProjectionExec {
    /// The operator's message.
    ///
    /// # Errors
    /// If an expression has no wire form.
    pub fn to_wire(&self, exprs: &dyn ExprCodec) -> Result<Vec<u8>> {
        let named = |ProjectionExpr { expr, alias }: &ProjectionExpr| {
            Ok(Named { expr: exprs.encode(expr)?, name: alias.clone() })
        };
        let message = Projection {
            exprs: self.projection().expr().iter().map(named).collect::<Result<_>>()?,
        };
        Ok(message.encode_to_vec())
    }

    /// The operator of a message, over `input`.
    ///
    /// # Errors
    /// If the bytes are none, or an expression does not fit the input.
    pub fn from_wire(
        bytes: &[u8],
        input: Arc<dyn ExecutionPlan>,
        exprs: &dyn ExprCodec,
    ) -> Result<Self> {
        let message: Projection = wire::decode(bytes)?;
        let schema = input.schema();
        let projected = |Named { expr, name }: Named| {
            Ok(ProjectionExpr { expr: exprs.decode(&expr, &schema)?, alias: name })
        };
        if message.exprs.is_empty() {
            return exec_err!("it has no expression");
        }
        let projected: Vec<_> = message.exprs.into_iter().map(projected).collect::<Result<_>>()?;
        Self::try_new(Arc::new(ProjectionExec::try_new(projected, input)?))
    }
}
