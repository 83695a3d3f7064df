//! `CREATE EXTERNAL TABLE … STORED AS DELTATABLE`: of a table that is there, or one that begins with it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::common::{Result, not_impl_err, plan_err};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::logical_expr::CreateExternalTable;
use forebay_engine::delta::{DeltaError, Log, Snapshot, stored_as};

use super::table::DeltaTable;
use crate::location;

/// What stands behind STORED AS, as DataFusion's users of Delta Lake know it.
const NAME: &str = "DELTATABLE";

/// What names of columns cannot have: they are names of columns in Parquet files, too.
const NOT_IN_NAMES: [char; 9] = [' ', ',', ';', '{', '}', '(', ')', '\n', '='];

/// Options with which a store is opened, by whoever opens it.
const OF_STORES: [&str; 2] = ["aws.", "gcp."];

/// Adds what makes tables of Delta Lake.
pub(crate) fn add_to(factories: &mut HashMap<String, Arc<dyn TableProviderFactory>>) {
    factories.insert(NAME.to_owned(), Arc::new(DeltaTables));
}

#[derive(Debug)]
struct DeltaTables;

#[async_trait]
impl TableProviderFactory for DeltaTables {
    async fn create(
        &self,
        session: &dyn Session,
        table: &CreateExternalTable,
    ) -> Result<Arc<dyn TableProvider>> {
        check(table)?;
        let folder = folder(&table.locations)?;
        let log = Log::new(session.runtime_env(), &folder)?;
        let wanted = wanted(table)?;
        if !log.exists().await? {
            let Some(schema) = &wanted else {
                return Err(DeltaError::NotATable { table: folder.to_string() }.into());
            };
            check_names(schema, &table.table_partition_cols)?;
            log.create(schema, &table.table_partition_cols).await?;
        }
        let snapshot = log.snapshot(None).await?;
        if let Some(wanted) = wanted {
            check_columns(&folder, &wanted, &snapshot)?;
        }
        let partitioned_by = snapshot.partitioned_by();
        if !table.table_partition_cols.is_empty() && table.table_partition_cols != partitioned_by {
            return plan_err!(
                "the Delta table '{folder}' is PARTITIONED BY ({}), not by ({}); leave it out, it is known",
                partitioned_by.join(", "),
                table.table_partition_cols.join(", ")
            );
        }
        Ok(Arc::new(DeltaTable::new(folder, &snapshot)))
    }
}

/// # Errors
/// If the statement says what a Delta table does not have.
fn check(table: &CreateExternalTable) -> Result<()> {
    let extra = [
        (table.unbounded, "UNBOUNDED"),
        (!table.order_exprs.is_empty(), "WITH ORDER"),
        (table.constraints.iter().next().is_some(), "PRIMARY KEY or UNIQUE"),
        (!table.column_defaults.is_empty(), "DEFAULT"),
    ];
    if let Some((_, word)) = extra.iter().find(|(is_there, _)| *is_there) {
        return not_impl_err!("a table STORED AS {NAME} has no {word}; leave it out");
    }
    let is_known = |key: &&String| !OF_STORES.iter().any(|prefix| key.starts_with(prefix));
    match table.options.keys().find(is_known) {
        Some(key) => plan_err!(
            "'{key}' is no option of a table STORED AS {NAME}, which has those of its store ('aws.…', 'gcp.…') \
             only"
        ),
        None => Ok(()),
    }
}

/// The folder, with a slash at its end.
fn folder(locations: &[String]) -> Result<ListingTableUrl> {
    let [location] = locations else {
        return plan_err!("a table STORED AS {NAME} is in one folder, found {}", locations.len());
    };
    let found = location::parse(location)?;
    if found.get_glob().is_some() {
        return plan_err!("'{location}' is a pattern; a table STORED AS {NAME} is one folder");
    }
    if found.prefix().as_ref().contains('%') {
        return plan_err!(
            "'{location}' has a '%' in its name, which readers of Delta logs take for a code; rename the folder"
        );
    }
    let mut url = found.get_url().clone();
    if !url.path().ends_with('/') {
        url.set_path(&format!("{}/", url.path()));
    }
    ListingTableUrl::try_new(url, None)
}

/// The columns that the statement names, as a table has them.
fn wanted(table: &CreateExternalTable) -> Result<Option<Schema>> {
    let fields = table.schema.as_arrow().fields();
    if fields.is_empty() {
        return Ok(None);
    }
    let fields: Vec<Field> = fields.iter().map(|field| stored_as(field)).collect::<Result<_>>()?;
    Ok(Some(Schema::new(fields)))
}

/// # Errors
/// If a new table cannot have such columns.
fn check_names(schema: &Schema, partitioned_by: &[String]) -> Result<()> {
    let fields = schema.fields();
    if let Some(field) = fields.iter().find(|field| field.name().contains(NOT_IN_NAMES)) {
        return plan_err!(
            "'{}' cannot be the name of a column of a Delta table: leave out spaces and ,;{{}}()=",
            field.name()
        );
    }
    for name in partitioned_by {
        match schema.field_with_name(name) {
            Ok(field) if field.data_type().is_nested() => {
                return plan_err!(
                    "PARTITIONED BY names '{name}', a {}, whose values are no names of folders",
                    field.data_type()
                );
            }
            Ok(_) => {}
            Err(_) => return plan_err!("PARTITIONED BY names '{name}', which is no column"),
        }
    }
    if partitioned_by.len() == fields.len() {
        return plan_err!("PARTITIONED BY names all columns, so that files would have none");
    }
    Ok(())
}

/// # Errors
/// If the table has other columns than the statement says.
fn check_columns(folder: &ListingTableUrl, wanted: &Schema, snapshot: &Snapshot) -> Result<()> {
    let found = snapshot.schema();
    // Items of lists have no name that anybody has given them.
    let is_same = |(a, b): (&Arc<Field>, &Arc<Field>)| {
        a.name() == b.name() && a.data_type().equals_datatype(b.data_type())
    };
    let (given, known) = (wanted.fields(), found.fields());
    if given.len() == known.len() && given.iter().zip(known).all(is_same) {
        return Ok(());
    }
    let list = |schema: &Schema| {
        let column = |field: &Arc<Field>| format!("{} {}", field.name(), field.data_type());
        schema.fields().iter().map(column).collect::<Vec<_>>().join(", ")
    };
    plan_err!(
        "the Delta table '{folder}' has the columns ({}), not ({}); leave them out, they are known",
        list(found),
        list(wanted)
    )
}
