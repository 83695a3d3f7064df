//! Which writes are part of the tasks that make their rows.
//!
//! Mostly a write has tasks of its own, which read blocks until they have the rows of a file: so files have
//! their size, however few rows each of the tasks below makes. Where these make files of about that size anyhow,
//! blocks are a detour: each row would be encoded, written and read once more. So a write is direct if
//!
//! - it is known, not estimated, how many rows there will be: those of a scan, of which nothing is left out. Of a
//!   filter, a join or an aggregate that is a guess, and a wrong one would make a small file of each task;
//! - a task has the rows of half a file at least, by what rows weigh at least: a column of texts whose lengths
//!   nobody has noted counts next to nothing. Partitions of a scan that are smaller are put together, up to a file;
//! - no core stays idle for that: put together they are still some tasks for each core, and there are no fewer of
//!   them than there would be tasks that write;
//! - rows are in no order, for which all tasks would have to be done first, and no model makes them: a task of a
//!   model has the rows of some batches.
//!
//! So there are at most three times as many files as bytes ask for: each of them is full, but for one per task.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::common::stats::Precision;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};
use forebay_engine::BoundedProjectionExec;
use forebay_engine::write::Target;

type Plan = Arc<dyn ExecutionPlan>;

/// Tasks for each core, where partitions are put together: with one the last of them would be waited for alone.
const TASKS_OF_CORE: u64 = 2;

/// The rows of a write as its tasks make them, if it is direct on a cluster of so many cores.
///
/// # Errors
/// Of statistics.
pub(super) fn direct(rows: &Plan, target: &Target, cores: usize) -> Result<Option<Plan>> {
    let Some(scan) = scan_below(rows).filter(|_| target.order().is_none()) else { return Ok(None) };
    let partitions = scan.properties().partitioning.partition_count() as u64;
    let Some(bytes) = bytes_at_least(rows)? else { return Ok(None) };
    let full = target.file_bytes().max(1);
    let tasks_max = bytes / full.div_ceil(2);
    if partitions <= tasks_max {
        let needs = (bytes / full).min(cores as u64);
        return Ok((partitions >= needs).then(|| Arc::clone(rows)));
    }
    let joined = (full / (bytes / partitions.max(1)).max(1)).max(1);
    let tasks = partitions.div_ceil(joined);
    if tasks > tasks_max || tasks < TASKS_OF_CORE * cores as u64 {
        return Ok(None);
    }
    joined_below(rows, joined as usize)
}

/// The scan whose rows pass one by one, all of them, and in partitions of the scan's own.
fn scan_below(plan: &Plan) -> Option<&DataSourceExec> {
    match plan.downcast_ref::<DataSourceExec>() {
        // A limit is of each partition.
        Some(scan) => Some(scan).filter(|scan| scan.fetch().is_none()),
        None => scan_below(passed(plan)?),
    }
}

/// What is below an operator that passes each row on. Dealing rows out in turn is left out when stages are cut.
fn passed(plan: &Plan) -> Option<&Plan> {
    let deals_out = plan
        .downcast_ref::<RepartitionExec>()
        .is_some_and(|deals| matches!(deals.partitioning(), Partitioning::RoundRobinBatch(_)));
    let passes = deals_out
        || plan.is::<ProjectionExec>()
        || plan.is::<BoundedProjectionExec>()
        || plan.is::<CooperativeExec>();
    match plan.children()[..] {
        [below] if passes && plan.fetch().is_none() => Some(below),
        _ => None,
    }
}

/// The same plan over a scan of which so many partitions are one.
fn joined_below(plan: &Plan, count: usize) -> Result<Option<Plan>> {
    if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
        return joined(scan, count);
    }
    let Some(below) = passed(plan) else { return Ok(None) };
    match joined_below(below, count)? {
        Some(below) => Ok(Some(replace_children_if_necessary(Arc::clone(plan), vec![below])?)),
        None => Ok(None),
    }
}

fn joined(scan: &DataSourceExec, count: usize) -> Result<Option<Plan>> {
    let source = scan.data_source();
    if let Some(files) = source.downcast_ref::<FileScanConfig>() {
        // By values of columns, of which operators above may know.
        if files.output_partitioning.is_some() {
            return Ok(None);
        }
        let group = |groups: &[FileGroup]| {
            FileGroup::new(groups.iter().flat_map(FileGroup::iter).cloned().collect())
        };
        let groups = files.file_groups.chunks(count).map(group).collect();
        let joined = FileScanConfigBuilder::from(files.clone()).with_file_groups(groups);
        // Files are in an order each, and not one after the other.
        let joined = joined.with_output_ordering(vec![]).build();
        return Ok(Some(DataSourceExec::from_data_source(joined)));
    }
    let Some(memory) = source.downcast_ref::<MemorySourceConfig>() else { return Ok(None) };
    let partitions: Vec<Vec<RecordBatch>> =
        memory.partitions().chunks(count).map(|partitions| partitions.concat()).collect();
    let (schema, columns) = (memory.original_schema(), memory.projection().clone());
    let joined = MemorySourceConfig::try_new(&partitions, schema, columns)?;
    Ok(Some(DataSourceExec::from_data_source(joined.with_show_sizes(memory.show_sizes()))))
}

/// What all rows weigh at least, if it is known how many there are.
fn bytes_at_least(rows: &Plan) -> Result<Option<u64>> {
    let known = StatisticsContext::new().compute(rows.as_ref(), &StatisticsArgs::new())?;
    let Precision::Exact(count) = known.num_rows else { return Ok(None) };
    let schema = rows.schema();
    let columns = schema.fields().iter().zip(&known.column_statistics);
    let bytes = columns.map(|(field, column)| {
        let noted = column.byte_size.get_value().copied().filter(|_| !has_width(field.data_type()));
        width_at_least(field.data_type())
            .saturating_mul(count as u64)
            .max(noted.unwrap_or(0) as u64)
    });
    Ok(Some(bytes.sum()))
}

/// Whether all values have the same size.
fn has_width(kind: &DataType) -> bool {
    match kind {
        DataType::Null | DataType::Boolean | DataType::FixedSizeBinary(_) => true,
        DataType::FixedSizeList(item, _) => has_width(item.data_type()),
        DataType::Struct(fields) => fields.iter().all(|field| has_width(field.data_type())),
        other => other.primitive_width().is_some(),
    }
}

/// Bytes that a value takes at least: of what has lengths, the place where it says so.
fn width_at_least(kind: &DataType) -> u64 {
    let of = |field: &FieldRef| width_at_least(field.data_type());
    match kind {
        DataType::FixedSizeBinary(bytes) => u64::try_from(*bytes).unwrap_or(0),
        DataType::FixedSizeList(item, count) => of(item) * u64::try_from(*count).unwrap_or(0),
        DataType::Struct(fields) => fields.iter().map(of).sum(),
        DataType::Utf8 | DataType::Binary | DataType::List(_) | DataType::Map(..) => 4,
        DataType::LargeUtf8 | DataType::LargeBinary | DataType::LargeList(_) => 8,
        DataType::Utf8View | DataType::BinaryView => 16,
        DataType::Dictionary(key, _) => width_at_least(key),
        other => other.primitive_width().unwrap_or(0) as u64,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};
    use datafusion::datasource::MemTable;
    use datafusion::datasource::sink::DataSinkExec;
    use datafusion::physical_plan::ExecutionPlanProperties;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    /// Of 16 partitions with 1000 rows of two columns each: 16,000 bytes.
    const PARTITIONS: i64 = 16;
    const ROWS: i64 = 1000;

    /// In how many tasks the rows of a query are written by those that make them.
    async fn tasks(query: &str, file_bytes: u64, cores: usize) -> Option<usize> {
        let config = SessionConfig::new().with_target_partitions(PARTITIONS as usize);
        let session = SessionContext::new_with_config(config);
        let numbers = |rows: std::ops::Range<i64>| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(rows))
        };
        let part = |at: i64| {
            let rows = at * ROWS..(at + 1) * ROWS;
            let columns = [("a", numbers(rows.clone())), ("b", numbers(rows))];
            vec![RecordBatch::try_from_iter(columns).unwrap()]
        };
        let parts: Vec<_> = (0..PARTITIONS).map(part).collect();
        let table = MemTable::try_new(parts[0][0].schema(), parts).unwrap();
        session.register_table("t", Arc::new(table)).unwrap();
        let folder = tempfile::TempDir::new().unwrap();
        let copy = format!("COPY ({query}) TO '{}/' STORED AS PARQUET", folder.path().display());
        let plan = session.sql(&copy).await.unwrap().create_physical_plan().await.unwrap();
        let sink = plan.downcast_ref::<DataSinkExec>().unwrap();
        let target = Target::of(sink, file_bytes).unwrap();
        let rows = match sink.input().children()[..] {
            [below] if sink.input().name() == "CoalescePartitionsExec" => below,
            _ => sink.input(),
        };
        let direct = direct(rows, &target, cores).unwrap()?;
        let context = session.task_ctx();
        let counted = datafusion::physical_plan::collect(Arc::clone(&direct), context).await;
        let counted: usize = counted.unwrap().iter().map(RecordBatch::num_rows).sum();
        assert_eq!(counted as i64, PARTITIONS * ROWS, "{query}");
        Some(direct.output_partitioning().partition_count())
    }

    #[tokio::test]
    async fn tasks_that_make_files_write_them() {
        const ALL: &str = "SELECT a, b FROM t";
        const COMPUTED: &str = "SELECT a + 1 AS c, b FROM t";
        for query in [ALL, COMPUTED] {
            for (file_bytes, cores, expected) in [
                // Of half a file each.
                (32_000, 2, Some(16)),
                (1_000, 2, Some(16)),
                // More that write than that make rows.
                (1_000, 17, None),
                // Put together, if each core has some.
                (64_000, 2, Some(4)),
                (64_000, 3, None),
                (33_000, 4, Some(8)),
                (33_000, 5, None),
                // Nothing like a file.
                (1 << 28, 1, None),
            ] {
                assert_eq!(tasks(query, file_bytes, cores).await, expected, "{query} {file_bytes}");
            }
        }
    }

    /// Of a row 8 bytes are read, and 1,544 written.
    #[tokio::test]
    async fn what_functions_make_counts_by_its_type() {
        let vectors = "SELECT a, arrow_cast(array_repeat(1.5, 384), 'FixedSizeList(384, Float32)') AS v FROM t";
        for (file_bytes, expected) in [(3_000_000, Some(16)), (6_300_000, Some(4)), (1 << 28, None)]
        {
            assert_eq!(tasks(vectors, file_bytes, 2).await, expected, "{file_bytes}");
        }
    }

    #[tokio::test]
    async fn what_is_estimated_or_in_order_is_not_written_so() {
        for query in [
            "SELECT a, b FROM t WHERE a <> b + 1",
            "SELECT a, b FROM t ORDER BY a",
            "SELECT a, count(*) AS n FROM t GROUP BY a",
            "SELECT t.a, u.b FROM t JOIN t u ON t.a = u.a",
            "SELECT a, b FROM t LIMIT 15999",
        ] {
            assert_eq!(tasks(query, 1_000, 2).await, None, "{query}");
        }
        // Of a text little is sure.
        let texts = "SELECT CAST(a AS VARCHAR) AS c FROM t";
        assert_eq!(tasks(texts, 8_000, 2).await, Some(16));
        assert_eq!(tasks(texts, 128_001, 2).await, None);
    }

    #[test]
    fn values_weigh_what_they_take_at_least() {
        use arrow::datatypes::Field;
        let vector =
            |item| DataType::FixedSizeList(Arc::new(Field::new_list_field(item, true)), 384);
        assert_eq!(width_at_least(&vector(DataType::Float32)), 1536);
        assert_eq!(width_at_least(&vector(DataType::Utf8)), 1536);
        assert!(has_width(&vector(DataType::Float32)) && !has_width(&vector(DataType::Utf8)));
        assert_eq!(width_at_least(&DataType::FixedSizeBinary(7)), 7);
        assert_eq!(width_at_least(&DataType::Boolean), 0);
    }
}
