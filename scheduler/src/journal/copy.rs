//! What is left of a journal's records, and how they become fewer.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::error::JournalError;
use super::frame::{self, Found, Kind, Read, Record};
use super::{Fold, KeyRecords, Records};

/// Steps are left as they are while they are fewer than what stays of their key by so much: who folds them writes all
/// of that anew.
const FOLDED_FROM_PART: usize = 4;

/// The records of each key that has not ended.
#[derive(Default)]
pub(super) struct Left<'a>(BTreeMap<&'a str, OfKey<'a>>);

#[derive(Default)]
struct OfKey<'a> {
    stays: Vec<&'a [u8]>,
    steps: Vec<&'a [u8]>,
}

impl<'a> Left<'a> {
    pub(super) fn of(records: impl IntoIterator<Item = Found<'a>>) -> Self {
        let mut left = Self::default();
        for Found { key, kind, data } in records {
            match kind {
                Kind::Stays => left.0.entry(key).or_default().stays.push(data),
                Kind::Step => left.0.entry(key).or_default().steps.push(data),
                Kind::End => drop(left.0.remove(key)),
            }
        }
        left
    }

    /// Whether there are some under keys that begin so.
    pub(super) fn has(&self, prefix: &str) -> bool {
        self.0.range(prefix..).next().is_some_and(|(key, _)| key.starts_with(prefix))
    }

    /// All of them, those of a key one behind the other: first what stays.
    pub(super) fn iter(&self) -> impl Iterator<Item = Found<'a>> {
        self.0.iter().flat_map(|(key, of)| {
            let found = |kind| move |data: &&'a [u8]| Found { key, kind, data };
            let stays = of.stays.iter().map(found(Kind::Stays));
            stays.chain(of.steps.iter().map(found(Kind::Step)))
        })
    }

    pub(super) fn to_records(&self) -> Records {
        let owned = |found: &[&[u8]]| found.iter().map(|data| data.to_vec()).collect();
        let records = self.0.iter().map(|(key, found)| {
            let (stays, steps) = (owned(&found.stays), owned(&found.steps));
            ((*key).to_owned(), KeyRecords { stays, steps })
        });
        records.collect()
    }

    /// The same in fewer records, where there are many steps.
    fn folded(&self, fold: Fold) -> Vec<Record> {
        let mut records = vec![];
        for (key, of) in &self.0 {
            let record = |kind, data: Vec<u8>| Record { key: (*key).to_owned(), kind, data };
            match of.folded(key, fold) {
                Some(fewer) => {
                    records.extend(fewer.into_iter().map(|data| record(Kind::Stays, data)));
                }
                None => {
                    let owned = |kind| move |data: &&[u8]| record(kind, data.to_vec());
                    records.extend(of.stays.iter().map(owned(Kind::Stays)));
                    records.extend(of.steps.iter().map(owned(Kind::Step)));
                }
            }
        }
        records
    }
}

impl OfKey<'_> {
    /// What stays then. Nothing if all is to stay as it is.
    fn folded(&self, key: &str, fold: Fold) -> Option<Vec<Vec<u8>>> {
        let bytes = |records: &[&[u8]]| records.iter().map(|data| data.len()).sum::<usize>();
        if self.steps.is_empty() || bytes(&self.steps) < bytes(&self.stays) / FOLDED_FROM_PART {
            return None;
        }
        // What is wrong with one key is no reason to stop writing.
        let fold = AssertUnwindSafe(|| fold(key, &self.stays, &self.steps));
        let folded = catch_unwind(fold).unwrap_or_else(|_| {
            tracing::error!("what is written down under {key} cannot be made less");
            None
        });
        let fits = |data: &Vec<u8>| Found { key, kind: Kind::Stays, data }.fits();
        folded.filter(|records| records.iter().all(fits))
    }
}

/// A file that is to be copied, as it was at some time: what was written since comes behind it.
pub(super) struct Copying {
    pub(super) file: String,
    pub(super) bytes: Vec<u8>,
    pub(super) fold: Fold,
}

impl Copying {
    /// What a copy has of it. Takes long, and needs no disk.
    pub(super) fn run(self) -> Result<Vec<Record>, JournalError> {
        Ok(Left::of(read(&self.file, &self.bytes)?.records).folded(self.fold))
    }
}

/// The records of a file.
pub(super) fn read<'a>(file: &str, bytes: &'a [u8]) -> Result<Read<'a>, JournalError> {
    frame::read(bytes).map_err(|at| JournalError::Damaged { file: file.to_owned(), at })
}
