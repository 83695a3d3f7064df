//! `forebay model`: packages and the catalog, without SQL.

mod export;
mod verify;

pub(crate) use verify::problems;

use std::path::PathBuf;

use arrow::util::pretty::pretty_format_batches;
use datafusion::error::Result;
use forebay::ForebayContext;
use forebay_planner::sql::statement::CreateModel;
use forebay_planner::sql::{ModelStatement, Statement};

use crate::args::model::{AddArgs, ModelCommand};
use crate::terminal::errors;

/// Runs one of the commands; returns the exit status.
pub(crate) async fn run(command: ModelCommand, catalog: Option<PathBuf>) -> i32 {
    match try_run(command, catalog).await {
        Ok(status) => status,
        Err(error) => {
            errors::print(&error);
            1
        }
    }
}

async fn try_run(command: ModelCommand, catalog: Option<PathBuf>) -> Result<i32> {
    let context = context(catalog)?;
    match command {
        ModelCommand::Export(args) => {
            let package = export::export(&args)?;
            if let Some(name) = args.add {
                let name = match name {
                    Some(name) => name,
                    None => export::sql_name(&package)?,
                };
                let location = package.display().to_string();
                add(&context, AddArgs::plain(name, location)).await?;
            }
        }
        ModelCommand::Add(args) => add(&context, args).await?,
        ModelCommand::List => print(&context, ModelStatement::Show).await?,
        ModelCommand::Show { name } => {
            print(&context, ModelStatement::Describe { name: folded(&name) }).await?;
        }
        ModelCommand::Verify { model } => return verify::verify(&context, &model).await,
        ModelCommand::Remove { name } => {
            let name = folded(&name);
            let drop = ModelStatement::Drop { name: name.clone(), if_exists: false };
            run_statement(&context, drop).await?;
            println!("removed model {name}; its package is still there");
        }
    }
    Ok(0)
}

/// The session of all commands that need no devices.
pub(crate) fn context(catalog: Option<PathBuf>) -> Result<ForebayContext> {
    let builder = ForebayContext::builder();
    match catalog {
        Some(folder) => builder.with_catalog_folder(folder)?.build(),
        None => builder.build(),
    }
}

impl AddArgs {
    /// What `export --add` and the demo ask for.
    pub(crate) fn plain(name: String, location: String) -> Self {
        let (options, version, comment) = (vec![], None, None);
        Self { name, location, replace: true, options, version, comment }
    }
}

/// Gives a package a name in the catalog, and says so.
pub(crate) async fn add(context: &ForebayContext, args: AddArgs) -> Result<()> {
    let name = folded(&args.name);
    let create = CreateModel {
        name: name.clone(),
        location: Some(args.location),
        or_replace: args.replace,
        options: args.options,
        version: args.version,
        comment: args.comment,
        ..CreateModel::default()
    };
    run_statement(context, ModelStatement::Create(Box::new(create))).await?;
    let model = context.catalog().get(&name)?.declaration;
    println!("added model {name}, version {}, from {}", model.version, model.location);
    Ok(())
}

async fn run_statement(context: &ForebayContext, statement: ModelStatement) -> Result<()> {
    context.execute(Statement::Model(statement)).await?.collect().await?;
    Ok(())
}

async fn print(context: &ForebayContext, statement: ModelStatement) -> Result<()> {
    let rows = context.execute(Statement::Model(statement)).await?.collect().await?;
    println!("{}", pretty_format_batches(&rows)?);
    Ok(())
}

/// As SQL reads a name: in lower case unless it is quoted.
fn folded(name: &str) -> String {
    match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => name.to_lowercase(),
    }
}
