//! What a detached job does: it runs a statement, and keeps the rows.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::execute_stream;
use futures::StreamExt;
use tonic::Status;

use super::plan::{Execution, Kind, changed};
use super::session::Session;
use super::statement::{Planned, Prepared, begun};
use crate::flight::jobs::{Job, Keeper};
use crate::flight::status::as_error;

/// Runs it to its end, in a session of its own; gives back the number of rows that it gave or wrote.
///
/// # Errors
/// Those of the statement, and if its rows are more than may be kept.
pub(super) async fn run(
    session: Arc<Session>,
    prepared: Arc<Prepared>,
    planned: Planned,
    job: Arc<Job>,
) -> Result<u64, Status> {
    let done = async {
        let execution = begun(&session, planned).await?;
        let counts = prepared.kind == Kind::Update;
        let kept = keep(Arc::clone(&session), job, execution, counts);
        session.slots.threads().run(kept).await
    };
    done.await.map_err(|error| prepared.status(&error))
}

/// Writes the rows of an execution to a file; those of an update say how many it `counts`.
async fn keep(
    session: Arc<Session>,
    job: Arc<Job>,
    execution: Execution,
    counts: bool,
) -> Result<u64> {
    let Execution { plan, context } = execution;
    let runtime = session.context.session().runtime_env();
    let mut keeper = Keeper::create(&runtime, plan.schema(), job.id())?;
    job.runs(Arc::clone(&plan), &keeper);
    let mut rows = execute_stream(plan, context)?;
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        keeper.write(&batch)?;
        job.add_rows(if counts { changed(&batch) } else { batch.num_rows() as u64 });
        session.jobs.check_room(&job).map_err(as_error)?;
    }
    keeper.finish()?;
    Ok(job.rows())
}
