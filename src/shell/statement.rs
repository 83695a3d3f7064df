//! Runs one statement and prints its rows.

use std::io::{BufWriter, IsTerminal, Write, stdout};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use console::Term;
use datafusion::common::instant::Instant;
use datafusion::common::{internal_err, plan_err};
use datafusion::config::FormatOptions;
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream};
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::MaxRows;
use forebay_engine::weight;
use forebay_planner::sql::Statement;
use futures::StreamExt;
use tokio::time::{Interval, interval};

use super::output::{self, PipeOut, Printing};
use super::progress::{Progress, Reader};
use super::rows::RowWriter;
use super::server::Server;
use super::table::{self, Look};
use super::{Shell, scan};

/// How often a running query is looked at.
const TICK: Duration = Duration::from_millis(200);
/// Batches that wait to be printed.
const BATCHES_WAITING_MAX: usize = 2;

/// What a statement writes to. Errors of writing do not say it.
fn target(plan: &LogicalPlan) -> Option<String> {
    match plan {
        LogicalPlan::Copy(copy) => Some(format!("COPY TO '{}'", copy.output_url)),
        LogicalPlan::Dml(dml) => Some(format!("{} {}", dml.op, dml.table_name)),
        _ => None,
    }
}

/// A running query, watched while its rows are awaited. Dropping it cancels the query.
struct Running {
    stream: SendableRecordBatchStream,
    progress: Progress,
    tick: Interval,
}

/// A statement, for whoever runs it.
pub(super) enum Work {
    /// This process, or the cluster that it is part of.
    Here(Statement),
    /// A server, which reads the text itself.
    There(String),
}

impl Shell {
    /// The statements of a text.
    ///
    /// # Errors
    /// If it cannot be parsed; what a server will run is not.
    pub(super) fn statements(&self, text: &str) -> Result<Vec<Work>> {
        match &self.server {
            None => Ok(self.context.parse(text)?.into_iter().map(Work::Here).collect()),
            Some(_) => {
                let texts = scan::statements(text).into_iter();
                Ok(texts.map(|text| Work::There(text.to_owned())).collect())
            }
        }
    }

    /// Runs the statements of a text of our own, which has no commands.
    ///
    /// # Errors
    /// That of the first statement that fails.
    pub(super) async fn run_sql(&self, text: &str) -> Result<()> {
        for statement in self.statements(text)? {
            self.run(statement).await?;
        }
        Ok(())
    }

    /// Runs one statement to its end. Dropping the future cancels it.
    ///
    /// # Errors
    /// Those of planning and of the query; rows may have been printed by then.
    pub(super) async fn run(&self, work: Work) -> Result<()> {
        match (work, &self.server) {
            (Work::There(text), Some(server)) if self.detaches => self.detach(server, &text).await,
            (Work::There(text), Some(server)) => self.run_there(server, &text).await,
            (Work::There(text), None) => {
                internal_err!("there is no server for the statement {text}")
            }
            (Work::Here(statement), _) => self.run_here(statement).await,
        }
    }

    async fn run_there(&self, server: &Server, text: &str) -> Result<()> {
        let started = Instant::now();
        let answer = server.run(text).await?;
        // What the server knows and we do not is at worst a long table.
        let is_listing = self.context.parse(text).is_ok_and(|found| found.iter().any(is_listing));
        let look = self.look(is_listing);
        let schema = answer.rows.schema();
        let progress = Progress::of_server(answer.done, self.reader());
        let running = Running { stream: answer.rows, progress, tick: interval(TICK) };
        let task = self.context.session().task_ctx();
        let printing = Printing::new();
        match RowWriter::new(self.print.format, printing.out()?) {
            Some(writer) => self.print_rows(running, writer, &schema, started).await,
            None => self.print_table(running, schema, look, &task, started).await,
        }
    }

    async fn run_here(&self, statement: Statement) -> Result<()> {
        let started = Instant::now();
        let is_listing = is_listing(&statement);
        let rows = self.context.execute(statement).await?;
        let is_listing = is_listing
            || matches!(
                rows.logical_plan(),
                LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) | LogicalPlan::DescribeTable(_)
            );
        let look = self.look(is_listing);
        let task = Arc::new(rows.task_ctx());
        let plan = rows.create_physical_plan().await?;
        let format = self.format(plan.as_ref())?;
        let schema = plan.schema();
        let target = target(rows.logical_plan());
        let running = Running::start(plan, Arc::clone(&task), self.reader())?;
        let printing = Printing::new();
        let printed = match RowWriter::new(format, printing.out()?) {
            Some(writer) => self.print_rows(running, writer, &schema, started).await,
            None => self.print_table(running, schema, look, &task, started).await,
        };
        printed.map_err(|error| match target {
            Some(target) => error.context(target),
            None => error,
        })
    }

    /// The format for this plan: a table needs an end.
    fn format(&self, plan: &dyn ExecutionPlan) -> Result<PrintFormat> {
        if !plan.boundedness().is_unbounded() {
            return Ok(self.print.format);
        }
        if plan.pipeline_behavior() == EmissionType::Final {
            return plan_err!("the source never ends, and the query gives rows only at its end");
        }
        match self.print.format {
            PrintFormat::Automatic => Ok(PrintFormat::Csv),
            PrintFormat::Table => {
                plan_err!("the source never ends, and a table needs an end; use --format csv")
            }
            other => Ok(other),
        }
    }

    /// Prints rows as they come.
    async fn print_rows(
        &self,
        mut running: Running,
        mut writer: RowWriter<PipeOut>,
        schema: &SchemaRef,
        started: Instant,
    ) -> Result<()> {
        let mut row_count = 0;
        // The header, even without rows.
        if !schema.fields().is_empty() {
            writer.write(&RecordBatch::new_empty(Arc::clone(schema)))?;
        }
        while let Some(batch) = running.next().await {
            let batch = batch?;
            row_count += batch.num_rows();
            running.progress.hide();
            let write = move || writer.write(&batch).map(|()| writer);
            writer = output::apart(write).await?;
        }
        // A definition has neither columns nor rows, and nothing to say.
        if !schema.fields().is_empty() || row_count > 0 {
            writer.finish()?;
        }
        running.end(self.print.quiet);
        if !self.print.quiet {
            // Where it does not get in the way of whoever reads the rows.
            eprintln!("{row_count} row(s) fetched.");
            eprintln!("Elapsed {:.3} seconds.\n", started.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// How the rows of a statement look as a table. Those of a listing are all wanted, and whole.
    fn look(&self, is_listing: bool) -> Look {
        let rows = match self.print.maxrows {
            MaxRows::Limited(rows) if !is_listing => rows,
            _ => usize::MAX,
        };
        let width = Term::stdout().size_checked().map(|(_, columns)| columns.into());
        let width = width.filter(|_| stdout().is_terminal());
        Look { rows, width, whole: self.whole || is_listing }
    }

    /// Gathers as many rows as the table shows, then prints it.
    async fn print_table(
        &self,
        mut running: Running,
        schema: SchemaRef,
        look: Look,
        task: &TaskContext,
        started: Instant,
    ) -> Result<()> {
        let held = MemoryConsumer::new("Shell").register(task.memory_pool());
        let (mut batches, mut row_count) = (vec![], 0);
        while let Some(batch) = running.next().await {
            let batch = batch?;
            // One more than shown tells the printer that there are more.
            if row_count <= look.rows {
                held.try_grow(weight::bytes(&batch))?;
                batches.push(batch.clone());
            }
            row_count += batch.num_rows();
        }
        running.end(self.print.quiet);
        let options = task.session_config().options().format.clone();
        let printing = Printing::new();
        let mut out = BufWriter::new(printing.out()?);
        let print = move || {
            table::print(&mut out, &schema, &batches, look, &(&options).try_into()?)?;
            Ok(out.flush()?)
        };
        output::apart(print).await?;
        let mut print = self.print.clone();
        print.format = PrintFormat::Table;
        if look.rows == usize::MAX {
            print.maxrows = MaxRows::Unlimited;
        }
        // What datafusion-cli says behind the rows, which it need not print.
        let no_columns = Arc::new(Schema::empty());
        print.print_batches(no_columns, &[], started, row_count, &FormatOptions::default())
    }
}

/// Statements whose rows are all wanted, however many.
fn is_listing(statement: &Statement) -> bool {
    match statement {
        Statement::Model(_) | Statement::Job(_) => true,
        Statement::Sql(statement) => {
            matches!(
                statement.as_ref(),
                SqlStatement::Statement(statement)
                    if matches!(statement.as_ref(), ast::Statement::ShowVariable { .. })
            ) || matches!(statement.as_ref(), SqlStatement::Explain(_))
        }
    }
}

impl Running {
    /// The query runs on the runtime's threads, so that this one can look at it and hear Ctrl-C
    /// whatever it does.
    fn start(plan: Arc<dyn ExecutionPlan>, task: Arc<TaskContext>, reader: Reader) -> Result<Self> {
        let mut builder = RecordBatchReceiverStream::builder(plan.schema(), BATCHES_WAITING_MAX);
        let mut rows = execute_stream(Arc::clone(&plan), task)?;
        let printer = builder.tx();
        builder.spawn(async move {
            while let Some(batch) = rows.next().await {
                let is_last = batch.is_err();
                if printer.send(batch).await.is_err() || is_last {
                    break;
                }
            }
            Ok(())
        });
        let progress = Progress::of_plan(plan, reader);
        Ok(Self { stream: builder.build(), progress, tick: interval(TICK) })
    }

    async fn next(&mut self) -> Option<Result<RecordBatch>> {
        loop {
            tokio::select! {
                biased;
                batch = self.stream.next() => return batch,
                _ = self.tick.tick() => self.progress.show(),
            }
        }
    }

    /// What is left to say when all rows are there.
    fn end(&mut self, quiet: bool) {
        self.progress.hide();
        if let Some(summary) = self.progress.summary().filter(|_| !quiet) {
            eprintln!("{summary}");
        }
    }
}
