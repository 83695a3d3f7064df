//! The files of a version of a table, as the log knows them.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, DataFusionError, Result, ScalarValue, Statistics};
use datafusion::datasource::listing::PartitionedFile;
use deltalake::kernel::{EagerSnapshot, LogicalFileView};
use object_store::ObjectMeta;
use object_store::path::Path;

use super::error::{DeltaError, explained};

/// Decimals of more digits are noted as floating-point numbers by some writers, which are no bounds.
const EXACT_DIGITS: u8 = 15;

/// A file of a table.
#[derive(Clone, Debug)]
pub struct TableFile {
    meta: ObjectMeta,
    values: Vec<ScalarValue>,
    statistics: Arc<Statistics>,
}

/// The only value of each column of this name.
type Values = HashMap<String, ArrayRef>;

impl TableFile {
    /// The values of the columns that name its folder.
    pub fn values(&self) -> &[ScalarValue] {
        &self.values
    }

    /// What is known of its rows, columns of the file first and those that name folders then. Values lie
    /// within the bounds, which are noted as exact: only so DataFusion prunes by them. They need not be
    /// values that there are.
    pub fn bounds(&self) -> &Arc<Statistics> {
        &self.statistics
    }

    /// What a scan reads; only the number of its rows is noted as exact.
    pub fn into_partitioned(self) -> PartitionedFile {
        let known = Arc::unwrap_or_clone(self.statistics);
        let statistics = Statistics { num_rows: known.num_rows, ..known.to_inexact() };
        let mut file = PartitionedFile::from(self.meta).with_partition_values(self.values);
        file.statistics = Some(statistics.into());
        file
    }
}

/// All of them, oldest first.
///
/// # Errors
/// If rows are hidden by a deletion vector, or a file lies outside of the table's folder.
pub(super) fn read(
    snapshot: &EagerSnapshot,
    table: &str,
    folder: &Path,
    columns: &SchemaRef,
    partitions: &[FieldRef],
) -> Result<Vec<TableFile>> {
    let log = snapshot.try_log_data().map_err(|error| explained(table, error))?;
    let mut files = Vec::with_capacity(log.num_files());
    let mut hidden = 0;
    for view in log.iter() {
        if view.deletion_vector_descriptor().is_some() {
            hidden += 1;
            continue;
        }
        files.push(file(&view, table, folder, columns, partitions)?);
    }
    if hidden > 0 {
        let problem = format!(
            "rows of {hidden} of its files are deleted by deletion vectors, which this version of forebay does \
             not follow; purge them (REORG TABLE … APPLY (PURGE)), and turn delta.enableDeletionVectors off"
        );
        return Err(
            DeltaError::Unsupported { table: table.to_owned(), access: "read", problem }.into()
        );
    }
    files.sort_by(|a, b| by_age(&a.meta, &b.meta));
    Ok(files)
}

fn by_age(a: &ObjectMeta, b: &ObjectMeta) -> Ordering {
    (a.last_modified, &a.location).cmp(&(b.last_modified, &b.location))
}

fn file(
    view: &LogicalFileView,
    table: &str,
    folder: &Path,
    columns: &SchemaRef,
    partitions: &[FieldRef],
) -> Result<TableFile> {
    let broken = |problem: String| -> DataFusionError {
        DeltaError::Broken { table: table.to_owned(), problem }.into()
    };
    let path = view.path();
    let size = u64::try_from(view.size())
        .map_err(|_| broken(format!("'{path}' has {} bytes", view.size())))?;
    let last_modified = view.modification_datetime().unwrap_or_default();
    let meta = ObjectMeta {
        location: location(&path, table, folder)?,
        last_modified,
        size,
        e_tag: None,
        version: None,
    };
    let of_folder: Values = match view.partition_values() {
        Some(data) => (data.fields().iter().zip(data.values()))
            .filter_map(|(field, value)| Some((field.name().clone(), value.to_array(1).ok()?)))
            .collect(),
        None => Values::new(),
    };
    let named = view.partition_values_map();
    let value = |field: &FieldRef| match value(&of_folder, field.name(), field.data_type()) {
        Some(value) => Ok(value),
        // Named so in the log, and not understood: no NULL.
        None if named.get(field.name()).is_some_and(is_text) => Err(broken(format!(
            "'{path}' has no value of type {} for the partition column '{}'",
            field.data_type(),
            field.name()
        ))),
        None => Ok(ScalarValue::try_from(field.data_type())?),
    };
    let of_partitions: Vec<ScalarValue> = partitions.iter().map(value).collect::<Result<_>>()?;
    let statistics = Arc::new(statistics(view, size, columns, &of_partitions));
    Ok(TableFile { meta, values: of_partitions, statistics })
}

fn is_text(value: &Option<String>) -> bool {
    value.as_ref().is_some_and(|text| !text.is_empty())
}

/// # Errors
/// If the file is another table's: of a table that was cloned without its files.
fn location(path: &str, table: &str, folder: &Path) -> Result<Path> {
    let is_elsewhere = path.contains("://") || path.starts_with('/') || path.contains("..");
    if is_elsewhere {
        let problem = format!(
            "its file '{path}' lies outside of its folder, as in a shallow clone, which this version of forebay \
             does not follow; clone the table with its files"
        );
        return Err(
            DeltaError::Unsupported { table: table.to_owned(), access: "read", problem }.into()
        );
    }
    let name = Path::parse(path).unwrap_or_else(|_| Path::from(path));
    Ok(folder.parts().chain(name.parts()).collect())
}

fn statistics(
    view: &LogicalFileView,
    size: u64,
    columns: &SchemaRef,
    partitions: &[ScalarValue],
) -> Statistics {
    let rows = view.num_records().map_or(Precision::Absent, Precision::Exact);
    let min = columns_of(view.min_values().and_then(|values| values.to_array(1).ok()));
    let max = columns_of(view.max_values().and_then(|values| values.to_array(1).ok()));
    let nulls = columns_of(view.null_counts().and_then(|values| values.to_array(1).ok()));
    let of_column = |field: &FieldRef| {
        let known = ColumnStatistics::new_unknown().with_null_count(
            match value(&nulls, field.name(), &DataType::UInt64) {
                Some(ScalarValue::UInt64(Some(nulls))) => Precision::Exact(nulls as usize),
                _ => Precision::Absent,
            },
        );
        if !has_bounds(field.data_type()) {
            return known;
        }
        let bound = |of: &Values| match value(of, field.name(), field.data_type()) {
            Some(value) => Precision::Exact(value),
            None => Precision::Absent,
        };
        known.with_min_value(bound(&min)).with_max_value(bound(&max))
    };
    let of_partition = |value: &ScalarValue| {
        let known = ColumnStatistics::new_unknown();
        if value.is_null() {
            return known.with_null_count(rows);
        }
        let value = Precision::Exact(value.clone());
        known
            .with_null_count(Precision::Exact(0))
            .with_min_value(value.clone())
            .with_max_value(value)
    };
    Statistics {
        num_rows: rows,
        total_byte_size: Precision::Inexact(usize::try_from(size).unwrap_or(usize::MAX)),
        column_statistics: (columns.fields().iter().map(of_column))
            .chain(partitions.iter().map(of_partition))
            .collect(),
    }
}

/// The fields of a row.
fn columns_of(row: Option<ArrayRef>) -> Values {
    let Some(row) = row.as_ref().and_then(|row| row.as_struct_opt()) else { return Values::new() };
    let names = row.column_names().into_iter().map(str::to_owned);
    names.zip(row.columns().iter().cloned()).collect()
}

/// A value, as one of this type. Nothing of NULL.
fn value(values: &Values, name: &str, kind: &DataType) -> Option<ScalarValue> {
    let value = ScalarValue::try_from_array(values.get(name)?, 0).ok()?;
    if value.is_null() { None } else { value.cast_to(kind).ok() }
}

/// Whether what the log says of the values of a type are bounds.
fn has_bounds(kind: &DataType) -> bool {
    match kind {
        DataType::Decimal128(digits, _) => *digits <= EXACT_DIGITS,
        // NaN is above all others for DataFusion, and no bound notes it.
        DataType::Float32 | DataType::Float64 => false,
        kind => !kind.is_nested(),
    }
}
