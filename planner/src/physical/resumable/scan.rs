//! The scan whose files are read in pieces.

use std::collections::BTreeMap;
use std::fmt;

use datafusion::common::{Result, Statistics};
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::physical_plan::DisplayFormatType;
use forebay_engine::write::resume::{Input, Inputs, Piece};

use super::refusals::refused;

/// A scan of whole files.
pub(super) struct Scan {
    config: FileScanConfig,
    files: Vec<PartitionedFile>,
    can_be_cut: bool,
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl Scan {
    /// The scan of this plan, whose files may have been cut for its partitions.
    ///
    /// # Errors
    /// If it reads a file twice, or only a part of one.
    pub(super) fn try_new(config: FileScanConfig) -> Result<Self> {
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
                return Err(refused(
                    &format!(
                        "it reads {bytes} bytes of '{name}', which has {}",
                        file.object_meta.size
                    ),
                    "name each file once",
                ));
            }
        }
        if config.output_partitioning.is_some() {
            return Err(refused(
                "its files are read in groups of their folders",
                "SET datafusion.optimizer.preserve_file_partitions = 0",
            ));
        }
        let files: Vec<PartitionedFile> = files.into_values().map(|(file, _)| file).collect();
        let can_be_cut = can_be_cut(&config, &files)?;
        Ok(Self { config, files, can_be_cut })
    }

    pub(super) fn inputs(&self) -> Inputs {
        let store = &self.config.object_store_url;
        let files = self.files.iter().map(|file| Input::of(store, &file.object_meta));
        Inputs { files: files.collect(), can_be_cut: self.can_be_cut }
    }

    /// How the files are read, in words that differ if that does.
    pub(super) fn reads(&self) -> String {
        reads(&self.config)
    }

    /// The same scan of these pieces, in as many partitions.
    pub(super) fn of(&self, pieces: &[Piece]) -> FileScanConfig {
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

/// The same of any scan of files.
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
    format!("{kind} {compression:?} of {}{extra}", columns.join(", "))
}

/// Whether its format can read a part of a file.
fn can_be_cut(config: &FileScanConfig, files: &[PartitionedFile]) -> Result<bool> {
    let largest = files.iter().max_by_key(|file| file.object_meta.size).cloned();
    let Some(largest) = largest else { return Ok(false) };
    let one = FileScanConfigBuilder::from(config.clone())
        .with_file_groups(vec![FileGroup::new(vec![largest])])
        .with_output_ordering(vec![])
        .build();
    Ok(config.file_source.repartitioned(2, 0, None, &one)?.is_some())
}
