//! What clients ask about the server: catalogs, schemas, tables, keys and types.

use std::sync::{Arc, LazyLock};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow_flight::sql::metadata::{XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder};
use arrow_flight::sql::{
    CommandGetCatalogs, CommandGetDbSchemas, CommandGetTableTypes, CommandGetTables, Nullable,
    Searchable, XdbcDataType,
};
use datafusion::catalog::SchemaProvider;
use datafusion::catalog::information_schema::INFORMATION_SCHEMA;
use datafusion::common::{Result, TableReference};
use datafusion::datasource::TableType;
use datafusion::prelude::SessionContext;

/// What kinds of tables there are.
const TABLE_TYPES: [(TableType, &str); 3] = [
    (TableType::Base, "TABLE"),
    (TableType::View, "VIEW"),
    (TableType::Temporary, "LOCAL TEMPORARY"),
];

/// Flight SQL's names for what JDBC wants to know of a column of decimals.
const PRECISION: &str = "ARROW:FLIGHT:SQL:PRECISION";
const SCALE: &str = "ARROW:FLIGHT:SQL:SCALE";

/// Columns with what clients do not read from their types.
pub(in crate::flight) fn described(schema: &SchemaRef) -> SchemaRef {
    if !schema.fields().iter().any(|field| field.data_type().is_decimal()) {
        return Arc::clone(schema);
    }
    let fields = schema.fields().iter().map(|field| {
        let (precision, scale) = match field.data_type() {
            DataType::Decimal32(precision, scale)
            | DataType::Decimal64(precision, scale)
            | DataType::Decimal128(precision, scale)
            | DataType::Decimal256(precision, scale) => (precision, scale),
            _ => return Arc::clone(field),
        };
        let mut metadata = field.metadata().clone();
        metadata.insert(PRECISION.to_owned(), precision.to_string());
        metadata.insert(SCALE.to_owned(), scale.to_string());
        Arc::new(field.as_ref().clone().with_metadata(metadata))
    });
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
}

pub(in crate::flight) fn catalogs(
    context: &SessionContext,
    command: CommandGetCatalogs,
) -> Result<RecordBatch> {
    let mut rows = command.into_builder();
    context.catalog_names().into_iter().for_each(|name| rows.append(name));
    Ok(rows.build().map_err(flight)?)
}

pub(in crate::flight) fn schemas(
    context: &SessionContext,
    command: CommandGetDbSchemas,
) -> Result<RecordBatch> {
    let mut rows = command.into_builder();
    for (catalog, schema) in schema_names(context) {
        rows.append(catalog, schema);
    }
    Ok(rows.build().map_err(flight)?)
}

fn schema_names(context: &SessionContext) -> Vec<(String, String)> {
    let of = |name: String| {
        let mut schemas =
            context.catalog(&name).map(|found| found.schema_names()).unwrap_or_default();
        // Of every catalog, and in no catalog's list.
        schemas.push(INFORMATION_SCHEMA.to_owned());
        schemas.into_iter().map(move |schema| (name.clone(), schema))
    };
    context.catalog_names().into_iter().flat_map(of).collect()
}

fn schema_of(
    context: &SessionContext,
    catalog: &str,
    schema: &str,
) -> Option<Arc<dyn SchemaProvider>> {
    let table = TableReference::full(catalog, schema, "");
    context.state().schema_for_ref(table).ok()
}

/// Tables whose columns cannot be had (their files are gone) are listed without columns.
pub(in crate::flight) async fn tables(
    context: &SessionContext,
    command: CommandGetTables,
) -> Result<RecordBatch> {
    let mut rows = command.into_builder();
    for (catalog, schema) in schema_names(context) {
        let Some(found) = schema_of(context, &catalog, &schema) else { continue };
        for name in found.table_names() {
            let Ok(Some(table)) = found.table(&name).await else {
                let nothing = Schema::empty();
                rows.append(&catalog, &schema, &name, "TABLE", &nothing).map_err(flight)?;
                continue;
            };
            let kind = table.table_type();
            let kind = TABLE_TYPES.iter().find(|(known, _)| *known == kind);
            let kind = kind.map_or("TABLE", |(_, kind)| *kind);
            rows.append(&catalog, &schema, &name, kind, &table.schema()).map_err(flight)?;
        }
    }
    Ok(rows.build().map_err(flight)?)
}

pub(in crate::flight) fn table_types(command: CommandGetTableTypes) -> Result<RecordBatch> {
    let mut rows = command.into_builder();
    TABLE_TYPES.iter().for_each(|(_, name)| rows.append(name));
    Ok(rows.build().map_err(flight)?)
}

fn flight(error: arrow_flight::error::FlightError) -> arrow::error::ArrowError {
    arrow::error::ArrowError::ExternalError(Box::new(error))
}

/// The columns of what lists primary keys. No table has one.
pub(in crate::flight) fn primary_keys() -> SchemaRef {
    let text = |name: &str, nullable| Field::new(name, DataType::Utf8, nullable);
    Arc::new(Schema::new(vec![
        text("catalog_name", true),
        text("db_schema_name", true),
        text("table_name", false),
        text("column_name", false),
        text("key_name", true),
        Field::new("key_sequence", DataType::Int32, false),
    ]))
}

/// The columns of what lists foreign keys. No table has one.
pub(in crate::flight) fn foreign_keys() -> SchemaRef {
    let text = |name: &str, nullable| Field::new(name, DataType::Utf8, nullable);
    Arc::new(Schema::new(vec![
        text("pk_catalog_name", true),
        text("pk_db_schema_name", true),
        text("pk_table_name", false),
        text("pk_column_name", false),
        text("fk_catalog_name", true),
        text("fk_db_schema_name", true),
        text("fk_table_name", false),
        text("fk_column_name", false),
        Field::new("key_sequence", DataType::Int32, false),
        text("fk_key_name", true),
        text("pk_key_name", true),
        Field::new("update_rule", DataType::UInt8, false),
        Field::new("delete_rule", DataType::UInt8, false),
    ]))
}

/// The types of columns, as JDBC and ODBC number them.
pub(in crate::flight) static TYPES: LazyLock<Option<XdbcTypeInfoData>> = LazyLock::new(|| {
    use XdbcDataType::*;
    let mut types = XdbcTypeInfoDataBuilder::new();
    let numbers = [
        ("TINYINT", XdbcTinyint, 3),
        ("SMALLINT", XdbcSmallint, 5),
        ("INTEGER", XdbcInteger, 10),
        ("BIGINT", XdbcBigint, 19),
        ("REAL", XdbcReal, 7),
        ("DOUBLE", XdbcDouble, 15),
        ("DECIMAL", XdbcDecimal, 76),
    ];
    for (name, data_type, digits) in numbers {
        types.append(XdbcTypeInfo {
            unsigned_attribute: Some(false),
            num_prec_radix: Some(10),
            fixed_prec_scale: data_type == XdbcDecimal,
            ..type_info(name, data_type, digits)
        });
    }
    let quoted = [
        ("VARCHAR", XdbcVarchar, i32::MAX),
        ("DATE", XdbcDate, 10),
        ("TIME", XdbcTime, 18),
        ("TIMESTAMP", XdbcTimestamp, 29),
    ];
    for (name, data_type, size) in quoted {
        let quote = Some("'".to_owned());
        types.append(XdbcTypeInfo {
            literal_prefix: quote.clone(),
            literal_suffix: quote,
            case_sensitive: data_type == XdbcVarchar,
            ..type_info(name, data_type, size)
        });
    }
    types.append(type_info("BOOLEAN", XdbcBit, 1));
    types.append(XdbcTypeInfo {
        literal_prefix: Some("X'".to_owned()),
        literal_suffix: Some("'".to_owned()),
        ..type_info("BYTEA", XdbcVarbinary, i32::MAX)
    });
    types.build().inspect_err(|error| tracing::error!("the types of columns: {error}")).ok()
});

fn type_info(name: &str, data_type: XdbcDataType, size: i32) -> XdbcTypeInfo {
    XdbcTypeInfo {
        type_name: name.to_owned(),
        local_type_name: Some(name.to_owned()),
        data_type,
        sql_data_type: data_type,
        column_size: Some(size),
        nullable: Nullable::NullabilityNullable,
        searchable: Searchable::Full,
        auto_increment: Some(false),
        ..XdbcTypeInfo::default()
    }
}
