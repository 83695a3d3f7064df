//! The wire form of files as rows: the files that whoever planned the query found.

use std::sync::Arc;

use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::object_store::ObjectStoreUrl;
use object_store::path::Path;
use prost::Message;

use super::exec::ReadFilesExec;
use super::file::{File, OnUnreadable};
use crate::wire::position;

/// A [`ReadFilesExec`].
#[derive(Clone, PartialEq, Message)]
pub struct ReadFiles {
    #[prost(message, repeated, tag = "1")]
    partitions: Vec<Files>,
    #[prost(uint64, repeated, tag = "2")]
    projection: Vec<u64>,
    #[prost(bool, tag = "3")]
    null_if_unreadable: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Files {
    #[prost(message, repeated, tag = "1")]
    files: Vec<Listed>,
}

#[derive(Clone, PartialEq, Message)]
struct Listed {
    #[prost(string, tag = "1")]
    store: String,
    #[prost(string, tag = "2")]
    path: String,
    #[prost(uint64, tag = "3")]
    size: u64,
    #[prost(int64, tag = "4")]
    modified_us: i64,
}

impl From<&File> for Listed {
    fn from(file: &File) -> Self {
        Self {
            store: file.store.as_str().to_owned(),
            path: file.path.to_string(),
            size: file.size,
            modified_us: file.modified_us,
        }
    }
}

impl TryFrom<Listed> for File {
    type Error = datafusion::common::DataFusionError;

    fn try_from(listed: Listed) -> Result<Self> {
        let path = Path::parse(&listed.path)
            .map_err(|error| exec_datafusion_err!("the path of a file: {error}"))?;
        let store = ObjectStoreUrl::parse(&listed.store)?;
        let Listed { size, modified_us, .. } = listed;
        Ok(Self { store, path, size, modified_us, tag: None })
    }
}

impl ReadFilesExec {
    /// All of it: the operator has no input.
    pub fn to_wire(&self) -> ReadFiles {
        let (partitions, projection, on_unreadable) = self.parts();
        let files = |files: &Arc<[File]>| Files { files: files.iter().map(Listed::from).collect() };
        ReadFiles {
            partitions: partitions.iter().map(files).collect(),
            projection: projection.iter().map(|at| *at as u64).collect(),
            null_if_unreadable: on_unreadable == OnUnreadable::Null,
        }
    }

    /// The operator of a message.
    ///
    /// # Errors
    /// If the message names a place that there cannot be, or a column that there is not.
    pub fn from_wire(message: ReadFiles) -> Result<Self> {
        let partition = |files: Files| -> Result<Arc<[File]>> {
            files.files.into_iter().map(File::try_from).collect()
        };
        let partitions = message.partitions.into_iter().map(partition).collect::<Result<_>>()?;
        let projection = message.projection.into_iter().map(position).collect::<Result<_>>()?;
        let policy =
            if message.null_if_unreadable { OnUnreadable::Null } else { OnUnreadable::Fail };
        Self::try_new(partitions, projection, policy)
    }
}
