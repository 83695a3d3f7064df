//! Expressions as steps, each of which computes one function.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNode;
use datafusion::logical_expr::{ExpressionPlacement, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, Column, LikeExpr};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{HigherOrderFunctionExpr, PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::projection::ProjectionExpr;

use crate::weight;

/// What a projection computes, in order: first what functions are applied to, then the results.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    /// One more column each, over the input's columns and those of the steps before.
    inner: Vec<Step>,
    results: Vec<Arc<dyn PhysicalExpr>>,
}

#[derive(Clone, Debug)]
struct Step {
    expr: Arc<dyn PhysicalExpr>,
    /// Of the new column.
    field: FieldRef,
}

impl Steps {
    /// # Errors
    /// If an expression does not fit the schema.
    pub(super) fn of(exprs: &[ProjectionExpr], input: SchemaRef) -> Result<Self> {
        let exprs = exprs.iter().map(|projected| &projected.expr);
        // The body of a lambda finds its arguments behind the input's columns.
        if exprs.clone().any(|expr| has(expr, |expr| expr.is::<HigherOrderFunctionExpr>())) {
            return Ok(Self { inner: vec![], results: exprs.cloned().collect() });
        }
        let mut builder = Builder { inner: vec![], schema: input };
        let results = exprs.map(|expr| builder.lower_operands(expr)).collect::<Result<_>>()?;
        Ok(Self { inner: builder.inner, results })
    }

    /// The results, and the bytes of all that was computed.
    pub(super) fn compute(&self, mut batch: RecordBatch) -> Result<(Vec<ArrayRef>, usize)> {
        let rows = batch.num_rows();
        let mut bytes = 0;
        for Step { expr, field } in &self.inner {
            let column = expr.evaluate(&batch)?.into_array(rows)?;
            bytes += weight::array_bytes(&column);
            batch = with_column(&batch, field, column)?;
        }
        let mut results = Vec::with_capacity(self.results.len());
        for expr in &self.results {
            let column = expr.evaluate(&batch)?.into_array(rows)?;
            let is_there = batch.columns().iter().any(|there| Arc::ptr_eq(there, &column));
            bytes += if is_there { 0 } else { weight::array_bytes(&column) };
            results.push(column);
        }
        Ok((results, bytes))
    }
}

/// One more column. Nobody else checks what lies between two functions, so a function that is not
/// exact about the names inside its type works here as it does elsewhere.
fn with_column(batch: &RecordBatch, field: &FieldRef, column: ArrayRef) -> Result<RecordBatch> {
    let field = if field.data_type() == column.data_type() {
        Arc::clone(field)
    } else {
        Arc::new(field.as_ref().clone().with_data_type(column.data_type().clone()))
    };
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let schema = Arc::new(wider(&batch.schema(), field));
    let columns = batch.columns().iter().cloned().chain([column]).collect();
    Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
}

fn wider(schema: &Schema, field: FieldRef) -> Schema {
    let fields: Vec<_> = schema.fields().iter().cloned().chain([field]).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

struct Builder {
    inner: Vec<Step>,
    schema: SchemaRef,
}

impl Builder {
    /// The expression over columns of steps, where its operands may grow.
    fn lower_operands(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        if !evaluates_operands(expr) {
            return Ok(Arc::clone(expr));
        }
        let operands = expr.children().into_iter().map(|operand| {
            let lowered = self.lower_operands(operand)?;
            if grows(&lowered) { self.step(lowered) } else { Ok(lowered) }
        });
        let operands = operands.collect::<Result<Vec<_>>>()?;
        if operands.is_empty() {
            Ok(Arc::clone(expr))
        } else {
            Arc::clone(expr).with_new_children(operands)
        }
    }

    fn step(&mut self, expr: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let at = self.schema.fields().len();
        let field = expr.return_field(&self.schema)?.as_ref().clone().with_nullable(true);
        let column = Column::new(field.name(), at);
        let field = Arc::new(field);
        self.schema = Arc::new(wider(&self.schema, Arc::clone(&field)));
        self.inner.push(Step { expr, field });
        Ok(Arc::new(column))
    }
}

/// Whether all operands are computed for all rows, so that they may be computed before. Not so the
/// branches of a CASE, the right side of an AND, or the body of a lambda.
fn evaluates_operands(expr: &Arc<dyn PhysicalExpr>) -> bool {
    if let Some(function) = expr.downcast_ref::<ScalarFunctionExpr>() {
        return !function.fun().short_circuits();
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return !matches!(binary.op(), Operator::And | Operator::Or);
    }
    // What takes one operand, like a cast, has no choice.
    expr.is::<LikeExpr>() || expr.children().len() == 1
}

/// Whether it is a function of the row's columns with a result of any size.
fn grows(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let Some(function) = expr.downcast_ref::<ScalarFunctionExpr>() else { return false };
    has_any_size(function.return_type())
        && expr.placement() != ExpressionPlacement::MoveTowardsLeafNodes
        && !collect_columns(expr).is_empty()
}

/// Whether a projection has a function whose results may be large.
pub(super) fn is_worthwhile(exprs: &[ProjectionExpr]) -> bool {
    let any = |is: fn(&Arc<dyn PhysicalExpr>) -> bool| {
        exprs.iter().any(|projected| has(&projected.expr, is))
    };
    // The message of an operator that is not DataFusion's cannot hold a subquery's result.
    any(grows) && !any(|expr| expr.is::<ScalarSubqueryExpr>())
}

/// Whether the expression, or one within, is such a one.
fn has(expr: &Arc<dyn PhysicalExpr>, is: impl Fn(&Arc<dyn PhysicalExpr>) -> bool) -> bool {
    let found = expr.exists(|expr| Ok(is(expr)));
    found.is_ok_and(|found| found)
}

fn has_any_size(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::List(_)
        | DataType::LargeList(_)
        | DataType::ListView(_)
        | DataType::LargeListView(_)
        | DataType::FixedSizeList(..)
        | DataType::Map(..) => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_any_size(field.data_type())),
        _ => false,
    }
}
