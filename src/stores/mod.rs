//! Object stores, opened by whatever names them first: tables, files in `FROM`, `read_files`, models,
//! `COPY`.
//!
//! ```text
//!  URL ──> Stores ──> a store that opens with its first request ──> S3, GCS, a web server
//! ```
//!
//! - [`Stores`]: which stores there are; `place`: which can be, and what their users must set
//! - `options`: what a statement says about one
//! - `on_demand`: a store that opens with its first request; `open`: how; `retries`: how often it asks;
//!   `web`: web servers, with what they lack; `explain`: what went wrong, in words; `markers`: what is no
//!   file; `versions`: files that DataFusion would take for one another
//! - `direct`: local files, of which much that is written goes past the page cache
//! - `url_tables`: tables that queries name by URL

mod direct;
mod explain;
mod markers;
mod on_demand;
mod open;
mod options;
mod place;
mod retries;
mod url_tables;
mod versions;
mod web;

use std::sync::Arc;

use datafusion::common::internal_datafusion_err;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use object_store::ObjectStore;
use parking_lot::Mutex;
use url::Url;

use direct::DirectFiles;
use on_demand::OnDemand;
pub(crate) use options::open_with_options;
use place::Place;
pub(crate) use url_tables::UrlTables;

/// Local files, and whatever a URL names. What a process may read is what its environment says: keys of
/// a session stay with the session.
#[derive(Debug)]
pub struct Stores {
    open: Arc<dyn ObjectStoreRegistry>,
    /// Of local files. Registries have one of their own, or wrap what they are given so that it renames no folders.
    local: Mutex<Option<Arc<dyn ObjectStore>>>,
}

impl Stores {
    /// Keeps the stores in another registry.
    pub fn kept_in(registry: Arc<dyn ObjectStoreRegistry>) -> Self {
        Self { open: registry, local: Mutex::new(Some(Arc::new(DirectFiles::new()))) }
    }

    /// What queries run in: these stores, and no memory of what folders held. DataFusion's has no end,
    /// and takes folders of the same name in two buckets for one.
    pub fn runtime(self) -> RuntimeEnvBuilder {
        RuntimeEnvBuilder::new()
            .with_object_store_registry(Arc::new(self))
            .with_object_list_cache_limit(0)
    }
}

impl Default for Stores {
    fn default() -> Self {
        Self::kept_in(Arc::new(DefaultObjectStoreRegistry::new()))
    }
}

impl ObjectStoreRegistry for Stores {
    fn register_store(
        &self,
        url: &Url,
        store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        if is_local(url) {
            return self.local.lock().replace(store);
        }
        self.open.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if is_local(url) {
            return self.local.lock().take().ok_or_else(|| unregistered(url));
        }
        self.open.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if is_local(url) {
            return self.local.lock().clone().ok_or_else(|| unregistered(url));
        }
        if let Ok(store) = self.open.get_store(url) {
            return Ok(store);
        }
        let store = OnDemand::new(Place::of(url, vec![])?);
        self.open.register_store(url, Arc::new(store));
        self.open.get_store(url)
    }
}

fn is_local(url: &Url) -> bool {
    url.scheme() == "file" && url.host_str().is_none_or(str::is_empty)
}

fn unregistered(url: &Url) -> DataFusionError {
    internal_datafusion_err!("no store is registered for {url}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_opened_once() {
        let stores = Stores::default();
        let url = Url::parse("http://localhost:1/folder/file").unwrap();
        let first = stores.get_store(&url).unwrap();
        assert!(Arc::ptr_eq(&first, &stores.get_store(&url).unwrap()));
        stores.get_store(&Url::parse("file:///tmp").unwrap()).unwrap();
    }

    #[test]
    fn local_files_are_those_that_were_registered() {
        let (stores, url) = (Stores::default(), Url::parse("file:///tmp/x").unwrap());
        let first = stores.get_store(&url).unwrap();
        let other: Arc<dyn ObjectStore> = Arc::new(object_store::memory::InMemory::new());
        let before = stores.register_store(&url, Arc::clone(&other)).unwrap();
        assert!(Arc::ptr_eq(&before, &first));
        assert!(Arc::ptr_eq(&other, &stores.get_store(&url).unwrap()));
        assert!(Arc::ptr_eq(&other, &stores.deregister_store(&url).unwrap()));
        for error in [stores.get_store(&url), stores.deregister_store(&url)] {
            assert!(error.unwrap_err().to_string().contains("no store is registered for file:///"));
        }
    }

    #[test]
    fn an_unknown_kind_is_named() {
        for (url, expected) in [
            ("az://container/x", "known are s3, gs, oss, cos, http, https and file"),
            ("gopher://hole", "'gopher'"),
            ("file://other/x", "file:///"),
        ] {
            let error = Stores::default().get_store(&Url::parse(url).unwrap());
            let error = error.unwrap_err().to_string();
            assert!(error.contains(url) && error.contains(expected), "{error}");
        }
    }
}
