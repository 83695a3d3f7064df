//! The names that completion offers, gathered before each prompt.

use std::collections::{BTreeMap, BTreeSet};

use forebay::ForebayContext;

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
    pub(super) async fn gather(context: &ForebayContext) -> Self {
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
