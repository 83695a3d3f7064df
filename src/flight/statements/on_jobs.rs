//! Statements on detached jobs, run.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use forebay_planner::sql::job_statement::JobStatement;
use forebay_scheduler::next_job_id;
use forebay_scheduler::tables::rows::job_name;
use futures::stream;
use tonic::Status;

use super::plan::{self, Execution};
use super::session::Session;
use super::statement::Prepared;
use super::{detached, job_rows, resumed};
use crate::flight::jobs::{About, Job};
use crate::flight::status::as_error;

/// The job that a statement waits for, if it does.
///
/// # Errors
/// If there is no such job.
pub(super) fn awaited(session: &Session, prepared: &Prepared) -> Result<Option<Arc<Job>>, Status> {
    match prepared.job_statement() {
        Some(JobStatement::Wait(id)) => session.jobs.find(&session.who, id).map(Some),
        _ => Ok(None),
    }
}

/// One execution of any statement. Those on jobs act at once, but for the one that waits: it does so when
/// its rows are read.
///
/// # Errors
/// Those of the statement.
pub(super) async fn execution(
    session: &Arc<Session>,
    prepared: &Prepared,
    values: &[ScalarValue],
) -> Result<Execution> {
    let Some(statement) = prepared.job_statement() else {
        return prepared.execute(session, values).await;
    };
    let (jobs, who) = (&session.jobs, &session.who);
    let schema = Arc::clone(&prepared.schema);
    let job = match statement {
        JobStatement::Submit(_) => submit(session, prepared, values).await?,
        JobStatement::Wait(id) => jobs.find(who, id).map_err(as_error)?,
        JobStatement::Forget(id) => resumed::forget(session, id).await?,
        JobStatement::Resume(resume) => resumed::resume(session, resume).await?,
        JobStatement::ExplainResume(resume) => {
            let rows = resumed::explain(session, resume).await?;
            return answered(session, schema, Said::Rows(rows)).await;
        }
        JobStatement::Cancel(id) => {
            let job = jobs.cancel(who, id).map_err(as_error)?;
            job.ended().await;
            job
        }
    };
    let waits = matches!(statement, JobStatement::Wait(_));
    answered(session, schema, Said::Job { job, waits }).await
}

async fn answered(session: &Arc<Session>, schema: SchemaRef, said: Said) -> Result<Execution> {
    let answer = Answer { schema: Arc::clone(&schema), said };
    // Not a table in memory: that would travel to a worker.
    let answer = StreamingTable::try_new(schema, vec![Arc::new(answer)])?;
    let rows = session.context.session().read_table(Arc::new(answer))?;
    plan::physical(session, rows).await
}

/// Plans what is submitted, in a session of its own, and lets it run.
async fn submit(
    session: &Arc<Session>,
    prepared: &Prepared,
    values: &[ScalarValue],
) -> Result<Arc<Job>> {
    let Some(submitted) = prepared.submits() else {
        return internal_err!("SUBMIT has nothing to submit");
    };
    let id = next_job_id();
    let said = format!("{}{values:?}", submitted.text());
    let own = Arc::new(session.detached(&id, &said)?);
    if own.forebay().resumable {
        return resumed::submit(session, own, prepared, values, id).await;
    }
    let planned = submitted.planned(&own, values, |_, rows| Ok(rows), Ok).await?;
    let about = About {
        id,
        who: session.who.clone(),
        user: session.slots.user().map(str::to_owned),
        name: job_name(&submitted.text()),
        session: own.context.session().session_id(),
        is_resumable: false,
    };
    let submitted = Arc::clone(submitted);
    let work = move |job| detached::run(own, submitted, planned, job);
    session.jobs.submit(about, None, work).map_err(as_error)
}

/// What a statement on jobs gives.
struct Answer {
    schema: SchemaRef,
    said: Said,
}

#[derive(Clone)]
enum Said {
    /// The row of a job: as it is, or as it will be at its end.
    Job { job: Arc<Job>, waits: bool },
    /// Rows that are known.
    Rows(RecordBatch),
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PartitionStream for Answer {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (schema, said) = (Arc::clone(&self.schema), self.said.clone());
        let row = async move {
            let (job, waits) = match said {
                Said::Job { job, waits } => (job, waits),
                Said::Rows(rows) => return Ok(rows),
            };
            if waits {
                job.ended().await;
                if let Some(failure) = job.failure() {
                    return Err(as_error(failure));
                }
            }
            job_rows::row(&schema, &job)
        };
        let row = stream::once(row);
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), row))
    }
}
