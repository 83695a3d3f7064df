//! A statement that was parsed and checked, its parameters, and what it gives.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::DataFrame;
use datafusion::sql::parser::Statement as SqlStatement;
use forebay_planner::sql::StatementText;
use forebay_planner::sql::execute::execute_plan;
use forebay_planner::sql::job_statement::JobStatement;
use forebay_planner::sql::statement::Statement;
use parking_lot::Mutex;
use tonic::Status;

use super::job_rows;
use super::parameters::{asked_for, in_unit_of, number_parameters};
use super::plan::{self, Execution, Kind, Known};
use super::planning;
use super::session::Session;
use crate::flight::opaque::Opaque;
use crate::flight::status;

/// A statement, for one or many executions.
#[derive(Debug)]
pub(in crate::flight) struct Prepared {
    statement: Opaque<Statement>,
    /// As its client wrote it.
    source: String,
    /// What `SUBMIT` submits.
    submits: Option<Arc<Prepared>>,
    pub(in crate::flight) kind: Kind,
    /// Of the rows that it gives.
    pub(in crate::flight) schema: SchemaRef,
    /// Its parameters, in order. Types that nothing tells are text.
    pub(in crate::flight) parameters: SchemaRef,
    /// Rows of values that the next execution takes.
    bound: Mutex<Option<Arc<Bound>>>,
}

/// Values that are bound at a time: nulls take no bytes on their way, and some here.
const VALUES_MAX: usize = 1_000_000;

/// Values for the parameters of a statement: it runs once for each row.
pub(super) type Bound = Vec<Vec<ScalarValue>>;

/// What is left to do once a statement is planned.
pub(super) enum Planned {
    Definition(LogicalPlan, StatementText),
    Rows(Execution),
}

impl Prepared {
    /// Parses and plans a text of one statement; runs nothing.
    pub(in crate::flight) async fn new(session: &Arc<Session>, text: &str) -> Result<Self, Status> {
        let source = text.to_owned();
        let made = planning::run(session, |session| async move {
            let made = Self::made(&session, &source).await;
            Ok(made.map(|made| Self { source, ..made }))
        });
        made.await.map_err(|error| status::of(&error))?
    }

    async fn made(session: &Session, text: &str) -> Result<Self, Status> {
        match plan::parsed(session, text).map_err(|error| status::of(&error))? {
            Statement::Job(job) => Self::of_job(session, job).await,
            statement => Self::of(session, statement).await,
        }
    }

    async fn of(session: &Session, mut statement: Statement) -> Result<Self, Status> {
        let names = number_parameters(&mut statement);
        let known = match &statement {
            Statement::Model(model) => plan::of_model_statement(session, model)
                .await
                .map_err(|error| status::of(&error))?,
            Statement::Sql(sql) => {
                // What fails here is the cluster, and in planning the statement.
                session.context.look_around().await.map_err(|error| status::of(&error))?;
                let known = plan::of_sql(session, sql, &names).await;
                known.map_err(|error| status::of_definition(&error))?
            }
            Statement::Job(job) => job_rows::known(job),
        };
        Ok(Self::with(statement, known, None))
    }

    /// What is submitted is planned as if it were to run here, so that its mistakes are told at once.
    async fn of_job(session: &Session, job: JobStatement) -> Result<Self, Status> {
        let mut known = job_rows::known(&job);
        let JobStatement::Submit(sql) = &job else {
            return Ok(Self::with(Statement::Job(job), known, None));
        };
        let submits = Self::of(session, Statement::Sql(sql.clone())).await?;
        if submits.kind == Kind::Definition {
            return Err(Status::invalid_argument(
                "SUBMIT takes a query, COPY, INSERT or CREATE TABLE … AS; what changes the session or the \
                 tables is run without it",
            ));
        }
        known.parameters = Arc::clone(&submits.parameters);
        Ok(Self::with(Statement::Job(job), known, Some(Arc::new(submits))))
    }

    fn with(statement: Statement, known: Known, submits: Option<Arc<Self>>) -> Self {
        let Known { kind, schema, parameters } = known;
        let (statement, source) = (Opaque::new(statement), String::new());
        Self { statement, source, submits, kind, schema, parameters, bound: Mutex::default() }
    }

    /// The statement, if it is one on detached jobs.
    pub(in crate::flight) fn job_statement(&self) -> Option<&JobStatement> {
        match &*self.statement {
            Statement::Job(job) => Some(job),
            Statement::Sql(_) | Statement::Model(_) => None,
        }
    }

    /// What `SUBMIT` submits, if this is that.
    pub(super) fn submits(&self) -> Option<&Arc<Self>> {
        self.submits.as_ref()
    }

    /// Its text, as its client wrote it.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// The statement, if it is one of DataFusion's.
    pub(super) fn sql(&self) -> Option<&SqlStatement> {
        match &*self.statement {
            Statement::Sql(sql) => Some(sql),
            Statement::Model(_) | Statement::Job(_) => None,
        }
    }

    /// Its text, for whoever shows what runs.
    pub(super) fn text(&self) -> String {
        match &*self.statement {
            Statement::Sql(sql) => StatementText::of(sql).0,
            Statement::Model(_) | Statement::Job(_) => String::new(),
        }
    }

    /// What an error of an execution means to the client.
    pub(in crate::flight) fn status(&self, error: &DataFusionError) -> Status {
        match self.kind {
            Kind::Definition => status::of_definition(error),
            Kind::Query | Kind::Update | Kind::Act => status::of(error),
        }
    }

    /// Its parameters, as clients are asked for them.
    pub(in crate::flight) fn asked_parameters(&self) -> Schema {
        let asked = |field: &Arc<Field>| {
            field.as_ref().clone().with_data_type(asked_for(field.data_type()))
        };
        Schema::new(self.parameters.fields().iter().map(asked).collect::<Vec<_>>())
    }

    /// Sets the values of the next executions.
    pub(in crate::flight) fn bind(&self, batches: &[RecordBatch]) -> Result<()> {
        let wanted = self.parameters.fields().len();
        let values = batches.iter().map(|batch| batch.num_rows().saturating_mul(wanted.max(1)));
        let values = values.fold(0, usize::saturating_add);
        if values > VALUES_MAX {
            return plan_err!(
                "{values} values are bound, and this server takes {VALUES_MAX} at a time; bind them in \
                 parts, or ingest them into a table"
            );
        }
        let mut rows = vec![];
        for batch in batches {
            if batch.num_columns() != wanted {
                return plan_err!(
                    "the statement has {wanted} parameters, and {} values are bound",
                    batch.num_columns()
                );
            }
            for row in 0..batch.num_rows() {
                let value = |field: &Arc<Field>, at: usize| {
                    // Clients number the columns of nameless values as they like.
                    let is_named = field.name().parse::<usize>().is_err();
                    let named = batch.column_by_name(field.name()).filter(|_| is_named);
                    let value =
                        ScalarValue::try_from_array(named.unwrap_or(batch.column(at)), row)?;
                    in_unit_of(value, field.data_type())
                };
                let fields = self.parameters.fields().iter().enumerate();
                rows.push(fields.map(|(at, field)| value(field, at)).collect::<Result<_>>()?);
            }
        }
        *self.bound.lock() = Some(Arc::new(rows));
        Ok(())
    }

    /// The rows of values that an execution takes: one without values if there are no parameters.
    pub(in crate::flight) fn values(&self) -> Result<Arc<Bound>> {
        let wanted = self.parameters.fields().len();
        match self.bound.lock().clone() {
            Some(bound) => Ok(bound),
            None if wanted == 0 => Ok(Arc::new(vec![vec![]])),
            None => plan_err!("the statement has {wanted} parameters, and no values are bound"),
        }
    }

    /// Of the rows that an execution with these values gives.
    pub(super) async fn schema_with(
        &self,
        session: &Arc<Session>,
        values: &[ScalarValue],
    ) -> Result<SchemaRef> {
        let sql = match &*self.statement {
            Statement::Sql(sql) if !values.is_empty() => sql.clone(),
            _ => return Ok(Arc::clone(&self.schema)),
        };
        let values = values.to_vec();
        let schema = planning::run(session, |session| async move {
            plan::schema_with(&session, &sql, &values).await
        });
        schema.await
    }

    /// Runs a definition at once; a query when its rows are read.
    pub(in crate::flight) async fn execute(
        &self,
        session: &Arc<Session>,
        values: &[ScalarValue],
    ) -> Result<Execution> {
        self.execute_changed(session, values, |_, rows| Ok(rows)).await
    }

    /// The same, of a query that `change` makes of it.
    pub(in crate::flight) async fn execute_changed(
        &self,
        session: &Arc<Session>,
        values: &[ScalarValue],
        change: impl FnOnce(&Session, DataFrame) -> Result<DataFrame> + Send + 'static,
    ) -> Result<Execution> {
        if let Statement::Model(_) = &*self.statement {
            let statement = Statement::clone(&self.statement);
            return plan::physical(session, session.context.execute(statement).await?).await;
        }
        begun(session, self.planned(session, values, change, Ok).await?).await
    }

    /// Plans an execution of a statement of DataFusion's, with what `place` makes of it when it has been optimized;
    /// runs nothing.
    pub(super) async fn planned(
        &self,
        session: &Arc<Session>,
        values: &[ScalarValue],
        change: impl FnOnce(&Session, DataFrame) -> Result<DataFrame> + Send + 'static,
        place: impl FnOnce(LogicalPlan) -> Result<LogicalPlan> + Send + 'static,
    ) -> Result<Planned> {
        let Statement::Sql(sql) = &*self.statement else {
            return internal_err!("this statement has no plan of its own");
        };
        let (sql, values) = (sql.clone(), values.to_vec());
        let planned = planning::run(session, |session| async move {
            let text = StatementText::of(&sql);
            let plan = plan::planned(&session, &sql, &values).await?;
            if matches!(plan, LogicalPlan::Ddl(_)) {
                return Ok(Planned::Definition(plan::with_optimized_query(&session, plan)?, text));
            }
            let rows = execute_plan(session.context.session(), plan, text).await?;
            let rows = change(&session, rows)?;
            plan::physical_of(&session, rows, place).await.map(Planned::Rows)
        });
        planned.await
    }
}

/// Runs a definition; a query when its rows are read.
pub(super) async fn begun(session: &Arc<Session>, planned: Planned) -> Result<Execution> {
    match planned {
        Planned::Rows(execution) => Ok(execution),
        // It may run a query, which takes its time.
        Planned::Definition(plan, text) => {
            let of = Arc::clone(session);
            let define = async move { execute_plan(of.context.session(), plan, text).await };
            let done = session.slots.threads().run(define).await?;
            plan::physical(session, done).await
        }
    }
}
