//! `DESCRIBE t` where columns are tensors: their types with their shapes, of which DataFusion's own
//! answer knows nothing.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::common::Result;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::logical_expr::{DescribeTable, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use forebay_udf::feature::tensor_type_name;

/// The answer, or `None` for other statements and tables without tensors.
pub(super) fn tensors(plan: &LogicalPlan) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let LogicalPlan::DescribeTable(DescribeTable { schema, output_schema }) = plan else {
        return Ok(None);
    };
    if schema.fields().iter().all(|field| tensor_type_name(field).is_none()) {
        return Ok(None);
    }
    let column = |text: fn(&arrow::datatypes::Field) -> String| -> ArrayRef {
        Arc::new(schema.fields().iter().map(|f| Some(text(f))).collect::<StringArray>())
    };
    let columns = vec![
        column(|field| field.name().clone()),
        column(|field| tensor_type_name(field).unwrap_or_else(|| field.data_type().to_string())),
        column(|field| if field.is_nullable() { "YES" } else { "NO" }.to_owned()),
    ];
    let output = Arc::clone(output_schema.inner());
    let rows = RecordBatch::try_new(Arc::clone(&output), columns)?;
    Ok(Some(MemorySourceConfig::try_new_exec(&[vec![rows]], output, None)?))
}
