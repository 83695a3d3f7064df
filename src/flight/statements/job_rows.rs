//! What statements on detached jobs give.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::Result;
use forebay_planner::sql::job_statement::JobStatement;

use super::plan::{Kind, Known};
use crate::flight::jobs::Job;

/// What `EXPLAIN RESUME JOB` says.
static EXPLAINED: LazyLock<SchemaRef> = LazyLock::new(|| {
    let count = |name: &str| Field::new(name, DataType::Int64, true);
    Arc::new(Schema::new(vec![
        Field::new("what", DataType::Utf8, false),
        count("parts"),
        count("files"),
        count("rows"),
        count("input_bytes"),
        Field::new("detail", DataType::Utf8, true),
    ]))
});

/// One row of it.
#[derive(Debug, Default)]
pub(super) struct Explained {
    pub(super) what: &'static str,
    /// Parts, files, rows, and bytes of inputs, as far as they are known.
    pub(super) counts: [Option<u64>; 4],
    pub(super) detail: Option<String>,
}

/// These rows.
pub(super) fn explained(all: &[Explained]) -> Result<RecordBatch> {
    let count = |at: usize| -> ArrayRef {
        let counts = all.iter().map(|row| row.counts[at]);
        let counts =
            counts.map(|count| count.map(|count| i64::try_from(count).unwrap_or(i64::MAX)));
        Arc::new(counts.collect::<Int64Array>())
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(all.iter().map(|row| Some(row.what)).collect::<StringArray>()),
        count(0),
        count(1),
        count(2),
        count(3),
        Arc::new(all.iter().map(|row| row.detail.as_deref()).collect::<StringArray>()),
    ];
    Ok(RecordBatch::try_new(Arc::clone(&EXPLAINED), columns)?)
}

/// What is known of such a statement before it runs.
pub(super) fn known(statement: &JobStatement) -> Known {
    let (kind, columns) = match statement {
        JobStatement::Submit(_) | JobStatement::Resume(_) => (Kind::Act, 1),
        JobStatement::ExplainResume(_) => {
            let (schema, parameters) = (Arc::clone(&EXPLAINED), Arc::new(Schema::empty()));
            return Known { kind: Kind::Query, schema, parameters };
        }
        JobStatement::Cancel(_) | JobStatement::Forget(_) => (Kind::Act, 2),
        JobStatement::Wait(_) => (Kind::Query, 4),
    };
    let all = [
        ("job_id", DataType::Utf8),
        ("state", DataType::Utf8),
        ("rows", DataType::Int64),
        ("seconds", DataType::Float64),
    ];
    let columns = all.into_iter().take(columns);
    let columns = columns.map(|(name, data_type)| Field::new(name, data_type, false));
    let schema = Arc::new(Schema::new(columns.collect::<Vec<_>>()));
    Known { kind, schema, parameters: Arc::new(Schema::empty()) }
}

/// The row of a job, as it is now.
pub(super) fn row(schema: &SchemaRef, job: &Job) -> Result<RecordBatch> {
    let text = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
    let rows = i64::try_from(job.rows()).unwrap_or(i64::MAX);
    let all: [ArrayRef; 4] = [
        text(job.id()),
        text(job.state()),
        Arc::new(Int64Array::from(vec![rows])),
        Arc::new(Float64Array::from(vec![job.elapsed().as_secs_f64()])),
    ];
    let columns = all.into_iter().take(schema.fields().len()).collect();
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}
