//! The one file that a sink writes.

use std::io;

use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::datasource::physical_plan::FileSinkConfig;
use datafusion::execution::TaskContext;
use object_store::buffered::BufWriter;
use tokio::io::AsyncWriteExt;

/// A store gets no smaller parts but the last.
const PART_MIN: usize = 64 << 10;

/// Bytes of the parts that a store gets.
pub(super) fn part_bytes(context: &TaskContext) -> usize {
    let options = context.session_config().options();
    options.execution.objectstore_writer_buffer_size.max(PART_MIN)
}

/// Begins the file that `config` names.
///
/// # Errors
/// If it names several, or no store is known for it.
pub(super) fn begin(config: &FileSinkConfig, context: &TaskContext) -> Result<BufWriter> {
    let [place] = config.table_paths.as_slice() else {
        let places = config.table_paths.len();
        return exec_err!("a file is written to one place, found {places}");
    };
    let store = context.runtime_env().object_store(&config.object_store_url)?;
    Ok(BufWriter::with_capacity(store, place.prefix().clone(), part_bytes(context)))
}

/// Has the file be there.
///
/// # Errors
/// The store's.
pub(super) async fn end(mut file: BufWriter) -> Result<()> {
    file.shutdown().await.map_err(of_store)
}

/// What a store said, which its writer has put into an error of files.
fn of_store(error: io::Error) -> DataFusionError {
    match error.downcast::<object_store::Error>() {
        Ok(error) => error.into(),
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_says_at_the_end_keeps_its_kind() {
        let missing = object_store::Error::NotFound { path: "a".to_owned(), source: "gone".into() };
        let found = of_store(io::Error::from(missing));
        assert!(matches!(found, DataFusionError::ObjectStore(_)), "{found:?}");
        let full = of_store(io::ErrorKind::StorageFull.into());
        assert!(matches!(full, DataFusionError::IoError(_)), "{full:?}");
    }
}
