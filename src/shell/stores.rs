//! Object stores that statements name by URL: registered before the statement runs, by
//! datafusion-cli's builders, with credentials from its `OPTIONS` or from the environment.

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::config::ExtensionOptions;
use datafusion::common::plan_err;
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::{DataFrame, SessionContext};
use datafusion::sql::parser::{CopyToSource, CopyToStatement, Statement as SqlStatement};
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, TableFactor, Value, Visit, Visitor,
};
use datafusion_cli::catalog::DynamicObjectStoreCatalog;
use datafusion_cli::cli_context::CliSessionContext;
use datafusion_cli::object_storage::{
    AwsOptions, GcpOptions, get_cos_object_store_builder, get_gcs_object_store_builder,
    get_oss_object_store_builder, get_s3_object_store_builder,
};
use forebay::ForebayContext;
use forebay_planner::sql::statement::{ModelStatement, Statement};
use object_store::aws::AwsCredential;
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore, StaticCredentialProvider};
use url::Url;

/// How the region of an S3 bucket is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Region {
    AsConfigured,
    /// By asking the bucket; slow.
    Detected,
}

/// A URL in a statement, with the options beside it.
struct Location {
    url: Url,
    options: Vec<(String, String)>,
}

/// Lets queries read `'s3://…'` in FROM without `CREATE EXTERNAL TABLE`.
pub(super) fn open_on_demand(session: &SessionContext) {
    let catalogs = Arc::clone(session.state().catalog_list());
    let catalogs = DynamicObjectStoreCatalog::new(catalogs, session.state_weak_ref());
    session.register_catalog_list(Arc::new(catalogs));
}

/// Runs a statement once the stores that it names are registered.
///
/// # Errors
/// Those of the statement, and of stores that cannot be opened.
pub(crate) async fn execute(context: &ForebayContext, statement: Statement) -> Result<DataFrame> {
    let session = context.session();
    for url in read_by_calls(&statement) {
        let registry = &session.runtime_env().object_store_registry;
        // Those of a table before it have its options.
        if is_remote(&url) && registry.get_store(&url).is_err() {
            open_url(context, &url).await?;
        } else if !is_remote(&url) && url.scheme() != "file" {
            return plan_err!(
                "{url}: files cannot be read by '{}'; known are s3, oss, cos, gs, http, https and file",
                url.scheme()
            );
        }
    }
    let locations = locations(&statement);
    for location in &locations {
        register(session, location, Region::AsConfigured).await?;
    }
    if uses_models(&statement) {
        register_for_models(context).await;
    }
    let again = (!locations.is_empty()).then(|| statement.clone());
    match (context.execute(statement).await, again) {
        (Err(DataFusionError::ObjectStore(error)), Some(statement)) if is_s3(&error) => {
            tracing::info!("trying again after detecting the bucket's region: {error}");
            for location in &locations {
                register(session, location, Region::Detected).await?;
            }
            context.execute(statement).await
        }
        (result, _) => result,
    }
}

/// Registers the store of a URL, unless it is a file's.
///
/// # Errors
/// If the store cannot be opened.
pub(crate) async fn open_url(context: &ForebayContext, url: &Url) -> Result<()> {
    if !is_remote(url) {
        return Ok(());
    }
    let location = Location { url: url.clone(), options: vec![] };
    register(context.session(), &location, Region::AsConfigured).await
}

fn is_s3(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { store, .. } if store.eq_ignore_ascii_case("s3"))
}

/// The remote locations that a statement names.
fn locations(statement: &Statement) -> Vec<Location> {
    let (texts, options) = match statement {
        Statement::Model(ModelStatement::Create(create)) => {
            (create.location.iter().collect(), vec![])
        }
        Statement::Sql(statement) => match statement.as_ref() {
            SqlStatement::CreateExternalTable(table) => {
                (table.locations.iter().collect(), texts(&table.options))
            }
            SqlStatement::CopyTo(copy) => (vec![&copy.target], texts(&copy.options)),
            _ => return vec![],
        },
        Statement::Model(_) => return vec![],
    };
    let location = |text: &String| Url::parse(text).ok().filter(is_remote);
    let urls = texts.into_iter().filter_map(location);
    urls.map(|url| Location { url, options: options.clone() }).collect()
}

/// The URLs that `read_files` is given.
fn read_by_calls(statement: &Statement) -> Vec<Url> {
    let Statement::Sql(statement) = statement else { return vec![] };
    let mut calls = Calls::default();
    let _ = match statement.as_ref() {
        SqlStatement::Statement(statement) => statement.visit(&mut calls),
        SqlStatement::CopyTo(CopyToStatement { source: CopyToSource::Query(query), .. }) => {
            query.visit(&mut calls)
        }
        SqlStatement::Explain(explain) => {
            return read_by_calls(&Statement::Sql(explain.statement.clone()));
        }
        _ => ControlFlow::Continue(()),
    };
    calls.urls
}

#[derive(Default)]
struct Calls {
    urls: Vec<Url>,
}

impl Visitor for Calls {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { name, args: Some(arguments), .. } = factor
            && name.to_string().eq_ignore_ascii_case("read_files")
            && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(first)))) =
                arguments.args.first()
            && let Value::SingleQuotedString(text) = &first.value
        {
            // A path is no URL.
            self.urls.extend(text.contains("://").then(|| Url::parse(text).ok()).flatten());
        }
        ControlFlow::Continue(())
    }
}

fn texts(options: &[(String, Value)]) -> Vec<(String, String)> {
    let text = |value: &Value| value.clone().into_string().unwrap_or_else(|| value.to_string());
    options.iter().map(|(key, value)| (key.to_lowercase(), text(value))).collect()
}

fn is_remote(url: &Url) -> bool {
    matches!(url.scheme(), "s3" | "oss" | "cos" | "gs" | "gcs" | "http" | "https")
}

fn uses_models(statement: &Statement) -> bool {
    matches!(statement, Statement::Sql(sql) if sql.to_string().to_lowercase().contains("ml_predict"))
}

/// Packages of the catalog's models may be remote. A store that cannot be opened is reported when
/// its model is fetched.
async fn register_for_models(context: &ForebayContext) {
    let registry = &context.session().runtime_env().object_store_registry;
    for entry in context.catalog().list().unwrap_or_default() {
        let url = entry.declaration.location;
        if !is_remote(&url) || registry.get_store(&url).is_ok() {
            continue;
        }
        if let Err(error) = open_url(context, &url).await {
            tracing::warn!("{url}: {}", super::errors::readable(&error));
        }
    }
}

async fn register(session: &SessionContext, location: &Location, region: Region) -> Result<()> {
    // `OPTIONS ('aws.…' …)` are unknown to DataFusion unless it is told.
    session.register_table_options_extension_from_scheme(location.url.scheme());
    let store = open(location, region).await?;
    session.register_object_store(&location.url, store);
    Ok(())
}

async fn open(location: &Location, region: Region) -> Result<Arc<dyn ObjectStore>> {
    let url = &location.url;
    Ok(match url.scheme() {
        "s3" | "oss" | "cos" => {
            let options = aws(location)?;
            let key = given_key(&options)?;
            let builder = match url.scheme() {
                "oss" => get_oss_object_store_builder(url, &options)?,
                "cos" => get_cos_object_store_builder(url, &options)?,
                _ => {
                    let detect = region == Region::Detected;
                    get_s3_object_store_builder(url, &options, detect).await?
                }
            };
            Arc::new(match key {
                Some(key) => builder.with_credentials(Arc::new(key)).build()?,
                None => builder.build()?,
            })
        }
        "gs" | "gcs" => Arc::new(get_gcs_object_store_builder(url, &gcp(location)?)?.build()?),
        _ => {
            let options = ClientOptions::new().with_allow_http(true);
            let builder = HttpBuilder::new().with_client_options(options);
            Arc::new(builder.with_url(url.origin().ascii_serialization()).build()?)
        }
    })
}

/// A key that is given is used with the token beside it or with none: that of the environment is
/// another account's, and the store may be a stranger's.
fn given_key(options: &AwsOptions) -> Result<Option<StaticCredentialProvider<AwsCredential>>> {
    let AwsOptions { access_key_id, secret_access_key, session_token, .. } = options.clone();
    match (access_key_id, secret_access_key, session_token) {
        (Some(key_id), Some(secret_key), token) => {
            let given = AwsCredential { key_id, secret_key, token };
            Ok(Some(StaticCredentialProvider::new(given)))
        }
        (None, None, None) => Ok(None),
        _ => plan_err!(
            "'aws.access_key_id' and 'aws.secret_access_key' go together, and 'aws.session_token' \
             with them; give both, or neither for those of the environment"
        ),
    }
}

fn aws(location: &Location) -> Result<AwsOptions> {
    set(AwsOptions::default(), "aws.", location)
}

fn gcp(location: &Location) -> Result<GcpOptions> {
    set(GcpOptions::default(), "gcp.", location)
}

fn set<T: ExtensionOptions>(mut target: T, prefix: &str, location: &Location) -> Result<T> {
    for (key, value) in location.options.iter().filter(|(key, _)| key.starts_with(prefix)) {
        target.set(key, value)?;
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locations_of(sql: &str) -> Vec<(String, Vec<(String, String)>)> {
        let statements = ForebayContext::builder()
            .with_catalog(forebay::Catalog::in_memory())
            .build()
            .and_then(|context| context.parse(sql))
            .unwrap();
        let found = locations(&statements[0]);
        found.into_iter().map(|l| (l.url.to_string(), l.options)).collect()
    }

    #[test]
    fn remote_locations_are_found_with_their_options() {
        let sql = "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3://b/t/'
            OPTIONS ('aws.region' 'eu-central-1')";
        let options = vec![("aws.region".to_owned(), "eu-central-1".to_owned())];
        assert_eq!(locations_of(sql), [("s3://b/t/".to_owned(), options)]);
        let gs = |path: &str| vec![(format!("gs://b/{path}"), vec![])];
        assert_eq!(locations_of("COPY (SELECT 1) TO 'gs://b/x.parquet'"), gs("x.parquet"));
        assert_eq!(locations_of("CREATE MODEL m LOCATION 'gs://b/m'"), gs("m"));
        assert_eq!(locations_of("COPY (SELECT 1) TO '/tmp/x.parquet'"), []);
        assert_eq!(locations_of("SELECT 's3://b/t/'"), []);
    }
}
