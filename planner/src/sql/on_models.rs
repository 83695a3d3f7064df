//! Statements on models, run: they act at once.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::common::{Result, internal_datafusion_err, internal_err, plan_err};
use datafusion::logical_expr::LogicalPlanBuilder;
use datafusion::prelude::{DataFrame, SessionContext};
use forebay_udf::ModelError;
use forebay_udf::model::{Catalog, IfExists};

use super::statement::{Change, CreateModel, ModelStatement, Statement, parse_in};
use super::{create_model, models_table};
use crate::physical::{check_precision, programs};

/// Runs a statement on models.
///
/// # Errors
/// What is wrong with the statement, its package or the catalog's files.
pub(super) async fn execute_on_models(
    context: &SessionContext,
    statement: ModelStatement,
) -> Result<DataFrame> {
    let catalog = context.state_ref().read().config().get_extension::<Catalog>();
    let catalog = catalog
        .ok_or_else(|| internal_datafusion_err!("Forebay is not installed in this session"))?;
    match statement {
        ModelStatement::Create(statement) => create(context, &catalog, *statement).await?,
        ModelStatement::Alter { name, change } => alter(context, &catalog, &name, change).await?,
        ModelStatement::Drop { name, if_exists } => remove(&catalog, name, if_exists)?,
        ModelStatement::Show => return context.read_batch(models_table::models(&catalog)?),
        ModelStatement::Describe { name } => {
            let entry = catalog.get(&name)?;
            let programs = programs(context.state_ref().read().config(), &entry.declaration);
            return context.read_batch(models_table::describe(
                &entry,
                catalog.learned(),
                programs,
            )?);
        }
        ModelStatement::ShowCreate { name } => {
            let statement = models_table::create_statement(&catalog.get(&name)?);
            let column = |text: String| Arc::new(StringArray::from(vec![text])) as ArrayRef;
            let columns = [("name", column(name)), ("statement", column(statement))];
            return context.read_batch(RecordBatch::try_from_iter(columns)?);
        }
    }
    // What a definition returns.
    Ok(DataFrame::new(context.state(), LogicalPlanBuilder::empty(false).build()?))
}

async fn create(context: &SessionContext, catalog: &Catalog, statement: CreateModel) -> Result<()> {
    let if_exists = match (statement.or_replace, statement.if_not_exists) {
        (true, _) => IfExists::Replace,
        (_, true) => IfExists::Keep,
        _ => IfExists::Fail,
    };
    // Before the package is looked at, which may be gone by now.
    let is_there = catalog.get(&statement.name).is_ok();
    match if_exists {
        IfExists::Keep if is_there => return Ok(()),
        IfExists::Fail if is_there => {
            return Err(ModelError::ModelExists { name: statement.name }.into());
        }
        _ => {}
    }
    let entry = create_model::entry(statement, &context.runtime_env()).await?;
    check_precision(context.state_ref().read().config(), &entry.declaration)?;
    catalog.create(entry, if_exists)?;
    Ok(())
}

async fn alter(
    context: &SessionContext,
    catalog: &Catalog,
    name: &str,
    change: Change,
) -> Result<()> {
    match change {
        Change::Set(options) => {
            let changed = catalog.get(name)?.with_options(&options)?;
            check_precision(context.state_ref().read().config(), &changed.declaration)?;
            catalog.alter(name, &options)?;
        }
        Change::RenameTo(to) => catalog.rename(name, &to)?,
        Change::Reset(keys) => reset(context, catalog, name, keys.as_deref()).await?,
    }
    Ok(())
}

fn remove(catalog: &Catalog, name: String, if_exists: bool) -> Result<()> {
    if catalog.remove(&name)? || if_exists {
        return Ok(());
    }
    let unknown = catalog.get(&name).err();
    Err(unknown.unwrap_or(ModelError::UnknownModel { name, hint: String::new() }).into())
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
        return internal_err!("what SHOW CREATE MODEL {name} says is not a CREATE MODEL");
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
