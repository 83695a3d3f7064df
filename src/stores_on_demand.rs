//! Object stores that a worker opens when a task first reads from them, with credentials from its
//! environment: those of a session stay with the session.

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use object_store::{ObjectStore, parse_url_opts};
use url::Url;

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
        // `AWS_REGION` is the option `aws_region`.
        let options = std::env::vars().map(|(key, value)| (key.to_ascii_lowercase(), value));
        let (store, _) = parse_url_opts(url, options).map_err(|error| {
            DataFusionError::ObjectStore(Box::new(error)).context(format!(
                "this worker cannot open {url}; set the store's credentials in its environment"
            ))
        })?;
        let store: Arc<dyn ObjectStore> = Arc::from(store);
        self.open.register_store(url, Arc::clone(&store));
        Ok(store)
    }
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
