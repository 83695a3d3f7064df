//! Rows that clients send: values of parameters, and rows for a table.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::sql::server::PeekableFlightDataStream;
use arrow_flight::sql::{
    CommandStatementIngest, TableDefinitionOptions, TableExistsOption, TableNotExistOption,
};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::{DataFusionError, Result, TableReference, exec_err, plan_err};
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::datasource::MemTable;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use forebay_engine::claims;
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tonic::Status;

use crate::errors::readable;
use crate::flight::access::users::Role;
use crate::flight::statements::session::Session;
use crate::flight::status;

/// What the compressed buffers of one message may become.
const DECOMPRESSED_BYTES_MAX: u64 = 256 << 20;

fn decoded(data: PeekableFlightDataStream) -> FlightRecordBatchStream {
    let data = data.into_peekable().map_err(|status| FlightError::Tonic(Box::new(status)));
    // The first message may hold no more than the command.
    let data = data.try_filter(|data| std::future::ready(!data.data_header.is_empty()));
    let data = data.and_then(|data| {
        let checked = claims::check(&data.data_header, &data.data_body, DECOMPRESSED_BYTES_MAX);
        let refused = |error| Status::invalid_argument(readable(&error));
        let checked = checked.map_err(|error| FlightError::Tonic(Box::new(refused(error))));
        std::future::ready(checked.map(|()| data))
    });
    FlightRecordBatchStream::new_from_flight_data(data)
}

/// Bytes of the values that one statement may be bound to at a time.
const BOUND_BYTES_MAX: usize = 64 << 20;

/// All rows of values for parameters, which are held in memory.
pub(super) async fn all(data: PeekableFlightDataStream) -> Result<Vec<RecordBatch>, Status> {
    let mut rows = decoded(data);
    let (mut batches, mut bytes) = (vec![], 0);
    while let Some(batch) = rows.try_next().await.map_err(status::of_flight)? {
        bytes += batch.get_array_memory_size();
        if bytes > BOUND_BYTES_MAX {
            return Err(Status::resource_exhausted(format!(
                "the values bound to a statement have more than {BOUND_BYTES_MAX} bytes; ingest \
                 many rows into a table (adbc_ingest), and join with it"
            )));
        }
        batches.push(batch);
    }
    Ok(batches)
}

/// Writes rows into a table, as they come; gives back how many.
pub(super) async fn into_table(
    session: &Arc<Session>,
    command: CommandStatementIngest,
    data: PeekableFlightDataStream,
) -> Result<i64, Status> {
    let _slot = session.slot()?;
    if session.who.role < Role::Write {
        return Err(Status::permission_denied(format!(
            "writing into tables needs the role write; '{}' has {}",
            session.who.name, session.who.role
        )));
    }
    let mut rows = decoded(data);
    let first = in_time(session, rows.try_next()).await?;
    let Some(schema) = rows.schema().cloned() else {
        return Err(Status::invalid_argument("the rows to write have no schema"));
    };
    let sender = Arc::clone(session);
    let rest = futures::stream::try_unfold((sender, rows), |(sender, mut rows)| async move {
        let next = in_time(&sender, rows.try_next()).await;
        let next = next.map_err(|status| DataFusionError::External(Box::new(status)))?;
        Ok(next.map(|batch| (batch, (sender, rows))))
    });
    let rows = futures::stream::iter(first.map(Ok)).chain(rest);
    let rows = RecordBatchStreamAdapter::new(Arc::clone(&schema), rows);
    let written = write(session, command, schema, Box::pin(rows)).await;
    written.map_err(|error| status::of(&error))
}

/// What a client sends next: it holds a slot meanwhile.
async fn in_time<T>(
    session: &Session,
    next: impl Future<Output = Result<T, FlightError>>,
) -> Result<T, Status> {
    let limit = session.limits.read_timeout;
    tokio::select! {
        next = next => next.map_err(status::of_flight),
        () = session.closed.cancelled() => Err(Status::cancelled("the session has ended")),
        () = tokio::time::sleep(limit) => Err(Status::deadline_exceeded(format!(
            "the client has sent no rows for {} s (--read-timeout of the server)",
            limit.as_secs()
        ))),
    }
}

async fn write(
    session: &Session,
    command: CommandStatementIngest,
    schema: SchemaRef,
    rows: SendableRecordBatchStream,
) -> Result<i64> {
    if command.temporary {
        return plan_err!("temporary tables are not supported; tables are the server's");
    }
    let context = session.context.session();
    let table = match (command.catalog, command.schema) {
        (Some(catalog), Some(schema)) => TableReference::full(catalog, schema, command.table),
        (None, Some(schema)) => TableReference::partial(schema, command.table),
        _ => TableReference::bare(command.table),
    };
    let made = prepare(context, &table, &schema, command.table_definition_options).await?;
    let source = OneShot { schema: Arc::clone(&schema), rows: Mutex::new(Some(rows)) };
    let source = StreamingTable::try_new(schema, vec![Arc::new(source)])?;
    let rows = context.read_table(Arc::new(source))?;
    let written = rows.write_table(&table.to_string(), DataFrameWriteOptions::new()).await;
    if written.is_err() && made {
        // Half a table would look like a whole one.
        context.deregister_table(table)?;
    }
    let counts = written?;
    let count = |batch: &RecordBatch| -> u64 {
        let counts = batch.columns().first().map(|column| column.as_ref());
        let counts = counts.and_then(|c| c.as_any().downcast_ref::<arrow::array::UInt64Array>());
        counts.map_or(0, |counts| counts.iter().flatten().sum())
    };
    Ok(counts.iter().map(count).sum::<u64>().try_into().unwrap_or(i64::MAX))
}

/// Makes the table if it has to be made. Says whether it was.
async fn prepare(
    context: &datafusion::prelude::SessionContext,
    table: &TableReference,
    schema: &SchemaRef,
    options: Option<TableDefinitionOptions>,
) -> Result<bool> {
    let options = options.unwrap_or_default();
    let exists = context.table_exist(table.clone())?;
    match (exists, options.if_exists(), options.if_not_exist()) {
        (true, TableExistsOption::Fail, _) => {
            return plan_err!("table '{table}' is there already");
        }
        (true, TableExistsOption::Append | TableExistsOption::Unspecified, _) => return Ok(false),
        (true, TableExistsOption::Replace, _) => {
            context.deregister_table(table.clone())?;
        }
        (false, _, TableNotExistOption::Fail) => {
            return plan_err!("there is no table '{table}'");
        }
        (false, ..) => {}
    }
    let made = MemTable::try_new(Arc::clone(schema), vec![vec![]])?;
    context.register_table(table.clone(), Arc::new(made))?;
    Ok(true)
}

/// Rows that can be read once.
struct OneShot {
    schema: SchemaRef,
    rows: Mutex<Option<SendableRecordBatchStream>>,
}

impl std::fmt::Debug for OneShot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("rows of a client")
    }
}

impl PartitionStream for OneShot {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        match self.rows.lock().take() {
            Some(rows) => rows,
            None => {
                let again = futures::stream::once(async { exec_err!("rows were read twice") });
                Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), again))
            }
        }
    }
}
