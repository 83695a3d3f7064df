//! `CREATE MODEL`: the package's declaration, checked and overridden by the statement's clauses.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, plan_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay_udf::ModelError;
use forebay_udf::model::{
    CatalogEntry, Described, HIDDEN_PREFIX, ModelDeclaration, Package, Precision, parse_location,
    parse_type, type_name,
};

use super::statement::CreateModel;

/// The entry that the statement asks for.
pub(super) async fn entry(statement: CreateModel, env: &Arc<RuntimeEnv>) -> Result<CatalogEntry> {
    let CreateModel {
        name, version, inputs, outputs, comment, location, options, temporary, ..
    } = statement;
    let (flink, options) = split_flink_options(&options);
    let Some(location) = location.as_deref().or(flink.path) else {
        return plan_err!(
            "CREATE MODEL {name}: where is its package? Add LOCATION 'folder or URL'"
        );
    };
    let location = parse_location(location)?;
    let described = Package::read(&location, asked_precision(&options)?, env).await?;
    let Described { manifest, content_hash, description } = described;
    let mut declaration = manifest.declaration(&name, location, content_hash);
    declaration.description = description;
    // All files, not the description alone: better now than when a query has begun.
    Box::pin(Package::fetch(declaration.pinned(), env)).await?;
    check_provider(&declaration, flink.provider)?;
    if let Some(version) = version {
        declaration.version = version;
    }
    let signature = &mut declaration.signature;
    signature.inputs = columns(&name, "INPUT", &signature.inputs, inputs)?;
    signature.outputs = columns(&name, "OUTPUT", &signature.outputs, outputs)?;
    let description = Some(manifest.description).filter(|text| !text.is_empty());
    let entry = CatalogEntry {
        declaration,
        options: Default::default(),
        comment: comment.or(description),
        license: manifest.license,
        source: manifest.source,
        temporary,
    };
    Ok(entry.with_options(&options)?)
}

/// Flink's spelling puts the runtime and the location among the options.
struct FlinkOptions<'a> {
    provider: Option<&'a str>,
    path: Option<&'a str>,
}

fn split_flink_options(options: &[(String, String)]) -> (FlinkOptions<'_>, Vec<(&str, &str)>) {
    let mut flink = FlinkOptions { provider: None, path: None };
    let mut rest = vec![];
    for (key, value) in options {
        match key.to_lowercase().as_str() {
            "provider" => flink.provider = Some(value),
            "path" => flink.path = Some(value),
            _ => rest.push((key.as_str(), value.as_str())),
        }
    }
    (flink, rest)
}

/// Chooses among the programs of a folder that holds several.
fn asked_precision(options: &[(&str, &str)]) -> Result<Option<Precision>> {
    let asked = options.iter().find(|(key, _)| key.trim().eq_ignore_ascii_case("precision"));
    Ok(asked.map(|(_, value)| value.parse()).transpose()?)
}

fn check_provider(model: &ModelDeclaration, provider: Option<&str>) -> Result<()> {
    match provider {
        Some(provider) if !provider.eq_ignore_ascii_case(model.runtime.name()) => plan_err!(
            "CREATE MODEL {}: provider '{provider}' does not run this package, which is for '{}'",
            model.name,
            model.runtime.name()
        ),
        _ => Ok(()),
    }
}

fn is_taken(fields: &[Field], name: &str) -> bool {
    fields.iter().any(|field| field.name() == name)
}

/// The package's columns under the statement's names, if their number and types agree.
fn columns(
    model: &str,
    clause: &str,
    package: &Fields,
    given: Option<Vec<(String, String)>>,
) -> Result<Fields> {
    let Some(given) = given else { return Ok(package.clone()) };
    let differs =
        |problem: String| Err(ModelError::Signature { name: model.to_owned(), problem }.into());
    if package.len() != given.len() {
        return differs(format!(
            "{clause} names {} column(s), its package has {}",
            given.len(),
            package.len()
        ));
    }
    let mut fields: Vec<Field> = vec![];
    for (package, (name, given)) in package.iter().zip(given) {
        let data_type: DataType = parse_type(&given)?;
        if data_type != *package.data_type() {
            return differs(format!(
                "{clause} ({name} {given}): its package has {} {}",
                package.name(),
                type_name(package.data_type())
            ));
        }
        if name.is_empty() || name.starts_with(HIDDEN_PREFIX) || is_taken(&fields, &name) {
            return differs(format!(
                "{clause} names a column '{name}'; expected a name of its own that does not begin \
                 with {HIDDEN_PREFIX}"
            ));
        }
        fields.push(Field::new(name, data_type, true));
    }
    Ok(fields.into())
}
