//! A file that is read.

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::object_store::ObjectStoreUrl;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};
use serde::{Deserialize, Serialize};

use crate::files::File;

/// Files that are asked for at a time.
const ASKED_MAX: usize = 32;

/// What versions begin with of which a store tells more than when they were written.
const TAGGED: &str = "etag ";

/// A file, as it was when it was listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Input {
    /// The URL of its store.
    pub store: String,
    /// Where it is in the store.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// What tells it from other files that had the same name, as far as the store knows.
    pub version: String,
}

impl Input {
    /// A file of a listing.
    pub fn of(store: &ObjectStoreUrl, meta: &ObjectMeta) -> Self {
        let version = match &meta.e_tag {
            Some(tag) => format!("{TAGGED}{tag}"),
            None => format!("written {}", meta.last_modified.to_rfc3339()),
        };
        Self {
            store: store.as_str().to_owned(),
            path: meta.location.to_string(),
            size: meta.size,
            version,
        }
    }

    /// A file that is a row.
    pub fn of_row(file: &File) -> Self {
        let version = match &file.tag {
            Some(tag) => format!("{TAGGED}{tag}"),
            None => format!("written {} microseconds after 1970", file.modified_us),
        };
        let (store, path) = (file.store.as_str().to_owned(), file.path.to_string());
        Self { store, path, size: file.size, version }
    }

    /// For people.
    pub fn url(&self) -> String {
        format!("{}{}", self.store, self.path)
    }

    /// How the file is now, if it is another one.
    async fn change(&self, context: &TaskContext) -> Result<Option<String>> {
        let store = ObjectStoreUrl::parse(&self.store)?;
        let path = Path::parse(&self.path).map_err(object_store::Error::from)?;
        let meta = match context.runtime_env().object_store(&store)?.head(&path).await {
            Ok(meta) => meta,
            Err(object_store::Error::NotFound { .. }) => return Ok(Some("is gone".to_owned())),
            Err(error) => return Err(error.into()),
        };
        let now = Self::of(&store, &meta);
        // Who has listed it may know other times than the store.
        let is_other = now.size != self.size
            || (self.version.starts_with(TAGGED) && now.version != self.version);
        Ok(is_other.then(|| {
            format!(
                "has {} bytes, {}, and had {}, {}",
                now.size, now.version, self.size, self.version
            )
        }))
    }
}

/// Which of these files have changed: in what way.
///
/// # Errors
/// If a store cannot be asked.
pub async fn changes(inputs: Vec<Input>, context: &TaskContext) -> Result<Vec<String>> {
    let asked = inputs.into_iter().map(|input| async move {
        let change = input.change(context).await?;
        Ok::<_, datafusion::common::DataFusionError>(
            change.map(|change| format!("'{}' {change}", input.url())),
        )
    });
    let found: Vec<Option<String>> =
        stream::iter(asked).buffer_unordered(ASKED_MAX).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}
