//! The models as rows: `information_schema.models`, `SHOW MODELS`, `DESCRIBE MODEL`.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::common::Result;
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::ObjectName;
use forebay_udf::model::{
    Catalog, CatalogEntry, Compiled, Learned, ModelDeclaration, ModelOptions, RuntimeKind,
    TransformKind, type_name,
};

const SCHEMA: &str = "information_schema";
const TABLE: &str = "models";

/// Whether a table factor names `information_schema.models`, in whatever catalog.
pub(super) fn is_models_table(name: &ObjectName) -> bool {
    let parts: Vec<String> = name
        .0
        .iter()
        .filter_map(|part| part.as_ident().map(|ident| ident.value.to_lowercase()))
        .collect();
    let wanted = [SCHEMA, TABLE];
    parts.len() >= 2 && parts[parts.len() - 2..] == wanted
}

/// A scan over the models there are now.
pub(super) fn scan(catalog: &Catalog) -> Result<LogicalPlan> {
    let batch = models(catalog)?;
    let table = MemTable::try_new(batch.schema(), vec![vec![batch]])?;
    let source = provider_as_source(Arc::new(table));
    LogicalPlanBuilder::scan(format!("{SCHEMA}.{TABLE}"), source, None)?.build()
}

/// One row per model: `SHOW MODELS`.
///
/// # Errors
/// If the catalog's folder cannot be read.
pub fn models(catalog: &Catalog) -> Result<RecordBatch> {
    let entries = catalog.list()?;
    let column = |text: fn(&CatalogEntry) -> Option<String>| -> ArrayRef {
        Arc::new(entries.iter().map(text).collect::<StringArray>())
    };
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("name", column(|e| Some(e.declaration.name.clone())), false),
        ("version", column(|e| Some(e.declaration.version.clone())), false),
        ("inputs", column(|e| Some(columns(&e.declaration.signature.inputs))), false),
        ("outputs", column(|e| Some(columns(&e.declaration.signature.outputs))), false),
        ("resources", column(|e| Some(e.declaration.resources_text())), false),
        ("runtime", column(|e| Some(e.declaration.runtime.name().to_owned())), false),
        ("location", column(|e| Some(e.declaration.location.to_string())), false),
        ("comment", column(|e| e.comment.clone()), true),
    ])?)
}

/// One row per input, output, resource, option, precision, prompt and program of one model, by device the `program`
/// that it takes, and what running it has taught.
pub(super) fn describe(
    entry: &CatalogEntry,
    learned: &Learned,
    programs: Vec<(String, String)>,
) -> Result<RecordBatch> {
    let model = &entry.declaration;
    let mut rows: Vec<Row> = vec![];
    let mut add = |kind, name: &str, value: String| rows.push((kind, name.to_owned(), value));
    for field in &model.signature.inputs {
        add("input", field.name(), type_name(field.data_type()));
    }
    for field in &model.signature.outputs {
        add("output", field.name(), type_name(field.data_type()));
    }
    add("resource", "cpus", model.resources.cpus.to_string());
    add("resource", "gpus", model.resources.gpus.to_string());
    add("resource", "memory", bytes(model.resources.memory));
    add("resource", "gpu_memory", bytes(model.resources.gpu_memory));
    for (key, _, _) in ModelOptions::KEYS {
        if let Some(value) = option_value(entry, key) {
            add("option", key, value);
        }
    }
    for (name, off) in model.precisions.iter().flatten() {
        add("precision", name, format!("differs from fp32 by {:.1e}", off.0));
    }
    for (name, quality) in &model.quality {
        add("precision", name, quality.to_string());
    }
    for (name, text) in &model.prompts {
        add("prompt", name, text.clone());
    }
    add("package", "version", model.version.clone());
    add("package", "runtime", model.runtime.name().to_owned());
    if let RuntimeKind::Onnx { program, .. } | RuntimeKind::Aoti { program, .. } = &model.runtime {
        add("package", "program", program.clone());
    }
    add("package", "location", model.location.to_string());
    add("package", "content_hash", model.content_hash.clone());
    add("package", "license", entry.license.clone().unwrap_or_else(|| "not stated".to_owned()));
    add("package", "source", entry.source.clone().unwrap_or_else(|| "not stated".to_owned()));
    rows.extend(learned_rows(model, learned));
    rows.extend(program_rows(model, programs));
    let column = |text: fn(&Row) -> String| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(text(row))).collect::<StringArray>())
    };
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("kind", column(|row| row.0.to_owned()), false),
        ("name", column(|row| row.1.clone()), false),
        ("value", column(|row| row.2.clone()), false),
    ])?)
}

/// Kind, name and value.
type Row = (&'static str, String, String);

/// The native code of the package, then which program each device takes.
fn program_rows(model: &ModelDeclaration, programs: Vec<(String, String)>) -> Vec<Row> {
    let compiled = match &model.runtime {
        RuntimeKind::Aoti { compiled, .. } => compiled.as_slice(),
        _ => &[],
    };
    let code = compiled.iter().map(|one| {
        let Compiled { program, architecture, precision, torch } = one;
        let about = format!("native code for {architecture} in {precision}, of torch {torch}");
        ("program", program.clone(), about)
    });
    let taken =
        programs.into_iter().map(|(device, program)| ("program", format!("on {device}"), program));
    code.chain(taken).collect()
}

/// What running a model has taught, by type of device.
fn learned_rows(model: &ModelDeclaration, learned: &Learned) -> Vec<Row> {
    let unit = match model.transform {
        TransformKind::Tokenize { .. } => "tokens",
        TransformKind::Tensor | TransformKind::Image { .. } => "rows",
    };
    let mut rows = vec![];
    for (device, lesson) in learned.all(model) {
        let mut add = |kind, name: &str, value: String| {
            rows.push((kind, format!("{name} on {device}"), value))
        };
        if let Some(rate) = lesson.rows_per_second {
            add("measured", "rows_per_second", format!("{rate:.1}"));
        }
        if let Some(max) = lesson.padded_max {
            add("learned", &format!("max_batch_{unit}"), max.to_string());
        }
        if let Some(size) = lesson.batch_size {
            let value = match lesson.batch_rate {
                Some(rate) => format!("{size}, at {rate:.0} {unit} per second"),
                None => format!("{size}, larger ones are tried as memory permits"),
            };
            add("learned", &format!("batch_{unit}"), value);
        }
    }
    rows
}

/// What is in force for an option that is not listed as a resource; `None` if it is unset.
fn option_value(entry: &CatalogEntry, key: &str) -> Option<String> {
    let model = &entry.declaration;
    match key {
        "device" => Some(model.device.to_string()),
        "max_replicas" => model.max_replicas.map(|n| n.to_string()),
        "max_batch_rows" => Some(model.batch.max_rows.to_string()),
        "max_batch_tokens" => model.batch.max_tokens.map(|n| n.to_string()),
        "max_batch_bytes" => model.batch.max_bytes.map(bytes),
        "batch_window_rows" => Some(model.batch.window_rows.to_string()),
        "precision" => Some(model.precision.to_string()),
        "allow_native" => model.allow_native.map(|allowed| allowed.to_string()),
        "determinism" => Some(model.determinism.to_string()),
        "on_error" => Some(model.on_error.to_string()),
        "max_error_ratio" => Some(model.max_error_ratio.to_string()),
        "prompt" => model.prompt.clone(),
        "output_prefix" => Some(model.output_prefix.clone()).filter(|prefix| !prefix.is_empty()),
        _ => None,
    }
}

/// `CREATE MODEL …` that makes this entry again.
pub(super) fn create_statement(entry: &CatalogEntry) -> String {
    let model = &entry.declaration;
    let mut sql = format!(
        "CREATE {}MODEL {}\n  VERSION {}\n  INPUT ({})\n  OUTPUT ({})",
        if entry.temporary { "TEMPORARY " } else { "" },
        identifier(&model.name),
        string(&model.version),
        columns(&model.signature.inputs),
        columns(&model.signature.outputs),
    );
    if let Some(comment) = &entry.comment {
        sql += &format!("\n  COMMENT {}", string(comment));
    }
    sql += &format!("\n  LOCATION {}", string(model.location.as_str()));
    if !entry.options.is_empty() {
        let pairs = entry.options.iter().map(|(k, v)| format!("{} = {}", string(k), string(v)));
        sql += &format!("\n  WITH ({})", pairs.collect::<Vec<_>>().join(", "));
    }
    sql
}

fn columns(fields: &arrow::datatypes::Fields) -> String {
    let column = |f: &arrow::datatypes::FieldRef| {
        format!("{} {}", identifier(f.name()), type_name(f.data_type()))
    };
    fields.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// Quoted if SQL would read it differently otherwise.
fn identifier(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

fn string(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn bytes(size: u64) -> String {
    bytesize::ByteSize(size).to_string()
}
