//! Runs a statement in a session with Forebay installed.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::common::{
    DataFusionError, Result, internal_datafusion_err, internal_err, plan_datafusion_err, plan_err,
};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::logical_expr::{
    DdlStatement, LogicalPlan, LogicalPlanBuilder, Prepare, SetVariable, Statement as PlanStatement,
};
use datafusion::prelude::{DataFrame, SessionContext};
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::Value;
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use forebay_udf::ModelError;
use forebay_udf::error::nearest_hint;
use forebay_udf::model::{Catalog, IfExists};

use super::statement::{Change, ModelStatement, Statement, parse};
use super::{create_model, models_table};
use crate::config::{checked_value, default_value};
use crate::optimizer::calls_model;
use crate::physical::check_precision;

/// Parses and runs a text of exactly one statement.
///
/// # Errors
/// Syntax and planning errors, and those of statements that act at once, such as `CREATE MODEL`.
pub async fn sql(context: &SessionContext, text: &str) -> Result<DataFrame> {
    execute(context, parse_one(context, text)?).await
}

/// Parses a text of exactly one statement.
///
/// # Errors
/// Syntax errors.
pub fn parse_one(context: &SessionContext, text: &str) -> Result<Statement> {
    let mut statements = parse_in(context, text)?;
    match (statements.pop(), statements.len()) {
        (Some(statement), 0) => Ok(statement),
        (None, _) => plan_err!("the text holds no statement"),
        (_, more) => plan_err!("expected one statement, found {}", more + 1),
    }
}

/// Parses a text in the session's dialect.
///
/// # Errors
/// Syntax errors.
pub fn parse_in(context: &SessionContext, text: &str) -> Result<Vec<Statement>> {
    let state = context.state_ref();
    let state = state.read();
    let options = &state.config().options().sql_parser;
    let dialect = dialect_from_str(options.dialect)
        .ok_or_else(|| plan_datafusion_err!("unknown SQL dialect '{}'", options.dialect))?;
    parse(text, dialect.as_ref(), options.recursion_limit.get())
}

/// The text of a statement, as the parser understood it: an extension of the configuration with
/// which its query runs, for whoever shows what runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementText(pub String);

impl StatementText {
    /// Of this statement, without the values of its options: those of a store are its keys.
    pub fn of(statement: &SqlStatement) -> Self {
        match statement {
            SqlStatement::CopyTo(_) | SqlStatement::Explain(_) => {
                let mut statement = statement.clone();
                hide_options(&mut statement);
                Self(statement.to_string())
            }
            statement => Self(statement.to_string()),
        }
    }
}

fn hide_options(statement: &mut SqlStatement) {
    match statement {
        SqlStatement::CopyTo(copy) => {
            let values = copy.options.iter_mut().map(|(_, value)| value);
            values.for_each(|value| *value = Value::Placeholder("…".to_owned()));
        }
        SqlStatement::Explain(explain) => hide_options(&mut explain.statement),
        _ => {}
    }
}

/// Runs one statement: definitions at once, queries when the result is read.
///
/// # Errors
/// As [`sql`].
pub async fn execute(context: &SessionContext, statement: Statement) -> Result<DataFrame> {
    match statement {
        Statement::Sql(statement) => {
            let text = StatementText::of(&statement);
            let plan = plan(context, *statement).await?;
            execute_plan(context, plan, text).await
        }
        Statement::Model(statement) => execute_on_models(context, statement).await,
    }
}

/// Plans a statement of DataFusion's, and runs nothing.
///
/// # Errors
/// Planning errors.
pub async fn plan(context: &SessionContext, statement: SqlStatement) -> Result<LogicalPlan> {
    let plan = context.state().statement_to_plan(statement).await;
    plan.map_err(|error| explained(context, error))
}

/// Runs a plan of [`plan`]: definitions at once, queries when the result is read.
///
/// # Errors
/// As [`sql`].
pub async fn execute_plan(
    context: &SessionContext,
    plan: LogicalPlan,
    text: StatementText,
) -> Result<DataFrame> {
    check_places(context, &plan)?;
    let plan = with_lifted_calls(context, with_checked_option(plan)?);
    let rows = context.execute_logical_plan(plan).await?;
    let (mut state, plan) = rows.into_parts();
    state.config_mut().set_extension(Arc::new(text));
    Ok(DataFrame::new(state, plan))
}

/// Refuses tables and copies of places that there are not. DataFusion makes a table without looking if
/// it knows the columns, and drops what it takes for the query of a URL.
fn check_places(context: &SessionContext, plan: &LogicalPlan) -> Result<()> {
    let places = match plan {
        LogicalPlan::Ddl(DdlStatement::CreateExternalTable(table)) => {
            let kind = table.file_type.to_lowercase();
            let is_of_files = context.state().get_file_format_factory(&kind).is_some();
            if is_of_files { table.locations.as_slice() } else { &[] }
        }
        LogicalPlan::Copy(copy) => std::slice::from_ref(&copy.output_url),
        _ => return Ok(()),
    };
    for place in places.iter().filter(|place| place.contains("://")) {
        if place.contains(['*', '?', '#']) {
            return plan_err!(
                "'{place}': what a table or a copy names by URL is one file or folder, without a pattern \
                 or a query; in a key write %2A, %3F and %23 for *, ? and #"
            );
        }
        context.runtime_env().object_store(ListingTableUrl::parse(place)?)?;
    }
    Ok(())
}

/// `SET forebay.…` with a value that is known to fit. `RESET forebay.…` sets the default, since
/// DataFusion resets only the options that are its own.
fn with_checked_option(plan: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Statement(statement) = &plan else { return Ok(plan) };
    let (variable, value) = match statement {
        PlanStatement::SetVariable(set) => (set.variable.to_lowercase(), Some(&set.value)),
        PlanStatement::ResetVariable(reset) => (reset.variable.to_lowercase(), None),
        _ => return Ok(plan),
    };
    let Some(key) = variable.strip_prefix("forebay.") else { return Ok(plan) };
    let value = match value {
        Some(value) => checked_value(key, value)?,
        None => default_value(key)?,
    };
    Ok(LogicalPlan::Statement(PlanStatement::SetVariable(SetVariable { variable, value })))
}

/// `PREPARE` of a query with calls, analyzed: DataFusion optimizes a prepared query before it analyzes
/// it, and moves conditions to where a call's rows are no longer known for those of the query around it.
/// A query that cannot be analyzed before its parameters are known stays as it is.
fn with_lifted_calls(context: &SessionContext, plan: LogicalPlan) -> LogicalPlan {
    let LogicalPlan::Statement(PlanStatement::Prepare(prepare)) = &plan else { return plan };
    let state = context.state();
    let input = LogicalPlan::clone(&prepare.input);
    let analyzed = match calls_model(&input) {
        true => state.analyzer().execute_and_check(input, state.config_options(), |_, _| {}).ok(),
        false => None,
    };
    match analyzed {
        Some(input) => {
            let prepare = Prepare { input: Arc::new(input), ..prepare.clone() };
            LogicalPlan::Statement(PlanStatement::Prepare(prepare))
        }
        None => plan,
    }
}

/// Adds to DataFusion's messages what we know better: the nearest table, and how models are named.
fn explained(context: &SessionContext, error: DataFusionError) -> DataFusionError {
    let message = match error.find_root() {
        DataFusionError::Plan(message) if message.starts_with("table '") => message.clone(),
        DataFusionError::Plan(message)
            if message.contains("'ml_predict' does not support named arguments") =>
        {
            return plan_datafusion_err!(
                "ml_predict: named arguments are for FROM; in an expression write options as MAP \
                 {{'gpus': '0.5'}} behind the inputs"
            );
        }
        _ => return error,
    };
    let missing = message.split('\'').nth(1).and_then(|name| name.rsplit('.').next());
    let catalog = context.state_ref().read().config().get_extension::<Catalog>();
    if let (Some(name), Some(catalog)) = (missing, catalog)
        && catalog.get(name).is_ok()
    {
        return plan_datafusion_err!(
            "{message}; {name} is a model: write FROM ml_predict(TABLE t, MODEL {name}, …), or FROM t \
             CROSS JOIN LATERAL ml_predict(MODEL {name}, t.column)"
        );
    }
    let names: Vec<String> = (context.catalog_names().iter())
        .filter_map(|name| context.catalog(name))
        .flat_map(|catalog| {
            let schemas =
                catalog.schema_names().into_iter().filter_map(move |s| catalog.schema(&s));
            schemas.flat_map(|schema| schema.table_names()).collect::<Vec<_>>()
        })
        .collect();
    let hint = nearest_hint(missing.unwrap_or_default(), names.iter().map(String::as_str));
    DataFusionError::Plan(format!("{message}{hint}"))
}

/// What a definition returns.
fn no_rows(context: &SessionContext) -> Result<DataFrame> {
    Ok(DataFrame::new(context.state(), LogicalPlanBuilder::empty(false).build()?))
}

/// The model as if these options had not been given, or none of them. Its package is the one that it was made
/// of, or nothing changes.
async fn reset(
    context: &SessionContext,
    catalog: &Catalog,
    name: &str,
    keys: Option<&[String]>,
) -> Result<()> {
    let mut entry = catalog.get(name)?;
    for key in keys.unwrap_or_default() {
        if entry.options.remove(&key.trim().to_lowercase()).is_none() {
            let given: Vec<&str> = entry.options.keys().map(String::as_str).collect();
            return plan_err!(
                "ALTER MODEL {name} RESET: '{key}' was not set; its options that were are [{}]",
                given.join(", ")
            );
        }
    }
    if keys.is_none() {
        entry.options.clear();
    }
    let created = parse_in(context, &models_table::create_statement(&entry))?.pop();
    let Some(Statement::Model(ModelStatement::Create(create))) = created else {
        return internal_err!("what SHOW CREATE MODEL {name} says is no CREATE MODEL");
    };
    let renewed = create_model::entry(*create, &context.runtime_env()).await?;
    let (found, expected) = (&renewed.declaration, &entry.declaration);
    if found.content_hash != expected.content_hash {
        return plan_err!(
            "ALTER MODEL {name} RESET: the package at {} is not the one that the model was made of; \
             CREATE OR REPLACE MODEL takes it as it is now",
            expected.location
        );
    }
    catalog.create(renewed, IfExists::Replace)?;
    Ok(())
}

async fn execute_on_models(
    context: &SessionContext,
    statement: ModelStatement,
) -> Result<DataFrame> {
    let catalog = context.state_ref().read().config().get_extension::<Catalog>();
    let catalog = catalog
        .ok_or_else(|| internal_datafusion_err!("Forebay is not installed in this session"))?;
    match statement {
        ModelStatement::Create(create) => {
            let if_exists = match (create.or_replace, create.if_not_exists) {
                (true, _) => IfExists::Replace,
                (_, true) => IfExists::Keep,
                _ => IfExists::Fail,
            };
            // Before the package is looked at, which may be gone by now.
            let is_there = catalog.get(&create.name).is_ok();
            match if_exists {
                IfExists::Keep if is_there => return no_rows(context),
                IfExists::Fail if is_there => {
                    return Err(ModelError::ModelExists { name: create.name }.into());
                }
                _ => {}
            }
            let entry = create_model::entry(*create, &context.runtime_env()).await?;
            check_precision(context.state_ref().read().config(), &entry.declaration)?;
            catalog.create(entry, if_exists)?;
            no_rows(context)
        }
        ModelStatement::Alter { name, change } => {
            match change {
                Change::Set(options) => {
                    let changed = catalog.get(&name)?.with_options(&options)?;
                    check_precision(context.state_ref().read().config(), &changed.declaration)?;
                    catalog.alter(&name, &options)?;
                }
                Change::RenameTo(to) => catalog.rename(&name, &to)?,
                Change::Reset(keys) => reset(context, &catalog, &name, keys.as_deref()).await?,
            }
            no_rows(context)
        }
        ModelStatement::Drop { name, if_exists } => {
            if !catalog.remove(&name)? && !if_exists {
                let unknown = catalog
                    .get(&name)
                    .err()
                    .unwrap_or(ModelError::UnknownModel { name, hint: String::new() });
                return Err(unknown.into());
            }
            no_rows(context)
        }
        ModelStatement::Show => context.read_batch(models_table::models(&catalog)?),
        ModelStatement::Describe { name } => {
            context.read_batch(models_table::describe(&catalog.get(&name)?, catalog.learned())?)
        }
        ModelStatement::ShowCreate { name } => {
            let statement = models_table::create_statement(&catalog.get(&name)?);
            let column = |text: String| Arc::new(StringArray::from(vec![text])) as ArrayRef;
            context.read_batch(RecordBatch::try_from_iter([
                ("name", column(name)),
                ("statement", column(statement)),
            ])?)
        }
    }
}
