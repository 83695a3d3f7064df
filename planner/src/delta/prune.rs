//! The files that a query has to read: by the values of partition columns, and by what the log knows of
//! the rows.

use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::pruning::PrunableStatistics;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::datasource::listing::helpers::expr_applicable_for_cols;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::conjunction;
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use forebay_engine::delta::TableFile;

/// Whether a condition is on partition columns alone, so that no file has to be read for it.
pub(super) fn is_of_folders(filter: &Expr, partitioned_by: &[String]) -> bool {
    let names: Vec<&str> = partitioned_by.iter().map(String::as_str).collect();
    !filter.column_refs().is_empty() && expr_applicable_for_cols(&names, filter) && !asks(filter)
}

/// Whether a condition has a query in it, whose result is not known when files are chosen.
fn asks(filter: &Expr) -> bool {
    let is_query = |expr: &Expr| {
        Ok(matches!(
            expr,
            Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
        ))
    };
    filter.exists(is_query).unwrap_or(true)
}

/// The files that may have rows for which all `filters` hold. `schema` has the columns of the files, and the
/// partition columns behind them.
pub(super) fn pruned(
    files: Vec<TableFile>,
    filters: &[Expr],
    schema: &SchemaRef,
    partitions: &[FieldRef],
    session: &dyn Session,
) -> Result<Vec<TableFile>> {
    let names: Vec<String> = partitions.iter().map(|field| field.name().clone()).collect();
    let (of_folders, of_rows): (Vec<Expr>, Vec<Expr>) =
        filters.iter().cloned().partition(|filter| is_of_folders(filter, &names));
    let of_rows = of_rows.into_iter().filter(|filter| !asks(filter));
    let files = match conjunction(of_folders) {
        Some(filter) => in_folders(files, filter, partitions, session)?,
        None => files,
    };
    match conjunction(of_rows) {
        Some(filter) => within_bounds(files, filter, schema, session),
        None => Ok(files),
    }
}

/// For exactly these the condition holds.
fn in_folders(
    files: Vec<TableFile>,
    filter: Expr,
    partitions: &[FieldRef],
    session: &dyn Session,
) -> Result<Vec<TableFile>> {
    if files.is_empty() {
        return Ok(files);
    }
    let schema = Arc::new(Schema::new(partitions.to_vec()));
    let column =
        |at: usize| ScalarValue::iter_to_array(files.iter().map(|file| file.values()[at].clone()));
    let columns = (0..partitions.len()).map(column).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(files.len()));
    let values = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?;
    let filter = session.create_physical_expr(filter, &DFSchema::try_from(schema)?)?;
    let holds = filter.evaluate(&values)?.into_array(files.len())?;
    let holds: &BooleanArray = holds.as_boolean();
    Ok(kept(files, holds.iter().map(|holds| holds == Some(true))))
}

/// For all others it cannot hold.
fn within_bounds(
    files: Vec<TableFile>,
    filter: Expr,
    schema: &SchemaRef,
    session: &dyn Session,
) -> Result<Vec<TableFile>> {
    let columns = DFSchema::try_from(Arc::clone(schema))?;
    let filter = session.create_physical_expr(filter, &columns)?;
    // What says nothing of bounds leaves no file out.
    let predicate = PruningPredicateBuilder::new().with_file_schema(Arc::clone(schema));
    let Ok(predicate) = predicate.try_build(filter) else {
        return Ok(files);
    };
    let bounds = files.iter().map(|file| Arc::clone(file.bounds())).collect();
    let may_hold = predicate.prune(&PrunableStatistics::new(bounds, Arc::clone(schema)))?;
    Ok(kept(files, may_hold.into_iter()))
}

fn kept(files: Vec<TableFile>, keep: impl Iterator<Item = bool>) -> Vec<TableFile> {
    files.into_iter().zip(keep).filter(|(_, keep)| *keep).map(|(file, _)| file).collect()
}
