//! Jobs as tables: what one of them gave, and all of them as rows.

use std::fmt;
use std::sync::{Arc, Weak};

use arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Result, plan_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use forebay_scheduler::client::detached_jobs::DetachedJobs;
use forebay_scheduler::tables::rows::JobRow;
use futures::stream;
use tonic::Status;

use super::job::Job;
use super::registry::Jobs;
use crate::flight::access::users::Identity;
use crate::flight::status::as_error;

/// `job_result('id')`: the rows that a job gave, for whoever may see it.
pub(in crate::flight) struct JobResult {
    jobs: Arc<Jobs>,
    who: Identity,
}

impl JobResult {
    pub(in crate::flight) const NAME: &'static str = "job_result";

    pub(in crate::flight) fn new(jobs: Arc<Jobs>, who: Identity) -> Self {
        Self { jobs, who }
    }
}

impl fmt::Debug for JobResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobResult").field("who", &self.who.name).finish_non_exhaustive()
    }
}

impl TableFunctionImpl for JobResult {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        let id = match args.exprs() {
            [Expr::Literal(id, _)] => id.try_as_str().flatten(),
            _ => None,
        };
        let Some(id) = id else {
            return plan_err!("job_result takes the id of a job as a text: job_result('id')");
        };
        let (job, kept) = self.jobs.result(&self.who, id).map_err(as_error)?;
        let rows =
            Rows { schema: Arc::clone(&kept.schema), job: Arc::downgrade(&job), id: id.to_owned() };
        Ok(Arc::new(StreamingTable::try_new(kept.schema, vec![Arc::new(rows)])?))
    }
}

/// The rows of a job, as long as it is known: a view that reads them does not keep their file.
struct Rows {
    schema: SchemaRef,
    job: Weak<Job>,
    id: String,
}

impl Rows {
    fn read(&self) -> Result<SendableRecordBatchStream> {
        match self.job.upgrade().and_then(|job| job.kept()) {
            Some(kept) => kept.read(),
            None => Err(as_error(Status::not_found(format!(
                "job '{}' and its result have been forgotten; submit its statement again",
                self.id
            )))),
        }
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("job", &self.id).finish_non_exhaustive()
    }
}

impl PartitionStream for Rows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        match self.read() {
            Ok(rows) => rows,
            Err(error) => {
                let failed = stream::once(async move { Err(error) });
                Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), failed))
            }
        }
    }
}

/// The jobs of a server, as long as that is there.
#[derive(Debug)]
pub(in crate::flight) struct Shown(Weak<Jobs>);

impl Shown {
    pub(in crate::flight) fn new(jobs: &Arc<Jobs>) -> Arc<Self> {
        Arc::new(Self(Arc::downgrade(jobs)))
    }
}

impl DetachedJobs for Shown {
    fn rows(&self, owner: Option<&str>) -> Vec<JobRow> {
        self.0.upgrade().map(|jobs| jobs.rows(owner)).unwrap_or_default()
    }
}
