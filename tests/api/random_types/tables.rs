//! Tables with a column of each kind: of many tiny batches, of one row, of none, and in files.

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::prelude::SessionContext;
use forebay_testkit::random::mix;

use super::kinds::{KINDS, column};
use crate::api::random::writer::KEYS;

/// Their names, and how often queries name them.
pub(super) const TABLES: [(usize, &str); 5] =
    [(5, "few"), (5, "many"), (5, FILES), (1, "one"), (1, "none")];

/// The one in Parquet files: DataFusion's codec does not know Arrow's.
const FILES: &str = "files";

/// Kinds that cannot be written to Parquet.
const NOT_IN_PARQUET: [&str; 2] = ["interval", "views"];

/// Whether a table has a column of this kind.
pub(super) fn has(table: &str, kind: usize) -> bool {
    table != FILES || !NOT_IN_PARQUET.contains(&KINDS[kind].name)
}

/// The partitions of a table and their batches, as ranges of rows.
fn parts(table: &str) -> Vec<Vec<Range<usize>>> {
    match table {
        "few" => vec![vec![0..1, 1..1, 1..4, 4..5, 5..16]],
        "many" => vec![vec![0..2, 2..2, 2..3], vec![], vec![3..3], vec![3..9, 9..14, 14..18]],
        "one" => vec![vec![7..8]],
        "none" => vec![vec![0..0]],
        _ => vec![vec![20..25, 25..26], vec![26..26], vec![26..36]],
    }
}

/// All tables, made once.
#[derive(Debug)]
pub(super) struct Tables {
    pools: Vec<ArrayRef>,
}

impl Tables {
    /// Computes all values in plain DataFusion, and writes files to a folder.
    pub(super) async fn write(plain: &SessionContext, folder: &Path) -> Self {
        let mut pools = vec![];
        for kind in KINDS {
            pools.push(kind.pool(plain).await);
        }
        let tables = Self { pools };
        let folder = folder.join(FILES);
        fs::create_dir(&folder).unwrap();
        for (at, batches) in parts(FILES).into_iter().enumerate() {
            let file = File::create(folder.join(format!("{at}.parquet"))).unwrap();
            let schema = tables.batch(FILES, 0..0).schema();
            let mut writer = ArrowWriter::try_new(file, schema, None).unwrap();
            batches.into_iter().for_each(|rows| writer.write(&tables.batch(FILES, rows)).unwrap());
            writer.close().unwrap();
        }
        tables
    }

    /// Creates them in a session.
    pub(super) async fn create(&self, session: &SessionContext, folder: &Path) {
        for (_, table) in TABLES {
            if table == FILES {
                let create = format!(
                    "CREATE EXTERNAL TABLE {FILES} STORED AS PARQUET LOCATION '{}/{FILES}/'",
                    folder.display()
                );
                session.sql(&create).await.unwrap().collect().await.unwrap();
                continue;
            }
            let parts = parts(table).into_iter().map(|batches| {
                batches.into_iter().map(|rows| self.batch(table, rows)).collect::<Vec<_>>()
            });
            let schema = self.batch(table, 0..0).schema();
            let table_of = MemTable::try_new(schema, parts.collect()).unwrap();
            session.register_table(table, Arc::new(table_of)).unwrap();
        }
    }

    /// The columns `id`, which differs in each row of a table, `n`, of which models are asked, and one
    /// of each kind.
    fn batch(&self, table: &str, rows: Range<usize>) -> RecordBatch {
        let ids = Int64Array::from_iter_values(rows.clone().map(|row| row as i64));
        let n = |row: usize| {
            let key = mix(row as u64 + 999) % (2 * KEYS as u64);
            (key > 0).then_some(key as i64 - KEYS)
        };
        let n = rows.clone().map(n).collect::<Int64Array>();
        let mut columns: Vec<(&str, ArrayRef)> = vec![("id", Arc::new(ids)), ("n", Arc::new(n))];
        for (at, pool) in self.pools.iter().enumerate().filter(|(at, _)| has(table, *at)) {
            columns.push((KINDS[at].name, column(at, pool, rows.clone())));
        }
        // All can be NULL, also where none is.
        let columns = columns.into_iter().map(|(name, values)| (name, values, name != "id"));
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    /// The values of a kind, of which the last one is NULL.
    pub(super) fn pool(&self, kind: usize) -> &ArrayRef {
        &self.pools[kind]
    }
}
