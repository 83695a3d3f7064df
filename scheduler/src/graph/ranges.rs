//! Ranges of sorted runs: where they begin is chosen when all runs are there, and stays so.
//!
//! ```text
//!  runs, a unit each     blocks, by the keys of their first rows       ranges, a unit each
//!  ────────────────────  ────────────────────────────────────────     ───────────────────────────
//!  0                     a───── d───── d───── k─────                   before d
//!  1                     b───── d───── m─────                          d alone: it is heavy
//!  2                     c───── e───── p─────                          from the next key after d, …
//! ```
//! The first keys of blocks are a sample of the rows that is exact where blocks begin, and weighs as much as the
//! blocks do. A border is a key: rows with equal keys are never on both sides of one, and runs that
//! are made again are cut where they were cut before, however their blocks lie then.

use super::bind::{BindError, Input};
use super::ids::{EdgeId, Millis, StageId, UnitId};
use super::job::JobGraph;
use super::row_key::{KeyRange, RowKey};
use super::spec::EdgeKind;
use super::step::Step;
use super::unit::{Unit, UnitInput};

/// Ranges of one stage at most, but for those of heavy keys: each of its tasks is told of a block or two of every
/// run.
const RANGES_MAX: u64 = 4096;

/// Bytes of one block of every run, up to which it does not matter that a range reads so much in vain.
const IN_VAIN_MAX: u64 = 16 << 20;

/// Bytes of one block of each run of a merge up to which a second one is fetched ahead.
const AHEAD_MAX: u64 = 32 << 20;

/// About what a batch of a run takes that is decoded.
const BATCH_BYTES: u64 = 256 << 10;

/// Whether a task that merges runs fetches a second block of each, if one of each has so many bytes.
pub(crate) fn reads_ahead(one_of_each: u64) -> bool {
    one_of_each <= AHEAD_MAX
}

/// Memory that a task holds which merges runs whose blocks have at most so many bytes each: what it has fetched, and
/// a batch of each.
fn memory_of_merge(blocks: &[u64]) -> u64 {
    let one_of_each = blocks.iter().copied().fold(0, u64::saturating_add);
    let fetched = one_of_each.saturating_mul(if reads_ahead(one_of_each) { 2 } else { 1 });
    fetched.saturating_add(BATCH_BYTES.saturating_mul(blocks.len() as u64))
}

/// The keys at which ranges of about `bytes` begin, but for the first range; `sample` has the first key of
/// each block of so many runs, and its bytes. None if all of it is less than one range. A range of many small
/// runs is larger: it would read more beside it than in it.
fn borders(mut sample: Vec<(&RowKey, u64)>, runs: usize, bytes: u64) -> Vec<RowKey> {
    let all: u64 = sample.iter().map(|(_, bytes)| bytes).sum();
    let block = all / (sample.len() as u64).max(1);
    let one_of_each = block.saturating_mul(runs as u64);
    let bytes = if one_of_each > IN_VAIN_MAX { bytes.max(one_of_each) } else { bytes };
    if all < bytes {
        return vec![];
    }
    let bytes = bytes.max(all.div_ceil(RANGES_MAX)).max(1);
    // It is made of runs that are sorted, which this sort merges.
    sample.sort();
    let (mut borders, mut filled) = (vec![], 0);
    for equal in sample.chunk_by(|(a, _), (b, _)| a == b) {
        let (key, its_bytes) = (equal[0].0, equal.iter().map(|(_, bytes)| bytes).sum::<u64>());
        let is_heavy = its_bytes >= bytes;
        if filled > 0 && (filled >= bytes || is_heavy) {
            borders.push(key.clone());
            filled = 0;
        }
        filled += its_bytes;
        if let Some(next) = key.next().filter(|_| is_heavy) {
            borders.push(next);
            filled = 0;
        }
    }
    borders
}

impl JobGraph {
    /// The stage whose runs a stage reads in ranges.
    pub(super) fn runs_of(&self, stage: StageId) -> Option<StageId> {
        let inputs = self.stages[stage.at()].inputs.iter();
        let mut inputs = inputs.map(|edge: &EdgeId| &self.edges[edge.at()].spec);
        inputs.find(|edge| edge.kind == EdgeKind::Ranges).map(|edge| edge.from)
    }

    /// Gives a stage a unit for each range, if it reads ranges, and says what a task of it takes. All runs are there.
    pub(super) fn make_ranges(&mut self, stage: StageId, now: Millis) {
        let Some(from) = self.runs_of(stage) else { return };
        let runs = &self.stages[from.at()].units;
        let blocks = runs.iter().flat_map(|unit| unit.blocks.iter());
        let sample = blocks.filter_map(|(_, block)| Some((&block.run.as_ref()?.key, block.bytes)));
        let range_bytes = self.stages[stage.at()].spec.range_bytes;
        let borders = borders(sample.collect(), runs.len(), range_bytes);
        let largest = |unit: &Unit| unit.blocks.iter().map(|(_, block)| block.bytes).max();
        let memory = memory_of_merge(&runs.iter().filter_map(largest).collect::<Vec<_>>());
        self.stages[stage.at()].spec.need.memory_wanted = memory;
        let step = Step::Ranges { stage, borders: borders.clone(), now };
        self.record(self.is_recorded().then_some(step));
        for range in 0..=borders.len() as u32 {
            let unit = self.add_unit(stage, UnitInput::Range(range), None, 0);
            self.refresh(unit);
        }
        self.stages[stage.at()].borders = Some(borders);
    }

    /// Refuses borders that were written down and are not those of this graph: files may be there, or rows
    /// with the client, that have other keys.
    pub(super) fn check_ranges(&self, stage: StageId, borders: &[RowKey]) -> Result<(), BindError> {
        let found = self.stages.get(stage.at()).and_then(|stage| stage.borders.as_deref());
        if found == Some(borders) { Ok(()) } else { Err(BindError::OtherRanges(stage)) }
    }

    /// How many ranges a stage reads, once that is known.
    #[cfg(test)]
    pub(crate) fn ranges(&self, stage: StageId) -> Option<usize> {
        self.stages[stage.at()].borders.as_ref().map(|borders| borders.len() + 1)
    }

    /// The range that a unit reads, if it reads one.
    pub(super) fn range_of(&self, id: UnitId) -> Option<KeyRange> {
        let UnitInput::Range(number) = self.unit(id).input else { return None };
        let borders = self.stages[id.stage.at()].borders.as_deref().unwrap_or_default();
        let border = |number: u32| borders.get(number as usize).cloned();
        Some(KeyRange { from: number.checked_sub(1).and_then(border), to: border(number) })
    }

    /// The blocks of each run of a stage that may have rows of a range, in their order.
    pub fn blocks_in(&self, stage: StageId, range: &KeyRange) -> Vec<Vec<Input>> {
        let of_run = |(index, unit): (usize, &Unit)| {
            let id = stage.unit(index as u32);
            let alive = unit.blocks.in_range(range).iter().filter(|(_, block)| block.is_alive());
            alive.map(|(seq, _)| self.input(id.block(*seq))).collect::<Vec<_>>()
        };
        let runs = self.stages[stage.at()].units.iter().enumerate().map(of_run);
        runs.filter(|blocks| !blocks.is_empty()).collect()
    }

    /// Rows of a stage's runs that are in front of the [blocks of a range](Self::blocks_in). What is before the range
    /// in these, only whoever reads them can tell.
    pub fn rows_before(&self, stage: StageId, range: &KeyRange) -> u64 {
        self.stages[stage.at()].units.iter().map(|unit| unit.blocks.rows_before(range)).sum()
    }

    /// Rows that a stage has given, wherever they are.
    pub fn rows_of(&self, stage: StageId) -> u64 {
        let blocks = self.stages[stage.at()].units.iter().flat_map(|unit| unit.blocks.iter());
        blocks.map(|(_, block)| block.rows).sum()
    }
}

#[cfg(test)]
mod tests {
    use forebay_testkit::random::Random;

    use super::*;

    /// Borders as text, of a sample of words that weigh 10 each.
    fn cut(words: &str, bytes: u64) -> Vec<String> {
        let keys: Vec<_> = words.split(' ').map(|word| RowKey::new(word.as_bytes())).collect();
        let sample = keys.iter().map(|key| (key, 10)).collect();
        let text = |key: RowKey| String::from_utf8(key.bytes().to_vec()).unwrap();
        borders(sample, 2, bytes).into_iter().map(text).collect()
    }

    #[test]
    fn ranges_have_about_the_bytes_that_were_asked_for() {
        assert_eq!(cut("f b d a c e", 20), ["c", "e"]);
        assert_eq!(cut("f b d a c e", 25), ["d"]);
        assert_eq!(cut("f b d a c e", 60), [""; 0]);
        assert_eq!(cut("f b d a c e", 61), [""; 0]);
        assert_eq!(borders(vec![], 2, 0), []);
        assert_eq!(borders(vec![], 0, 20), []);
    }

    #[test]
    fn a_heavy_key_has_a_range_of_its_own_and_equal_keys_are_in_one() {
        assert_eq!(cut("a m m m m m z", 20), ["m", "m\0"]);
        assert_eq!(cut("m m m m m z z", 30), ["m\0"]);
        // Behind the last of equal keys may be others.
        assert_eq!(cut("m m m", 10), ["m\0"]);
        assert_eq!(cut("a b b b c d", 40), ["c"]);
        // Of a key that may go on nobody knows which is the next one.
        let long = "x".repeat(300);
        assert_eq!(cut(&format!("a {long} {long} z"), 20), [&long[..256], "z"]);
    }

    #[test]
    fn there_are_not_too_many_ranges() {
        let keys: Vec<_> = (0..20_000_u32).map(|key| RowKey::new(&key.to_be_bytes())).collect();
        let borders =
            |bytes, runs| borders(keys.iter().map(|key| (key, bytes)).collect(), runs, 1).len();
        assert_eq!(borders(1, 9), 3999);
        // As many as there are rounds of a block of each run, once that is much.
        assert_eq!(borders(1 << 20, 16), 3999);
        assert_eq!(borders(1 << 20, 2000), 9);
        assert_eq!(borders(1 << 20, 20_000), 0);
    }

    #[test]
    fn borders_ascend_whatever_the_sample_is() {
        let mut random = Random::new(1);
        for _ in 0..2000 {
            let key = |random: &mut Random| {
                let bytes = (0..random.below(4)).map(|_| random.below(3) as u8);
                RowKey::new(&bytes.collect::<Vec<_>>())
            };
            let keys: Vec<_> = (0..random.below(40)).map(|_| key(&mut random)).collect();
            let sample = keys.iter().map(|key| (key, random.below(9))).collect();
            let found = borders(sample, 3, random.below(30));
            assert!(found.is_sorted_by(|a, b| a < b), "{keys:?}: {found:?}");
        }
    }
}
