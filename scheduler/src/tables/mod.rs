//! The system tables: what jobs and workers do, as tables that SQL reads.
//!
//! - [`rows`]: each table's columns, in one place for both sides
//!
//! The scheduler makes the rows when they are asked for; nothing is kept for them that it would
//! not keep anyway.

use std::fmt;
use std::io::Cursor;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use datafusion::common::Result;

mod columns;
pub mod rows;

/// The schema in which sessions have them.
pub const NAME: &str = "forebay";

/// A table whose rows the scheduler has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemTable {
    /// Jobs that run, and the last thousand that have ended.
    Jobs,
    /// Stages of jobs, without the clients'.
    Stages,
    /// Attempts at the units of their stages.
    Tasks,
    /// What tasks wrote for other stages.
    Blocks,
    /// Units that were done and had to run again.
    Recomputed,
    /// Workers that attend, those that drain included.
    Workers,
}

impl SystemTable {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Jobs, Self::Stages, Self::Tasks, Self::Blocks, Self::Recomputed, Self::Workers];

    /// Its name in SQL, without the schema.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Stages => "stages",
            Self::Tasks => "tasks",
            Self::Blocks => "blocks",
            Self::Recomputed => "recomputed",
            Self::Workers => "workers",
        }
    }

    /// The table of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }

    /// Its columns.
    ///
    /// # Errors
    /// None that a user could cause.
    pub fn schema(self) -> Result<SchemaRef> {
        let empty = match self {
            Self::Jobs => rows::jobs(&[]),
            Self::Stages => rows::stages("", &[]),
            Self::Tasks => rows::tasks("", &[]),
            Self::Blocks => rows::blocks("", &[]),
            Self::Recomputed => rows::recomputed("", &[]),
            Self::Workers => rows::workers(&[]),
        };
        Ok(empty?.schema())
    }
}

impl fmt::Display for SystemTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", NAME, self.name())
    }
}

/// Rows as they travel.
pub(crate) fn written(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let mut writer = StreamWriter::try_new(vec![], schema)?;
    for batch in batches {
        writer.write(batch)?;
    }
    Ok(writer.into_inner()?)
}

/// Rows that have travelled.
pub(crate) fn read(stream: &[u8]) -> Result<RecordBatch> {
    let reader = StreamReader::try_new(Cursor::new(stream), None)?;
    let schema = reader.schema();
    let batches = reader.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(concat_batches(&schema, &batches)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_names_and_travel() {
        for table in SystemTable::ALL {
            assert_eq!(SystemTable::named(table.name()), Some(table));
            let schema = table.schema().unwrap();
            let read = read(&written(&schema, &[]).unwrap()).unwrap();
            assert_eq!((read.schema(), read.num_rows()), (schema, 0));
        }
        assert_eq!(SystemTable::named("models"), None);
    }
}
