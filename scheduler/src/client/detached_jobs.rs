//! Jobs that a server runs detached, among those of its cluster.

use std::collections::HashSet;
use std::fmt::Debug;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::Int64Type;
use datafusion::common::{Result, internal_datafusion_err};

use crate::tables::rows::{self, JobRow};

/// Who knows the jobs that a server runs detached.
pub trait DetachedJobs: Debug + Send + Sync {
    /// As rows of `forebay.jobs`: a user's or all of them.
    fn rows(&self, owner: Option<&str>) -> Vec<JobRow>;
}

/// `forebay.jobs`. A detached job that runs on the cluster has the same id there: it is one row, in which the
/// server says what became of it, and the cluster what its tasks do.
pub(super) fn merged(
    of_cluster: Option<RecordBatch>,
    mut detached: Vec<JobRow>,
) -> Result<RecordBatch> {
    let Some(of_cluster) = of_cluster else { return rows::jobs(&detached) };
    let ids = of_cluster.column_by_name("job_id").and_then(|ids| ids.as_string_opt::<i32>());
    let ids = ids.ok_or_else(|| internal_datafusion_err!("forebay.jobs has no job_id"))?;
    for job in &mut detached {
        if let Some(at) = ids.iter().position(|id| id == Some(job.id.as_str())) {
            add_tasks(job, &of_cluster, at);
        }
    }
    let known: HashSet<&str> = detached.iter().map(|job| job.id.as_str()).collect();
    let is_other = |id: Option<&str>| Some(id.is_none_or(|id| !known.contains(id)));
    let others: BooleanArray = ids.iter().map(is_other).collect();
    let others = filter_record_batch(&of_cluster, &others)?;
    Ok(concat_batches(&others.schema(), [&others, &rows::jobs(&detached)?])?)
}

/// What the cluster knows of a job, in the row `at`.
fn add_tasks(job: &mut JobRow, of_cluster: &RecordBatch, at: usize) {
    let count = |name: &str| {
        let counts = of_cluster.column_by_name(name);
        let counts = counts.and_then(|counts| counts.as_primitive_opt::<Int64Type>());
        counts.map_or(0, |counts| u64::try_from(counts.value(at)).unwrap_or(0))
    };
    let text = |name: &str| {
        let texts = of_cluster.column_by_name(name);
        let texts = texts.and_then(|texts| texts.as_string_opt::<i32>());
        texts.filter(|texts| texts.is_valid(at)).map_or("", |texts| texts.value(at))
    };
    job.stages = count("stages");
    job.stages_done = count("stages_done");
    job.units_done = count("units_done");
    job.tasks_running = count("tasks_running");
    job.tasks_failed = count("tasks_failed");
    job.recomputed = count("recomputed");
    job.waits_for = text("waits_for").to_owned();
    if job.ended.is_none() && text("state") == "queued" {
        job.state = "queued";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str, state: &'static str) -> JobRow {
        JobRow { id: id.to_owned(), state, ..JobRow::default() }
    }

    /// The ids, states, stages and whether they are detached.
    fn told(batch: &RecordBatch) -> Vec<(String, String, i64, bool)> {
        let text = |name, row| batch.column_by_name(name).unwrap().as_string::<i32>().value(row);
        let stages = batch.column_by_name("stages").unwrap().as_primitive::<Int64Type>();
        let detached = batch.column_by_name("detached").unwrap().as_boolean();
        let row = |row| {
            let (id, state) = (text("job_id", row).to_owned(), text("state", row).to_owned());
            (id, state, stages.value(row), detached.value(row))
        };
        (0..batch.num_rows()).map(row).collect()
    }

    fn row(id: &str, state: &str, stages: i64, detached: bool) -> (String, String, i64, bool) {
        (id.to_owned(), state.to_owned(), stages, detached)
    }

    #[test]
    fn a_job_of_both_is_one_row() {
        let of_cluster = [
            JobRow { stages: 1, ..job("a", "finished") },
            JobRow { stages: 2, ..job("b", "finished") },
            JobRow { stages: 3, ..job("d", "queued") },
        ];
        let of_cluster = rows::jobs(&of_cluster).unwrap();
        let detached = |id: &str| JobRow { detached: true, ..job(id, "running") };
        let detached = || vec![detached("b"), detached("c"), detached("d")];
        let merged_rows = merged(Some(of_cluster), detached()).unwrap();
        let expected = [
            row("a", "finished", 1, false),
            row("b", "running", 2, true),
            row("c", "running", 0, true),
            row("d", "queued", 3, true),
        ];
        assert_eq!(told(&merged_rows), expected);
        let alone = ["b", "c", "d"].map(|id| row(id, "running", 0, true));
        assert_eq!(told(&merged(None, detached()).unwrap()), alone);
    }
}
