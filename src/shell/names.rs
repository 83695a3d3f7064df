//! The names that completion offers, gathered before each prompt.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{AsArray, RecordBatch};
use datafusion::error::Result;
use forebay::ForebayContext;
use futures::TryStreamExt;

use super::Shell;
use super::server::Server;

const INFORMATION_SCHEMA: &str = "information_schema";

/// Tables whose columns are looked up; looking may read files.
const TABLES_MAX: usize = 1000;

/// What SQL can name at this moment.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Tables with their columns.
    pub(super) tables: BTreeMap<String, Vec<String>>,
    pub(super) models: Vec<String>,
    pub(super) functions: BTreeSet<String>,
    /// Keys that `SET` takes.
    pub(super) settings: Vec<String>,
}

impl Names {
    /// Whatever cannot be read is left out.
    pub(super) async fn gather(shell: &Shell) -> Self {
        let here = Self::here(&shell.context).await;
        match &shell.server {
            None => here,
            Some(server) => Self {
                tables: tables_there(server).await.unwrap_or_default(),
                models: models_there(server).await.unwrap_or_default(),
                ..here
            },
        }
    }

    async fn here(context: &ForebayContext) -> Self {
        let state = context.session().state();
        let mut functions: BTreeSet<String> = state.scalar_functions().keys().cloned().collect();
        functions.extend(state.aggregate_functions().keys().cloned());
        functions.extend(state.window_functions().keys().cloned());
        functions.extend(state.table_functions().keys().cloned());
        functions.insert(forebay_planner::sql::normalize::ML_PREDICT.to_owned());
        let models = context.catalog().list().unwrap_or_default();
        let settings = state.config().options().entries();
        Self {
            tables: tables(context).await,
            models: models.iter().map(|entry| entry.name().to_owned()).collect(),
            functions,
            settings: settings.into_iter().map(|entry| entry.key).collect(),
        }
    }
}

/// Tables of the default schema by name, others with their schema.
async fn tables(context: &ForebayContext) -> BTreeMap<String, Vec<String>> {
    let state = context.session().state();
    let defaults = state.config().options().catalog.clone();
    let mut tables = BTreeMap::new();
    let Some(catalog) = state.catalog_list().catalog(&defaults.default_catalog) else {
        return tables;
    };
    for schema_name in catalog.schema_names() {
        let schema = catalog.schema(&schema_name).filter(|_| schema_name != INFORMATION_SCHEMA);
        let Some(schema) = schema else { continue };
        for name in schema.table_names().into_iter().take(TABLES_MAX) {
            let Ok(Some(table)) = schema.table(&name).await else { continue };
            let columns = table.schema().fields().iter().map(|f| f.name().clone()).collect();
            let is_default = schema_name == defaults.default_schema;
            let name = if is_default { name } else { format!("{schema_name}.{name}") };
            tables.insert(name, columns);
        }
    }
    tables
}

const COLUMNS: &str = "SELECT table_name, column_name FROM information_schema.columns
    WHERE table_schema NOT IN ('information_schema', 'forebay')";

async fn tables_there(server: &Server) -> Result<BTreeMap<String, Vec<String>>> {
    let mut tables: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for [table, column] in texts(server, COLUMNS).await? {
        tables.entry(table).or_default().push(column);
    }
    Ok(tables)
}

async fn models_there(server: &Server) -> Result<Vec<String>> {
    let found = texts(server, "SELECT name FROM information_schema.models").await?;
    Ok(found.into_iter().map(|[name]| name).collect())
}

/// The rows of a query that gives texts.
async fn texts<const N: usize>(server: &Server, query: &str) -> Result<Vec<[String; N]>> {
    let batches: Vec<RecordBatch> = server.run(query).await?.rows.try_collect().await?;
    let mut rows = vec![];
    for batch in &batches {
        let columns: Vec<_> =
            batch.columns().iter().filter_map(|column| column.as_string_opt::<i32>()).collect();
        for row in 0..batch.num_rows() {
            let texts = columns.iter().map(|column| column.value(row).to_owned());
            rows.extend(<[String; N]>::try_from(texts.collect::<Vec<_>>()).ok());
        }
    }
    Ok(rows)
}
