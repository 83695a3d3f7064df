//! Scans whose files are read in pieces.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, Statistics, internal_err};
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::physical_plan::{
    CsvSource, FileGroup, FileScanConfig, FileScanConfigBuilder,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::DisplayFormatType;
use forebay_engine::ReadFilesExec;
use forebay_engine::files::{File, OnUnreadable};
use forebay_engine::write::resume::{Input, Piece, Reads};
use object_store::memory::InMemory;

use super::refusals::Purpose;
use super::{Plan, file_scan};

/// A scan that drives a plan.
#[derive(Debug)]
pub(super) enum Scan {
    /// Of what is in files.
    Files(Box<FileScan>),
    /// Of files, each of which is a row.
    Rows(Plan, Vec<File>),
}

impl Scan {
    /// The scan that this plan is.
    ///
    /// # Errors
    /// As [`FileScan::try_new`].
    pub(super) fn try_new(plan: &Plan, purpose: Purpose) -> Result<Self> {
        if let Some(files) = plan.downcast_ref::<ReadFilesExec>() {
            return Ok(Self::Rows(Arc::clone(plan), files.files().cloned().collect()));
        }
        match file_scan(plan.as_ref()) {
            Some(config) => Ok(Self::Files(Box::new(FileScan::try_new(config.clone(), purpose)?))),
            None => Err(purpose.of_operator(plan.as_ref())),
        }
    }

    /// Its files.
    pub(super) fn inputs(&self) -> (Vec<Input>, Reads) {
        match self {
            Self::Files(scan) => scan.inputs(),
            Self::Rows(_, files) => (files.iter().map(Input::of_row).collect(), Reads::File),
        }
    }

    /// How the files are read, in words that differ if that does.
    pub(super) fn reads(&self) -> String {
        match self {
            Self::Files(scan) => reads(&scan.config),
            Self::Rows(plan, _) => plan.downcast_ref().map(reads_rows).unwrap_or_default(),
        }
    }

    /// The same scan of these pieces of its files, in as many partitions.
    ///
    /// # Errors
    /// None that a user could cause.
    pub(super) fn of(&self, pieces: &[Piece]) -> Result<Plan> {
        match self {
            Self::Files(scan) => Ok(DataSourceExec::from_data_source(scan.of(pieces))),
            Self::Rows(plan, files) => {
                let Some(scan) = plan.downcast_ref::<ReadFilesExec>() else {
                    return internal_err!("{} reads no files as rows", plan.name());
                };
                let files: Vec<File> =
                    pieces.iter().map(|piece| files[piece.file].clone()).collect();
                Ok(Arc::new(scan.with_files(&files)?))
            }
        }
    }
}

/// A scan of whole files.
pub(super) struct FileScan {
    config: FileScanConfig,
    files: Vec<PartitionedFile>,
    can_be_cut: bool,
}

impl fmt::Debug for FileScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileScan").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl FileScan {
    /// The scan of this plan, whose files may have been cut for its partitions.
    ///
    /// # Errors
    /// If it reads a file twice, or only a part of one.
    fn try_new(config: FileScanConfig, purpose: Purpose) -> Result<Self> {
        let mut files: BTreeMap<String, (PartitionedFile, u64)> = BTreeMap::new();
        for file in config.file_groups.iter().flat_map(FileGroup::iter) {
            let range = file.range.as_ref();
            let bytes = range.map_or(file.object_meta.size, |range| {
                u64::try_from(range.end - range.start).unwrap_or(0)
            });
            let whole = || PartitionedFile { range: None, ..file.clone() };
            let name = file.object_meta.location.to_string();
            files.entry(name).or_insert_with(|| (whole(), 0)).1 += bytes;
        }
        for (name, (file, bytes)) in &files {
            if file.object_meta.size != *bytes {
                return Err(purpose.refused(
                    &format!(
                        "it reads {bytes} bytes of '{name}', which has {}",
                        file.object_meta.size
                    ),
                    "name each file once",
                ));
            }
        }
        if config.output_partitioning.is_some() {
            return Err(purpose.refused(
                "its files are read in groups of their folders",
                "SET datafusion.optimizer.preserve_file_partitions = 0",
            ));
        }
        let files: Vec<PartitionedFile> = files.into_values().map(|(file, _)| file).collect();
        let can_be_cut = can_be_cut(&config, &files)?;
        Ok(Self { config, files, can_be_cut })
    }

    fn inputs(&self) -> (Vec<Input>, Reads) {
        let store = &self.config.object_store_url;
        let files = self.files.iter().map(|file| Input::of(store, &file.object_meta));
        (files.collect(), if self.can_be_cut { Reads::Bytes } else { Reads::Whole })
    }

    /// The same scan of these pieces, in as many partitions.
    fn of(&self, pieces: &[Piece]) -> FileScanConfig {
        let groups = self.groups(pieces);
        let table = self.config.file_source.table_schema().table_schema();
        FileScanConfigBuilder::from(self.config.clone())
            .with_file_groups(groups)
            .with_output_ordering(vec![])
            .with_statistics(Statistics::new_unknown(table))
            .build()
    }

    /// Pieces are cut further, so that each partition has about as much to read.
    fn groups(&self, pieces: &[Piece]) -> Vec<FileGroup> {
        let partitions = self.config.file_groups.len().max(1);
        let all: u64 = pieces.iter().map(Piece::bytes).sum();
        let each = all.div_ceil(partitions as u64).max(1);
        let mut groups: Vec<Vec<PartitionedFile>> = vec![vec![]; partitions];
        let (mut at, mut room) = (0, each);
        for piece in pieces {
            let mut start = piece.start;
            while start < piece.end {
                if room == 0 && at + 1 < partitions {
                    (at, room) = (at + 1, each);
                }
                let is_last = at + 1 == partitions || !self.can_be_cut;
                let end = if is_last { piece.end } else { piece.end.min(start + room) };
                groups[at].push(self.piece(&Piece { start, end, ..*piece }));
                room = room.saturating_sub(end - start);
                start = end;
            }
        }
        groups.into_iter().map(FileGroup::new).collect()
    }

    fn piece(&self, piece: &Piece) -> PartitionedFile {
        let file = self.files[piece.file].clone();
        if piece.start == 0 && piece.end == file.object_meta.size {
            return file;
        }
        let place = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
        let range = FileRange { start: place(piece.start), end: place(piece.end) };
        PartitionedFile { range: Some(range), statistics: None, ..file }
    }
}

/// How files that are rows are read.
pub(super) fn reads_rows(scan: &ReadFilesExec) -> String {
    let unreadable = match scan.on_unreadable() {
        OnUnreadable::Fail => "fail",
        OnUnreadable::Null => "null",
    };
    format!("files as rows, on_error={unreadable}")
}

/// How a scan reads its files, in words that differ if that does.
pub(super) fn reads(config: &FileScanConfig) -> String {
    struct Extra<'a>(&'a FileScanConfig);
    impl fmt::Display for Extra<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.file_source.fmt_extra(DisplayFormatType::Default, f)
        }
    }
    let kind = config.file_source.file_type();
    let compression = &config.file_compression_type;
    let columns = config.file_schema().fields().iter();
    let columns: Vec<String> =
        columns.map(|field| format!("{} {}", field.name(), field.data_type())).collect();
    // Of Parquet it is what is left out, which changes no row.
    let extra = if kind == "parquet" { String::new() } else { Extra(config).to_string() };
    let of_csv = config.file_source.downcast_ref::<CsvSource>().map(of_csv).unwrap_or_default();
    let whole = if takes_ranges(config) { "" } else { ", each file as one value" };
    format!("{kind} {compression:?} of {}{extra}{of_csv}{whole}", columns.join(", "))
}

/// What DataFusion does not say of CSV files.
fn of_csv(source: &CsvSource) -> String {
    let sign = |sign: u8| char::from(sign);
    format!(
        ", delimiter={:?}, quote={:?}, escape={:?}, comment={:?}, terminator={:?}, newlines_in_values={}, \
         truncated_rows={}",
        sign(source.delimiter()),
        sign(source.quote()),
        source.escape().map(sign),
        source.comment().map(sign),
        source.terminator().map(sign),
        source.newlines_in_values(),
        source.truncate_rows()
    )
}

/// Whether its reader begins with a part of a file at all. That of JSON does not if a file is one array, and says so
/// only then.
fn takes_ranges(config: &FileScanConfig) -> bool {
    if config.file_source.file_type() != "json" {
        return true;
    }
    let source = config.file_source.with_batch_size(1);
    let range = FileRange { start: 0, end: 1 };
    let part = PartitionedFile { range: Some(range), ..PartitionedFile::new("part", 2) };
    // Nothing is read before what this gives is waited for.
    let opener = source.create_file_opener(Arc::new(InMemory::new()), config, 0);
    opener.and_then(|opener| opener.open(part)).is_ok()
}

/// Whether its format can read a part of a file.
fn can_be_cut(config: &FileScanConfig, files: &[PartitionedFile]) -> Result<bool> {
    let largest = files.iter().max_by_key(|file| file.object_meta.size).cloned();
    let Some(largest) = largest.filter(|_| takes_ranges(config)) else { return Ok(false) };
    let one = FileScanConfigBuilder::from(config.clone())
        .with_file_groups(vec![FileGroup::new(vec![largest])])
        .with_output_ordering(vec![])
        .build();
    Ok(config.file_source.repartitioned(2, 0, None, &one)?.is_some())
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::common::config::CsvOptions;
    use datafusion::datasource::physical_plan::{FileSource, JsonSource};
    use datafusion::execution::object_store::ObjectStoreUrl;

    use super::*;

    fn schema() -> Arc<Schema> {
        Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]))
    }

    fn scan(source: impl Into<Arc<dyn FileSource>>) -> FileScanConfig {
        let url = ObjectStoreUrl::local_filesystem();
        let files = FileGroup::new(vec![PartitionedFile::new("t/0", 1 << 24)]);
        FileScanConfigBuilder::new(url, source.into()).with_file_group(files).build()
    }

    fn json(newline_delimited: bool) -> FileScanConfig {
        scan(JsonSource::new(schema()).with_newline_delimited(newline_delimited))
    }

    #[test]
    fn a_file_that_is_one_array_is_not_cut() {
        for lines in [true, false] {
            let config = json(lines);
            let scan = FileScan::try_new(config, Purpose::Resume).unwrap();
            assert_eq!(scan.inputs().1 == Reads::Bytes, lines);
            let parts = scan.of(&[Piece { file: 0, start: 0, end: 1 << 24 }]);
            let files = parts.file_groups.iter().flat_map(FileGroup::iter);
            assert!(lines || files.into_iter().all(|file| file.range.is_none()));
        }
        assert_ne!(reads(&json(true)), reads(&json(false)));
    }

    #[test]
    fn how_csv_is_read_is_told_apart() {
        let csv = |change: fn(&mut CsvOptions)| {
            let mut options = CsvOptions::default();
            change(&mut options);
            reads(&scan(CsvSource::new(schema()).with_csv_options(options)))
        };
        let all = [
            csv(|_| ()),
            csv(|options| options.has_header = Some(false)),
            csv(|options| options.delimiter = b';'),
            csv(|options| options.quote = b'\''),
            csv(|options| options.escape = Some(b'\\')),
            csv(|options| options.comment = Some(b'#')),
            csv(|options| options.terminator = Some(b'|')),
            csv(|options| options.newlines_in_values = Some(true)),
            csv(|options| options.truncated_rows = Some(true)),
        ];
        let different: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:#?}");
        assert_eq!(csv(|_| ()), all[0]);
    }
}
