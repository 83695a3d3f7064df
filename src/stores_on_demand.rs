//! Object stores that a worker opens when a task first reads from them, with credentials from its
//! environment: those of a session stay with the session.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use object_store::http::{HttpBuilder, HttpStore};
use object_store::{ClientOptions, ObjectStore, RetryConfig, parse_url_opts};
use url::Url;

/// How long a web server may say that it cannot. Short: a task that waits may hold an accelerator,
/// and is tried again elsewhere.
const HTTP_RETRIES_MAX: usize = 3;
const HTTP_RETRIES_LIMIT: Duration = Duration::from_secs(20);

/// Local files, and whatever a URL names.
#[derive(Debug, Default)]
pub(crate) struct StoresOnDemand {
    open: DefaultObjectStoreRegistry,
}

impl ObjectStoreRegistry for StoresOnDemand {
    fn register_store(
        &self,
        url: &Url,
        store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        self.open.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.open.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if let Ok(store) = self.open.get_store(url) {
            return Ok(store);
        }
        let store: Arc<dyn ObjectStore> = match url.scheme() {
            "http" | "https" => Arc::new(http(url)?),
            _ => named_by(url)?,
        };
        self.open.register_store(url, Arc::clone(&store));
        Ok(store)
    }
}

/// Whoever names a URL without encryption means it.
fn http(url: &Url) -> Result<HttpStore> {
    let retry = RetryConfig {
        max_retries: HTTP_RETRIES_MAX,
        retry_timeout: HTTP_RETRIES_LIMIT,
        ..RetryConfig::default()
    };
    let store = HttpBuilder::new()
        .with_url(url.origin().ascii_serialization())
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_retry(retry)
        .build()?;
    Ok(store)
}

fn named_by(url: &Url) -> Result<Arc<dyn ObjectStore>> {
    // `AWS_REGION` is the option `aws_region`.
    let options = std::env::vars().map(|(key, value)| (key.to_ascii_lowercase(), value));
    let (store, _) = parse_url_opts(url, options).map_err(|error| {
        DataFusionError::ObjectStore(Box::new(error)).context(format!(
            "this worker cannot open {url}; set the store's credentials in its environment"
        ))
    })?;
    Ok(Arc::from(store))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_opened_once() {
        let stores = StoresOnDemand::default();
        let url = Url::parse("http://localhost:1/folder/file").unwrap();
        let first = stores.get_store(&url).unwrap();
        assert!(Arc::ptr_eq(&first, &stores.get_store(&url).unwrap()));
        stores.get_store(&Url::parse("file:///tmp").unwrap()).unwrap();
    }

    #[test]
    fn an_unknown_kind_is_named() {
        let url = Url::parse("gopher://hole").unwrap();
        let error = StoresOnDemand::default().get_store(&url).unwrap_err().to_string();
        assert!(error.contains("gopher://hole"), "{error}");
    }
}
