//! What the system tables say of a job.

use std::collections::BTreeSet;

use forebay::ForebayContext;

use super::setup::run;

/// A unit: its stage, and its number within it.
pub(super) type Unit = (u32, u32);

/// A row of `forebay.tasks`. Times are milliseconds since 1970.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) unit: Unit,
    pub(super) state: String,
    pub(super) worker: String,
    pub(super) started: i64,
    pub(super) ended: i64,
    pub(super) reason: String,
}

/// A row of `forebay.blocks`.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) unit: Unit,
    pub(super) state: String,
    pub(super) worker: String,
}

/// A row of `forebay.recomputed`.
#[derive(Clone, Debug)]
pub(super) struct Recomputed {
    pub(super) unit: Unit,
    pub(super) decided: i64,
    pub(super) reason: String,
}

/// The job that started last.
pub(super) async fn last_job(session: &ForebayContext) -> String {
    let last = "SELECT job_id FROM forebay.jobs ORDER BY queued DESC, job_id DESC LIMIT 1";
    run(session, last).await.unwrap().remove(0)
}

pub(super) async fn tasks(session: &ForebayContext, job: &str) -> Vec<Task> {
    let columns = "stage_id, unit, state, worker_id, CAST(started AS BIGINT), \
                   coalesce(CAST(ended AS BIGINT), 0), reason";
    let rows = rows(session, columns, "tasks", job).await;
    let task = |row: Vec<String>| Task {
        unit: unit(&row),
        state: row[2].clone(),
        worker: row[3].clone(),
        started: row[4].parse().unwrap(),
        ended: row[5].parse().unwrap(),
        reason: row[6].clone(),
    };
    rows.into_iter().map(task).collect()
}

pub(super) async fn blocks(session: &ForebayContext, job: &str) -> Vec<Block> {
    let rows = rows(session, "stage_id, unit, state, worker_id, seq", "blocks", job).await;
    let block = |row: Vec<String>| Block {
        unit: unit(&row),
        state: row[2].clone(),
        worker: row[3].clone(),
    };
    rows.into_iter().map(block).collect()
}

pub(super) async fn recomputed(session: &ForebayContext, job: &str) -> Vec<Recomputed> {
    let columns = "stage_id, unit, CAST(decided AS BIGINT), reason";
    let rows = rows(session, columns, "recomputed", job).await;
    let recomputed = |row: Vec<String>| Recomputed {
        unit: unit(&row),
        decided: row[2].parse().unwrap(),
        reason: row[3].clone(),
    };
    rows.into_iter().map(recomputed).collect()
}

/// Workers on which something is still taken, or that hold blocks of jobs.
pub(super) async fn busy_workers(session: &ForebayContext) -> Vec<String> {
    let busy = "SELECT * FROM forebay.workers WHERE tasks > 0 OR cpus_used > 0 OR \
                accelerators_used > 0 OR memory_used > 0 OR block_bytes > 0";
    run(session, busy).await.unwrap()
}

async fn rows(session: &ForebayContext, columns: &str, table: &str, job: &str) -> Vec<Vec<String>> {
    let query = format!("SELECT {columns} FROM forebay.{table} WHERE job_id = '{job}'");
    let rows = run(session, &query).await.unwrap();
    rows.iter().map(|row| row.split('|').map(str::to_owned).collect()).collect()
}

fn unit(row: &[String]) -> Unit {
    (row[0].parse().unwrap(), row[1].parse().unwrap())
}

/// The units of these.
pub(super) fn units<'a>(found: impl Iterator<Item = &'a Unit>) -> BTreeSet<Unit> {
    found.copied().collect()
}
