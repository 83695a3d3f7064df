//! An expression with the field of its result.
//!
//! DataFusion's messages carry the type of a function's result and not what its field says beyond
//! that: a tensor would lose its shape on the way to another process. So a function whose field says
//! more is wrapped, and the wrapper's message has the field.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, exec_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion_proto::protobuf;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct FieldExpr {
    inner: Arc<dyn PhysicalExpr>,
    field: FieldRef,
}

impl FieldExpr {
    /// What it adds to the message of the inner expression.
    pub(crate) fn to_wire(&self) -> Result<protobuf::Field> {
        Ok(protobuf::Field::try_from(self.field.as_ref())?)
    }

    /// From its message and the inner expression.
    pub(crate) fn from_wire(
        field: &protobuf::Field,
        inputs: &[Arc<dyn PhysicalExpr>],
    ) -> Result<Self> {
        let [inner] = inputs else {
            return exec_err!("FieldExpr takes one expression, found {}", inputs.len());
        };
        let field = Arc::new(Field::try_from(field)?);
        Ok(Self { inner: Arc::clone(inner), field })
    }
}

impl fmt::Display for FieldExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PartialEq for FieldExpr {
    fn eq(&self, other: &Self) -> bool {
        self.inner.eq(&other.inner) && self.field == other.field
    }
}

impl Eq for FieldExpr {}

impl Hash for FieldExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
        self.field.hash(state);
    }
}

impl PhysicalExpr for FieldExpr {
    fn return_field(&self, _schema: &Schema) -> Result<FieldRef> {
        Ok(Arc::clone(&self.field))
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.inner.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        match <[_; 1]>::try_from(children) {
            Ok([inner]) => Ok(Arc::new(Self { inner, field: Arc::clone(&self.field) })),
            Err(children) => exec_err!("FieldExpr takes one expression, found {}", children.len()),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}

/// Wraps what projections compute, before other rules move it to where it runs.
#[derive(Debug)]
pub struct KeepFields;

impl PhysicalOptimizerRule for KeepFields {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        keep(plan)
    }

    fn name(&self) -> &str {
        "keep_fields"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn keep(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let children = plan.children().into_iter().cloned().map(keep).collect::<Result<Vec<_>>>()?;
    let plan =
        if children.is_empty() { plan } else { replace_children_if_necessary(plan, children)? };
    let Some(projection) = plan.downcast_ref::<ProjectionExec>() else { return Ok(plan) };
    let input = projection.input();
    let schema = input.schema();
    let mut is_changed = false;
    let exprs = projection.expr().iter().map(|projected| {
        let kept = Arc::clone(&projected.expr).transform_up(|expr| with_field(expr, &schema))?;
        is_changed |= kept.transformed;
        Ok(ProjectionExpr { expr: kept.data, alias: projected.alias.clone() })
    });
    let exprs = exprs.collect::<Result<Vec<_>>>()?;
    if is_changed {
        Ok(Arc::new(ProjectionExec::try_new(exprs, Arc::clone(input))?))
    } else {
        Ok(plan)
    }
}

fn with_field(
    inner: Arc<dyn PhysicalExpr>,
    schema: &Schema,
) -> Result<Transformed<Arc<dyn PhysicalExpr>>> {
    if !(inner.is::<ScalarFunctionExpr>() || inner.is::<Literal>()) {
        return Ok(Transformed::no(inner));
    }
    let field = inner.return_field(schema)?;
    Ok(if field.metadata().is_empty() {
        Transformed::no(inner)
    } else {
        Transformed::yes(Arc::new(FieldExpr { inner, field }))
    })
}
