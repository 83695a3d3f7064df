//! Text → statement → plan, each checked against what the client may.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use datafusion::common::{ParamValues, Result, ScalarValue, plan_err};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::DataFrame;
use datafusion::sql::parser::Statement as SqlStatement;
use forebay_planner::bounded;
use forebay_planner::sql::depth::Depth;
use forebay_planner::sql::execute::plan;
use forebay_planner::sql::statement::{ModelStatement, Statement};

use super::parameters::{cast_types, write_values};
use super::session::Session;
use crate::flight::access::rights::{check_plan, check_statement};
use crate::flight::limits::{options, sizes, uses};
use crate::flight::protocol::metadata;

/// What a statement does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::flight) enum Kind {
    /// It gives rows, and changes nothing.
    Query,
    /// It changes what there is, and runs no query for it.
    Definition,
    /// It writes the rows of a query.
    Update,
    /// It acts at once, and gives rows that say what it did.
    Act,
}

/// What is known of a statement before it runs.
pub(super) struct Known {
    pub(super) kind: Kind,
    /// Of the rows that it gives.
    pub(super) schema: SchemaRef,
    /// Its parameters, in order. Types that nothing tells are text.
    pub(super) parameters: SchemaRef,
}

/// One execution of a statement, which begins when somebody asks for its rows.
pub(in crate::flight) struct Execution {
    pub(in crate::flight) plan: Arc<dyn ExecutionPlan>,
    pub(in crate::flight) context: Arc<TaskContext>,
}

/// The one statement of a text.
pub(super) fn parsed(session: &Session, text: &str) -> Result<Statement> {
    Depth::OF_A_CLIENT.check(text)?;
    let mut statements = session.context.parse(text)?;
    let statement = match (statements.pop(), statements.len()) {
        (Some(statement), 0) => statement,
        (None, _) => return plan_err!("the text holds no statement"),
        (_, more) => return plan_err!("expected one statement, found {}", more + 1),
    };
    check_statement(&session.who, &session.roots, &statement)?;
    Ok(statement)
}

/// Statements on models have no parameters.
pub(super) async fn of_model_statement(
    session: &Session,
    statement: &ModelStatement,
) -> Result<Known> {
    let reads = matches!(
        statement,
        ModelStatement::Show | ModelStatement::ShowCreate { .. } | ModelStatement::Describe { .. }
    );
    let nothing = || Arc::new(Schema::empty());
    if !reads {
        return Ok(Known { kind: Kind::Definition, schema: nothing(), parameters: nothing() });
    }
    let rows = session.context.execute(Statement::Model(statement.clone())).await?;
    let schema = Arc::clone(rows.schema().inner());
    Ok(Known { kind: Kind::Query, schema, parameters: nothing() })
}

/// Plans a statement whose parameters have these names.
pub(super) async fn of_sql(
    session: &Session,
    sql: &SqlStatement,
    names: &[String],
) -> Result<Known> {
    let (plan, parameters) = with_parameters(session, sql, names).await?;
    check_plan(&session.who, &plan)?;
    let plan = within_bounds(session, plan)?;
    let kind = match &plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(_))
        | LogicalPlan::Dml(_)
        | LogicalPlan::Copy(_) => Kind::Update,
        LogicalPlan::Ddl(_) | LogicalPlan::Statement(_) => Kind::Definition,
        _ => Kind::Query,
    };
    let schema = match &plan {
        LogicalPlan::Ddl(_) | LogicalPlan::Statement(_) => Arc::new(Schema::empty()),
        _ if names.is_empty() => analyzed(session, plan)?,
        // A value may be null, and then what is made of it.
        _ => nullable(&*analyzed(session, plan)?),
    };
    Ok(Known { kind, schema, parameters: Arc::new(Schema::new(parameters)) })
}

/// The plan of a statement whose values are not known yet, and its parameters. Those whose type
/// nothing tells are taken for text, because models want to know types.
async fn with_parameters(
    session: &Session,
    sql: &SqlStatement,
    names: &[String],
) -> Result<(LogicalPlan, Vec<Field>)> {
    let planned = plan_of(session, sql.clone()).await;
    let types = match &planned {
        Ok(plan) => plan.get_parameter_fields()?,
        Err(_) => HashMap::new(),
    };
    let casts = planned.as_ref().map(cast_types).unwrap_or_default();
    let known = |at: usize| types.get(&format!("${}", at + 1)).and_then(Clone::clone);
    let field = |(at, name): (usize, &String)| {
        let known = known(at).map(|field| field.data_type().clone());
        let cast = || casts.get(&format!("${}", at + 1)).cloned();
        Field::new(name, known.or_else(cast).unwrap_or(DataType::Utf8), true)
    };
    let fields = names.iter().enumerate().map(field).collect();
    if (0..names.len()).all(|at| known(at).is_some()) {
        return Ok((planned?, fields));
    }
    let text = |at: usize| match known(at) {
        Some(_) => ScalarValue::Null,
        None => ScalarValue::from(""),
    };
    let mut as_text = sql.clone();
    write_values(&mut as_text, &(0..names.len()).map(text).collect::<Vec<_>>());
    match (plan_of(session, as_text).await, planned) {
        (Ok(plan), _) => Ok((plan, fields)),
        (Err(_), planned) => Ok((planned?, fields)),
    }
}

/// The plan of a statement as it stands. Whatever looks at it goes through all of it, which tables that
/// each use the one before twice make long: so its size is looked at first.
async fn plan_of(session: &Session, sql: SqlStatement) -> Result<LogicalPlan> {
    if session.limits.is_shared {
        uses::check(&sql)?;
    }
    let plan = plan(session.context.session(), sql).await?;
    if session.limits.is_shared {
        sizes::check(&plan)?;
    }
    Ok(plan)
}

/// The plan of a statement with values for its parameters.
pub(super) async fn planned(
    session: &Session,
    sql: &SqlStatement,
    values: &[ScalarValue],
) -> Result<LogicalPlan> {
    session.context.look_around().await?;
    let mut sql = sql.clone();
    write_values(&mut sql, values);
    let plan = plan_of(session, sql).await?;
    let plan = if values.is_empty() {
        plan
    } else {
        plan.with_param_values(ParamValues::from(values.to_vec()))?
    };
    check_plan(&session.who, &plan)?;
    check_name_is_free(session, &plan)?;
    within_bounds(session, plan)
}

/// Of the rows that a statement gives with these values.
pub(super) async fn schema_with(
    session: &Session,
    sql: &SqlStatement,
    values: &[ScalarValue],
) -> Result<SchemaRef> {
    Ok(nullable(&*analyzed(session, planned(session, sql, values).await?)?))
}

/// As the rows will be: the analyzer changes types.
fn analyzed(session: &Session, plan: LogicalPlan) -> Result<SchemaRef> {
    let state = session.context.session().state();
    let plan = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {})?;
    Ok(metadata::described(plan.schema().inner()))
}

fn nullable(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
}

/// Before the query of the new table runs, so that what is said is not taken for its failure.
fn check_name_is_free(session: &Session, plan: &LogicalPlan) -> Result<()> {
    let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) = plan else { return Ok(()) };
    let replaces = create.if_not_exists || create.or_replace;
    if !replaces && session.context.session().table_exist(create.name.clone())? {
        return plan_err!(
            "table '{}' already exists; use CREATE OR REPLACE TABLE, or IF NOT EXISTS",
            create.name
        );
    }
    Ok(())
}

/// A plan of a client that is one of many: it asks for no more than it may, and its functions make no
/// more of a value.
fn within_bounds(session: &Session, plan: LogicalPlan) -> Result<LogicalPlan> {
    if !session.limits.is_shared {
        return Ok(plan);
    }
    options::check(&plan)?;
    sizes::check(&plan)?;
    bounded::bound(plan)
}

/// How many rows an update says that it has changed.
pub(super) fn changed(said: &RecordBatch) -> u64 {
    let counts = said.columns().first();
    let counts = counts.and_then(|counts| counts.as_primitive_opt::<UInt64Type>());
    counts.map_or(0, |counts| counts.iter().flatten().sum())
}

/// The plan that runs, checked once more: sizes that were expressions are numbers in it.
pub(super) async fn physical(session: &Session, rows: DataFrame) -> Result<Execution> {
    physical_of(session, rows, Ok).await
}

/// The same of what `change` makes of the statement when all other rules have seen it.
pub(super) async fn physical_of(
    session: &Session,
    rows: DataFrame,
    change: impl FnOnce(LogicalPlan) -> Result<LogicalPlan>,
) -> Result<Execution> {
    let context = Arc::new(rows.task_ctx());
    let (state, plan) = rows.into_parts();
    let plan = state.optimize(&within_bounds(session, plan)?)?;
    if session.limits.is_shared {
        sizes::check(&plan)?;
    }
    let plan = change(plan)?;
    let plan = state.query_planner().create_physical_plan(&plan, &state).await?;
    Ok(Execution { plan, context })
}

/// What makes a table optimizes its query where it runs it. This leaves little to do there.
pub(super) fn with_optimized_query(session: &Session, plan: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(mut create)) = plan else {
        return Ok(plan);
    };
    let query = session.context.session().state().optimize(&create.input)?;
    if session.limits.is_shared {
        sizes::check(&query)?;
    }
    create.input = Arc::new(query);
    Ok(LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)))
}
