//! `read_files('photos/*.jpg' [, on_error])`: files as rows.
//!
//! Lists once, when the query is planned. Conditions on what a listing tells (url, size, time) are
//! applied to it, so that no byte of the other files is read.

use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{DFSchema, DataFusionError, Result, plan_err};
use datafusion::datasource::TableType;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use forebay_engine::ReadFilesExec;
use forebay_engine::files::{File, OnUnreadable};
use forebay_engine::write::is_staged;
use futures::TryStreamExt;
use futures::future::ready;
use glob::{MatchOptions, Pattern};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::location;

/// The table function.
#[derive(Debug)]
pub(crate) struct ReadFiles;

impl ReadFiles {
    pub(crate) const NAME: &'static str = "read_files";
}

impl TableFunctionImpl for ReadFiles {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        let usage = "read_files('photos/*.jpg' [, 'fail' | 'null'])";
        let text = |expr: &Expr| match expr {
            Expr::Literal(value, _) => value.try_as_str().flatten().map(str::to_owned),
            _ => None,
        };
        let texts: Option<Vec<String>> = args.exprs().iter().map(text).collect();
        let (pattern, policy) = match texts.as_deref() {
            Some([pattern]) => (pattern, "fail"),
            Some([pattern, policy]) => (pattern, policy.as_str()),
            _ => return plan_err!("read_files takes one or two texts: {usage}"),
        };
        let on_unreadable = match policy.to_ascii_lowercase().as_str() {
            "fail" => OnUnreadable::Fail,
            "null" => OnUnreadable::Null,
            _ => return plan_err!("read_files: on_error is '{policy}', expected fail or null"),
        };
        let location = location::parse(pattern)?;
        Ok(Arc::new(Files { pattern: pattern.clone(), location, on_unreadable }))
    }
}

/// The files that a pattern names.
#[derive(Debug)]
struct Files {
    pattern: String,
    location: ListingTableUrl,
    on_unreadable: OnUnreadable,
}

#[async_trait]
impl TableProvider for Files {
    fn schema(&self) -> SchemaRef {
        ReadFilesExec::full_schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let pushdown = |filter: &&Expr| {
            if is_of_listing(filter) {
                TableProviderFilterPushDown::Exact
            } else {
                TableProviderFilterPushDown::Unsupported
            }
        };
        Ok(filters.iter().map(pushdown).collect())
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut files = self.list(session).await?;
        if let Some(filter) = conjunction(filters.iter().cloned()) {
            files = matching(files, filter, session)?;
        }
        // Only conditions that are applied here come here, so what is left is what is asked for.
        files.truncate(limit.unwrap_or(usize::MAX));
        let columns = self.schema().fields().len();
        let projection = projection.cloned().unwrap_or_else(|| (0..columns).collect());
        let partitions = session.config().target_partitions().clamp(1, files.len().max(1));
        let per_partition = files.len().div_ceil(partitions).max(1);
        let mut partitions: Vec<Arc<[File]>> = files.chunks(per_partition).map(Arc::from).collect();
        if partitions.is_empty() {
            partitions.push(Arc::from([]));
        }
        Ok(Arc::new(ReadFilesExec::try_new(partitions, projection, self.on_unreadable)?))
    }
}

impl Files {
    /// Whether the pattern names what is in the store at `path`: `*` stands for a part of one name,
    /// `**` for folders.
    fn is_named_by(&self, glob: &Pattern, path: &Path) -> bool {
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
        self.location.strip_prefix(path).is_some_and(|segments| {
            glob.matches_with(&segments.collect::<Vec<_>>().join("/"), options)
        })
    }

    /// In the order of their paths.
    async fn list(&self, session: &dyn Session) -> Result<Vec<File>> {
        let store_url = self.location.object_store();
        let store = session.runtime_env().object_store(&self.location)?;
        let mut found = self.find(store.as_ref()).await?;
        if found.is_empty() {
            return plan_err!(
                "read_files: no file matches '{}', looked for at {}",
                self.pattern,
                self.location
            );
        }
        found.sort_by(|a, b| a.location.cmp(&b.location));
        let file = |meta: ObjectMeta| File {
            store: store_url.clone(),
            modified_us: modified_us(&meta, store_url.as_str()),
            path: meta.location,
            size: meta.size,
            tag: meta.e_tag,
        };
        Ok(found.into_iter().map(file).collect())
    }

    /// Not DataFusion's listing, which matches one folder only, and remembers what it found under the
    /// path alone, whichever bucket that was in, for ever.
    async fn find(&self, store: &dyn ObjectStore) -> Result<Vec<ObjectMeta>> {
        let prefix = self.location.prefix();
        let glob = self.location.get_glob().as_ref();
        if glob.is_none() && !self.location.is_collection() && !prefix.as_ref().is_empty() {
            match store.head(prefix).await {
                Ok(meta) => return Ok(vec![meta]),
                // It may be a folder.
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // What a write has not committed is no file yet.
        let is_named = |meta: &ObjectMeta| {
            ready(
                !is_staged(&meta.location)
                    && glob.is_none_or(|glob| self.is_named_by(glob, &meta.location)),
            )
        };
        let found = store.list(Some(prefix)).map_err(DataFusionError::from);
        found.try_filter(is_named).try_collect().await
    }
}

/// Stores say it in milliseconds at best. What is below may be there to tell versions apart.
fn modified_us(meta: &ObjectMeta, store: &str) -> i64 {
    if store.starts_with("file:") {
        meta.last_modified.timestamp_micros()
    } else {
        meta.last_modified.timestamp_millis() * 1000
    }
}

/// Whether a condition needs no file to be read.
fn is_of_listing(filter: &Expr) -> bool {
    !filter.is_volatile() && filter.column_refs().iter().all(|column| column.name != "bytes")
}

fn matching(files: Vec<File>, filter: Expr, session: &dyn Session) -> Result<Vec<File>> {
    let schema = ReadFilesExec::full_schema();
    let filter = session.create_physical_expr(filter, &DFSchema::try_from(Arc::clone(&schema))?)?;
    let listing = ReadFilesExec::listing(&files)?;
    let kept = filter.evaluate(&listing)?.into_array(files.len())?;
    let kept: &BooleanArray = kept.as_boolean();
    Ok(files
        .into_iter()
        .zip(kept)
        .filter(|(_, keep)| *keep == Some(true))
        .map(|(f, _)| f)
        .collect())
}
