//! Opens a store: datafusion-cli's builders, with the settings of a statement or of the environment.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::config::ExtensionOptions;
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion_cli::object_storage::{
    AwsOptions, GcpOptions, get_cos_object_store_builder, get_gcs_object_store_builder,
    get_oss_object_store_builder, get_s3_object_store_builder,
};
use object_store::aws::{
    AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, resolve_bucket_region,
};
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, StaticCredentialProvider};

use super::place::{Kind, Place};
use super::retries::retries;
use super::web::Web;

/// For the question where a bucket is. Without an answer it is where the environment says.
const REGION_LIMIT: Duration = Duration::from_secs(3);
/// Of servers that are not Amazon's, most of which take any.
const OTHERS_REGION: &str = "us-east-1";
/// As `object_store` reads truths.
const YES: [&str; 5] = ["1", "true", "on", "yes", "y"];

pub(super) async fn open(place: &Place) -> Result<Arc<dyn ObjectStore>> {
    let url = &place.url;
    Ok(match place.kind {
        Kind::S3 => Arc::new(Box::pin(s3(place)).await?),
        Kind::Oss => {
            let options = aws(place)?;
            let key = given_key(&options)?;
            let builder = with_key(get_oss_object_store_builder(url, &options)?, key);
            Arc::new(builder.with_retry(retries()).build()?)
        }
        Kind::Cos => {
            let options = aws(place)?;
            let key = given_key(&options)?;
            let builder = with_key(get_cos_object_store_builder(url, &options)?, key);
            Arc::new(builder.with_retry(retries()).build()?)
        }
        Kind::Gcs => {
            let builder = get_gcs_object_store_builder(url, &set(GcpOptions::default(), place)?)?;
            Arc::new(builder.with_retry(retries()).build()?)
        }
        Kind::Web => Arc::new(Web::new(url)?),
    })
}

async fn s3(place: &Place) -> Result<AmazonS3> {
    let mut options = aws(place)?;
    let key = given_key(&options)?;
    let environment = AmazonS3Builder::from_env();
    let of_environment = |key: AmazonS3ConfigKey| environment.get_config_value(&key);
    let endpoint = options
        .endpoint
        .clone()
        .or_else(|| of_environment(AmazonS3ConfigKey::S3Endpoint))
        .or_else(|| of_environment(AmazonS3ConfigKey::Endpoint));
    if options.region.is_none() {
        options.region = match endpoint {
            // It alone knows, and asking Amazon for it would be wrong.
            Some(_) => {
                of_environment(AmazonS3ConfigKey::Region).or_else(|| Some(OTHERS_REGION.to_owned()))
            }
            // A bucket is where it is, whatever the environment says.
            None => region(place).await,
        };
    }
    let builder = get_s3_object_store_builder(&place.url, &options, false).await?;
    let mut builder = with_key(builder, key);
    if let Some(endpoint) = options.endpoint {
        // A statement's goes before that of the environment for S3 alone, too.
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    let allows = builder.get_config_value(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.starts_with("http://"))
        && !allows.is_some_and(|said| YES.contains(&said.to_lowercase().as_str()))
    {
        return plan_err!(
            "the endpoint {endpoint} is not encrypted; set AWS_ALLOW_HTTP=true, or OPTIONS \
             ('aws.allow_http' 'true') of a table, if that is meant"
        );
    }
    Ok(builder.with_retry(retries()).build()?)
}

/// The region of a bucket of Amazon's, if it can be had soon.
async fn region(place: &Place) -> Option<String> {
    let bucket = place.url.host_str()?;
    let options = ClientOptions::new();
    let asked = resolve_bucket_region(bucket, &options);
    match tokio::time::timeout(REGION_LIMIT, asked).await {
        Ok(Ok(region)) => Some(region),
        Ok(Err(error)) => {
            tracing::debug!("the region of {}: {error}", place.url);
            None
        }
        Err(_) => None,
    }
}

type Key = Arc<StaticCredentialProvider<AwsCredential>>;

/// Whether the options of a place fit each other, which is said where they are given.
///
/// # Errors
/// Names those that do not.
pub(super) fn check_options(place: &Place) -> Result<()> {
    match place.kind {
        Kind::S3 | Kind::Oss | Kind::Cos => given_key(&aws(place)?).map(drop),
        Kind::Gcs => set(GcpOptions::default(), place).map(drop),
        Kind::Web => Ok(()),
    }
}

/// A key that is given is used with the token beside it or with none: that of the environment is
/// another account's, and the store may be a stranger's.
fn given_key(options: &AwsOptions) -> Result<Option<Key>> {
    let AwsOptions { access_key_id, secret_access_key, session_token, .. } = options.clone();
    match (access_key_id, secret_access_key, session_token) {
        (Some(key_id), Some(secret_key), token) => {
            let given = AwsCredential { key_id, secret_key, token };
            Ok(Some(Arc::new(StaticCredentialProvider::new(given))))
        }
        (None, None, None) => Ok(None),
        _ => plan_err!(
            "'aws.access_key_id' and 'aws.secret_access_key' go together, and 'aws.session_token' \
             with them; give both, or neither for those of the environment"
        ),
    }
}

fn with_key(builder: AmazonS3Builder, key: Option<Key>) -> AmazonS3Builder {
    match key {
        Some(key) => without_secrets(&builder).with_credentials(key),
        None => builder,
    }
}

/// The settings of the environment and of the statement but for what encrypts the files of the environment's
/// account (`AWS_SSE_CUSTOMER_KEY_BASE64`), which would be sent along.
fn without_secrets(builder: &AmazonS3Builder) -> AmazonS3Builder {
    use AmazonS3ConfigKey::*;
    let of_environment = std::env::vars_os().filter_map(|(name, _)| {
        let name = name.to_str().filter(|name| name.starts_with("AWS_"))?;
        name.to_ascii_lowercase().parse().ok()
    });
    let is_secret = |key: &AmazonS3ConfigKey| {
        matches!(key, Encryption(_) | AccessKeyId | SecretAccessKey | Token)
    };
    [Bucket, Region, Endpoint, VirtualHostedStyleRequest, SkipSignature]
        .into_iter()
        .chain([Client(ClientConfigKey::AllowHttp)])
        .chain(of_environment)
        .filter(|key| !is_secret(key))
        .filter_map(|key| builder.get_config_value(&key).map(|value| (key, value)))
        .fold(AmazonS3Builder::new(), |builder, (key, value)| builder.with_config(key, value))
}

fn aws(place: &Place) -> Result<AwsOptions> {
    set(AwsOptions::default(), place)
}

fn set<T: ExtensionOptions>(mut target: T, place: &Place) -> Result<T> {
    for (key, value) in &place.options {
        target.set(key, value)?;
    }
    Ok(target)
}
