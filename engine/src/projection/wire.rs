//! The wire form of a bounded projection: its expressions and their names.

use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use prost::Message;

use super::exec::BoundedProjectionExec;
use crate::wire::ExprCodec;

/// A [`BoundedProjectionExec`] without its input.
#[derive(Clone, PartialEq, Message)]
pub struct BoundedProjection {
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
    /// All but the input.
    ///
    /// # Errors
    /// If an expression has no wire form.
    pub fn to_wire(&self, exprs: &dyn ExprCodec) -> Result<BoundedProjection> {
        let named = |ProjectionExpr { expr, alias }: &ProjectionExpr| {
            Ok(Named { expr: exprs.encode(expr)?, name: alias.clone() })
        };
        let exprs = self.projection().expr().iter().map(named).collect::<Result<_>>()?;
        Ok(BoundedProjection { exprs })
    }

    /// The operator of a message, over `input`.
    ///
    /// # Errors
    /// If there is no expression, or one does not fit the input.
    pub fn from_wire(
        message: BoundedProjection,
        input: Arc<dyn ExecutionPlan>,
        exprs: &dyn ExprCodec,
    ) -> Result<Self> {
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
