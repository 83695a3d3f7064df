//! Runs a statement in a session with Forebay installed.

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, plan_datafusion_err, plan_err};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::logical_expr::{
    DdlStatement, LogicalPlan, Prepare, SetVariable, Statement as PlanStatement,
};
use datafusion::prelude::{DataFrame, SessionContext};
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::Value;
use forebay_udf::error::nearest_hint;
use forebay_udf::model::Catalog;

use super::job_statement::NEEDS_SERVER;
use super::on_models::execute_on_models;
use super::statement::Statement;
pub use super::statement::{parse_in, parse_one};
use crate::config::{checked_value, default_value};
use crate::optimizer::calls_model;

/// Parses and runs a text of exactly one statement.
///
/// # Errors
/// Syntax and planning errors, and those of statements that act at once, such as `CREATE MODEL`.
pub async fn sql(context: &SessionContext, text: &str) -> Result<DataFrame> {
    execute(context, parse_one(context, text)?).await
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
        // A server sees to them before.
        Statement::Job(_) => plan_err!("{NEEDS_SERVER}"),
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
    let analyzed = if calls_model(&input) {
        state.analyzer().execute_and_check(input, state.config_options(), |_, _| {}).ok()
    } else {
        None
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
