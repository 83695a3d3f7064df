//! A statement that was parsed and checked, its parameters, and what it gives.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, ParamValues, Result, ScalarValue, plan_err};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{DdlStatement, Expr as LogicalExpr, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::DataFrame;
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{Expr, Value, visit_expressions_mut};
use forebay_planner::bounded;
use forebay_planner::sql::StatementText;
use forebay_planner::sql::depth::Depth;
use forebay_planner::sql::execute::{execute_plan, plan};
use forebay_planner::sql::statement::{ModelStatement, Statement};
use parking_lot::Mutex;
use tonic::Status;

use super::planning;
use super::session::Session;
use crate::flight::access::rights::{check_plan, check_statement};
use crate::flight::limits::{options, sizes, uses};
use crate::flight::opaque::Opaque;
use crate::flight::protocol::metadata;
use crate::flight::status;

/// What a statement does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::flight) enum Kind {
    /// It gives rows, and changes nothing.
    Query,
    /// It changes what there is, and runs no query for it.
    Definition,
    /// It writes the rows of a query.
    Update,
}

/// A statement, for one or many executions.
#[derive(Debug)]
pub(in crate::flight) struct Prepared {
    statement: Opaque<Statement>,
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

/// One execution of a statement, which begins when somebody asks for its rows.
pub(in crate::flight) struct Execution {
    pub(in crate::flight) plan: Arc<dyn ExecutionPlan>,
    pub(in crate::flight) context: Arc<TaskContext>,
}

/// What is left to do once a statement is planned.
enum Planned {
    Definition(LogicalPlan, StatementText),
    Rows(Execution),
}

impl Prepared {
    /// Parses and plans a text of one statement; runs nothing.
    pub(in crate::flight) async fn new(session: &Arc<Session>, text: &str) -> Result<Self, Status> {
        let text = text.to_owned();
        let made =
            planning::run(session, |session| async move { Ok(Self::made(&session, &text).await) });
        made.await.map_err(|error| status::of(&error))?
    }

    async fn made(session: &Session, text: &str) -> Result<Self, Status> {
        let mut statement = parsed(session, text).map_err(|error| status::of(&error))?;
        let names = number_parameters(&mut statement);
        let (kind, schema, parameters) = match &statement {
            Statement::Model(model) => {
                of_model_statement(session, model).await.map_err(|error| status::of(&error))?
            }
            Statement::Sql(sql) => {
                // What fails here is the cluster, and in planning the statement.
                session.context.look_around().await.map_err(|error| status::of(&error))?;
                let known = of_sql(session, sql, &names).await;
                known.map_err(|error| status::of_definition(&error))?
            }
        };
        let statement = Opaque::new(statement);
        Ok(Self { statement, kind, schema, parameters, bound: Mutex::default() })
    }

    /// What an error of an execution means to the client.
    pub(in crate::flight) fn status(&self, error: &DataFusionError) -> Status {
        match self.kind {
            Kind::Definition => status::of_definition(error),
            Kind::Query | Kind::Update => status::of(error),
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
            let plan = planned(&session, &sql, &values).await?;
            Ok(nullable(&*analyzed(&session, plan)?))
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
        let sql = match &*self.statement {
            Statement::Sql(sql) => sql.clone(),
            Statement::Model(_) => {
                let statement = Statement::clone(&self.statement);
                return physical(session, session.context.execute(statement).await?).await;
            }
        };
        let values = values.to_vec();
        let planned = planning::run(session, |session| async move {
            let text = StatementText::of(&sql);
            let plan = planned(&session, &sql, &values).await?;
            if matches!(plan, LogicalPlan::Ddl(_)) {
                return Ok(Planned::Definition(with_optimized_query(&session, plan)?, text));
            }
            let rows = execute_plan(session.context.session(), plan, text).await?;
            physical(&session, change(&session, rows)?).await.map(Planned::Rows)
        });
        match planned.await? {
            Planned::Rows(execution) => Ok(execution),
            // It may run a query, which takes its time.
            Planned::Definition(plan, text) => {
                let of = Arc::clone(session);
                let define = async move { execute_plan(of.context.session(), plan, text).await };
                let done = session.slots.threads().run(define).await?;
                physical(session, done).await
            }
        }
    }
}

/// The plan that runs, checked once more: sizes that were expressions are numbers in it.
async fn physical(session: &Session, rows: DataFrame) -> Result<Execution> {
    let context = Arc::new(rows.task_ctx());
    let (state, plan) = rows.into_parts();
    let plan = state.optimize(&within_bounds(session, plan)?)?;
    if session.limits.is_shared {
        sizes::check(&plan)?;
    }
    let plan = state.query_planner().create_physical_plan(&plan, &state).await?;
    Ok(Execution { plan, context })
}

/// What makes a table optimizes its query where it runs it. This leaves little to do there.
fn with_optimized_query(session: &Session, plan: LogicalPlan) -> Result<LogicalPlan> {
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

fn parsed(session: &Session, text: &str) -> Result<Statement> {
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
async fn planned(
    session: &Session,
    sql: &SqlStatement,
    values: &[ScalarValue],
) -> Result<LogicalPlan> {
    session.context.look_around().await?;
    let mut sql = sql.clone();
    write_values(&mut sql, values);
    let plan = plan_of(session, sql).await?;
    let plan = match values.is_empty() {
        true => plan,
        false => plan.with_param_values(ParamValues::from(values.to_vec()))?,
    };
    check_plan(&session.who, &plan)?;
    check_name_is_free(session, &plan)?;
    within_bounds(session, plan)
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

/// As the rows will be: the analyzer changes types.
fn analyzed(session: &Session, plan: LogicalPlan) -> Result<SchemaRef> {
    let state = session.context.session().state();
    let plan = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {})?;
    Ok(metadata::described(plan.schema().inner()))
}

type Known = (Kind, SchemaRef, SchemaRef);

async fn of_model_statement(session: &Session, statement: &ModelStatement) -> Result<Known> {
    let reads = matches!(
        statement,
        ModelStatement::Show | ModelStatement::ShowCreate { .. } | ModelStatement::Describe { .. }
    );
    let nothing = Arc::new(Schema::empty());
    if !reads {
        return Ok((Kind::Definition, Arc::clone(&nothing), nothing));
    }
    let rows = session.context.execute(Statement::Model(statement.clone())).await?;
    Ok((Kind::Query, Arc::clone(rows.schema().inner()), nothing))
}

async fn of_sql(session: &Session, sql: &SqlStatement, names: &[String]) -> Result<Known> {
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
        _ => match names.is_empty() {
            true => analyzed(session, plan)?,
            // A value may be null, and then what is made of it.
            false => nullable(&*analyzed(session, plan)?),
        },
    };
    Ok((kind, schema, Arc::new(Schema::new(parameters))))
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

/// As which type clients are asked for a value. JDBC has milliseconds, and its driver writes their
/// number whatever the unit of the parameter is; all others send units of their own.
fn asked_for(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Millisecond, zone.clone()),
        DataType::Time32(_) | DataType::Time64(_) => DataType::Time32(TimeUnit::Millisecond),
        other => other.clone(),
    }
}

/// A value in the unit of its parameter, because DataFusion compares no times of two units.
fn in_unit_of(value: ScalarValue, wanted: &DataType) -> Result<ScalarValue> {
    let found = value.data_type();
    if found != *wanted && asked_for(&found) == asked_for(wanted) && wanted.is_temporal() {
        return value.cast_to(wanted);
    }
    Ok(value)
}

/// `CAST(? AS type)` tells a type, which DataFusion does not take for the parameter's.
fn cast_types(plan: &LogicalPlan) -> HashMap<String, DataType> {
    let mut found = HashMap::new();
    let mut note = |expr: &LogicalExpr| {
        if let LogicalExpr::Cast(cast) = expr
            && let LogicalExpr::Placeholder(placeholder) = cast.expr.as_ref()
        {
            found.insert(placeholder.id.clone(), cast.field.data_type().clone());
        }
        Ok(TreeNodeRecursion::Continue)
    };
    // Nothing in it fails.
    let _ = plan.apply_with_subqueries(|node| node.apply_expressions(|expr| expr.apply(&mut note)));
    found
}

fn nullable(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
}

/// Gives all parameters the form `$1`, `$2`, … and says what they were called: `?` is the next one
/// each time.
fn number_parameters(statement: &mut Statement) -> Vec<String> {
    let mut names = vec![];
    for_each_parameter(statement, |name| {
        let number = match name.strip_prefix('$') {
            Some(known) => names.iter().position(|name| name == known),
            None => None,
        };
        let number = number.unwrap_or_else(|| {
            let bare = name.strip_prefix('$').map(str::to_owned);
            names.push(bare.unwrap_or_else(|| (names.len() + 1).to_string()));
            names.len() - 1
        });
        Value::Placeholder(format!("${}", number + 1))
    });
    in_numeric_order(statement, names)
}

/// `$2` is the second value, wherever it stands.
fn in_numeric_order(statement: &mut Statement, names: Vec<String>) -> Vec<String> {
    let numbers: Option<Vec<usize>> = names.iter().map(|name| name.parse().ok()).collect();
    let Some(numbers) = numbers.filter(|numbers| numbers.iter().all(|number| *number > 0)) else {
        return names;
    };
    for_each_parameter(statement, |name| {
        let at = name.strip_prefix('$').and_then(|at| at.parse::<usize>().ok()).unwrap_or(1);
        Value::Placeholder(format!("${}", numbers.get(at - 1).copied().unwrap_or(at)))
    });
    let most = numbers.into_iter().max().unwrap_or(0);
    (1..=most).map(|number| number.to_string()).collect()
}

fn for_each_parameter(statement: &mut Statement, mut change: impl FnMut(&str) -> Value) {
    let Statement::Sql(sql) = statement else { return };
    let parameters_of = |expr: &mut Expr| {
        if let Expr::Value(value) = expr
            && let Value::Placeholder(name) = &value.value
        {
            value.value = change(name);
        }
        ControlFlow::<()>::Continue(())
    };
    visit(sql, parameters_of);
}

fn visit(sql: &mut SqlStatement, change: impl FnMut(&mut Expr) -> ControlFlow<()>) {
    match sql {
        SqlStatement::Statement(statement) => {
            let _ = visit_expressions_mut(statement.as_mut(), change);
        }
        SqlStatement::Explain(explain) => visit(&mut explain.statement, change),
        _ => {}
    }
}

/// Writes simple values in place of their parameters, as literals of the parsed statement, so that
/// models know their types. All others stay parameters.
fn write_values(sql: &mut SqlStatement, values: &[ScalarValue]) {
    let written = |expr: &mut Expr| {
        if let Expr::Value(value) = expr
            && let Value::Placeholder(name) = &value.value
            && let Some(at) = name.strip_prefix('$').and_then(|at| at.parse::<usize>().ok())
            && let Some(literal) = values.get(at.wrapping_sub(1)).and_then(literal)
        {
            value.value = literal;
        }
        ControlFlow::<()>::Continue(())
    };
    if !values.is_empty() {
        visit(sql, written);
    }
}

fn literal(value: &ScalarValue) -> Option<Value> {
    if value.is_null() {
        return None;
    }
    let number = |text: String| Some(Value::Number(text, false));
    match value {
        ScalarValue::Utf8(Some(text))
        | ScalarValue::LargeUtf8(Some(text))
        | ScalarValue::Utf8View(Some(text)) => Some(Value::SingleQuotedString(text.clone())),
        ScalarValue::Boolean(Some(value)) => Some(Value::Boolean(*value)),
        // A number with a sign is an expression of its own, and the smallest has no positive twin.
        ScalarValue::Int8(Some(value)) if *value >= 0 => number(value.to_string()),
        ScalarValue::Int16(Some(value)) if *value >= 0 => number(value.to_string()),
        ScalarValue::Int32(Some(value)) if *value >= 0 => number(value.to_string()),
        ScalarValue::Int64(Some(value)) if *value >= 0 => number(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Catalog, ForebayContext};

    fn numbered(sql: &str) -> (String, Vec<String>) {
        let context = ForebayContext::builder().with_catalog(Catalog::in_memory()).build().unwrap();
        let mut statement = context.parse(sql).unwrap().remove(0);
        let names = number_parameters(&mut statement);
        let Statement::Sql(sql) = statement else { unreachable!("a statement of DataFusion") };
        (sql.to_string(), names)
    }

    #[test]
    fn parameters_are_numbered_however_they_are_written() {
        let cases = [
            ("SELECT ? + ?", "SELECT $1 + $2", vec!["1", "2"]),
            ("SELECT $2, $1, $2", "SELECT $2, $1, $2", vec!["1", "2"]),
            ("SELECT $3", "SELECT $3", vec!["1", "2", "3"]),
            ("SELECT $b, $a, $b", "SELECT $1, $2, $1", vec!["b", "a"]),
            ("SELECT '?', 1", "SELECT '?', 1", vec![]),
        ];
        for (sql, text, names) in cases {
            let names = names.into_iter().map(str::to_owned).collect();
            assert_eq!(numbered(sql), (text.to_owned(), names), "{sql}");
        }
    }
}
