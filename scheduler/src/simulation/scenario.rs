//! A random job, and what its result must be: each stage is a function of rows, evaluated here
//! without any unit, block or worker.

use std::collections::BTreeMap;

use forebay_testkit::random::{Random, mix};

use crate::graph::{
    BlockReport, EdgeKind, EdgeSpec, Granularity, JobSpec, KeyRange, Limits, RowKey, RunBlock,
    Segment, Segments, StageId, StageSpec, TaskId, UnitInput,
};
use crate::resources::{AcceleratorNeed, Need};

/// Rows are their hashes.
pub(super) type Rows = Vec<u64>;

/// Partitions into which rows are dealt out by hash.
const DEALT: u32 = 3;

/// The partition of a row that is dealt out.
pub(super) fn partition_of(row: u64, partitions: u32) -> u32 {
    (mix(row) % u64::from(partitions)) as u32
}

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) spec: JobSpec,
    pub(super) seed: u64,
    /// What reads whole stages sees of them as a sum: one row too few or too many changes it.
    sums: Vec<u64>,
    pub(super) result: Vec<Rows>,
}

impl Scenario {
    pub(super) fn random(rng: &mut Random) -> Self {
        let mut spec = JobSpec::default();
        for stage in 0..rng.between(1, 5) as u32 {
            add_stage(&mut spec, stage, rng);
        }
        if rng.chance(70) {
            add_client(&mut spec, rng);
        }
        spec.limits = Limits {
            unit_failures_max: 6,
            no_progress_max: 3,
            stage_failures_max: 20,
            unit_losses_max: 10,
            block_losses_max: 5,
            backoff_ms: 5,
            backoff_ms_max: 100,
            kept_bytes_max: [0, 100, 1000, u64::MAX][rng.index(4)],
            buffered_bytes_max: [1, 200, 1000, 100_000][rng.index(4)],
            group_blocks_max: rng.between(1, 8) as usize,
        };
        Self::new(spec, rng.number())
    }

    pub(super) fn new(spec: JobSpec, seed: u64) -> Self {
        let stages = spec.stages.len();
        let mut scenario = Self { spec, seed, sums: vec![0; stages], result: vec![] };
        scenario.evaluate();
        scenario
    }

    /// The whole job, stage by stage: stages are numbered producers first.
    fn evaluate(&mut self) {
        let mut outputs = Vec::<Rows>::new();
        let mut have_units = Vec::<bool>::new();
        for stage in 0..self.spec.stages.len() {
            let id = StageId(stage as u32);
            let partitions = self.spec.stages[stage].partitions;
            let mut rows = Rows::new();
            let mut sum = 0_u64;
            for edge in self.spec.edges.iter().filter(|edge| edge.to == id) {
                let from = &outputs[edge.from.0 as usize];
                if self.is_side_input(edge) {
                    sum = sum.wrapping_add(summed(from));
                } else {
                    rows.extend(from);
                }
            }
            if !self.is_shuffled(id) {
                (0..partitions).for_each(|partition| rows.extend(self.scan(id, partition)));
            }
            self.sums[stage] = sum;
            let has_units = partitions > 0 || self.streams_units(id, &outputs, &have_units);
            let spec = &self.spec.stages[stage];
            outputs.push(match (spec.is_client, has_units || !spec.runs_on_nothing) {
                (true, _) => rows,
                (false, true) => self.compute(id, &rows, sum),
                (false, false) => self.for_nothing(id),
            });
            have_units.push(has_units || self.spec.stages[stage].runs_on_nothing);
        }
        let read: Vec<_> = self.spec.edges.iter().map(|edge| edge.from.0 as usize).collect();
        self.result = outputs;
        for (stage, rows) in self.result.iter_mut().enumerate() {
            rows.sort_unstable();
            if read.contains(&stage) {
                rows.clear();
            }
        }
    }

    /// Whether anything streams into a stage: blocks, or whole units, which may have no rows.
    fn streams_units(&self, stage: StageId, outputs: &[Rows], have_units: &[bool]) -> bool {
        self.spec.edges.iter().filter(|edge| edge.to == stage).any(|edge| match edge.kind {
            EdgeKind::Streaming(Granularity::Block) => !outputs[edge.from.0 as usize].is_empty(),
            EdgeKind::Streaming(Granularity::Unit | Granularity::Units) => {
                have_units[edge.from.0 as usize]
            }
            EdgeKind::Ranges => true,
            EdgeKind::Blocking | EdgeKind::Broadcast | EdgeKind::Hash => false,
        })
    }

    /// What a stage gives if nothing streams in.
    fn for_nothing(&self, stage: StageId) -> Rows {
        vec![mix(self.seed ^ u64::from(stage.0) ^ 0x0bad_5eed)]
    }

    /// Whether a stage's own partitions are those of its shuffles. If not, they are scanned.
    fn is_shuffled(&self, stage: StageId) -> bool {
        let is_shuffle = |kind| matches!(kind, EdgeKind::Blocking | EdgeKind::Hash);
        self.spec.edges.iter().any(|edge| edge.to == stage && is_shuffle(edge.kind))
    }

    fn is_side_input(&self, edge: &EdgeSpec) -> bool {
        let partitions = self.spec.stages[edge.to.0 as usize].partitions;
        match edge.kind {
            EdgeKind::Broadcast => true,
            EdgeKind::Blocking => partitions == 0,
            EdgeKind::Streaming(_) | EdgeKind::Hash | EdgeKind::Ranges => false,
        }
    }

    fn scan(&self, stage: StageId, partition: u32) -> Rows {
        let base = mix(self.seed ^ (u64::from(stage.0) << 32) ^ u64::from(partition));
        (0..base % 6).map(|row| mix(base ^ row)).collect()
    }

    /// Drops some rows, doubles some, and changes all.
    fn compute(&self, stage: StageId, rows: &Rows, sum: u64) -> Rows {
        let salt = mix(self.seed ^ sum) ^ u64::from(stage.0);
        let of = |row: &u64| {
            let made = mix(row ^ salt);
            (0..[0, 2, 1, 1, 1, 1][(made % 6) as usize]).map(move |copy| mix(made ^ copy))
        };
        rows.iter().flat_map(of).collect()
    }

    /// Where a row stands in the order of runs: among few rows or many that stand there, or all.
    pub(super) fn key(&self, row: u64) -> RowKey {
        let places = [1, 4, 1000][(self.seed % 3) as usize];
        RowKey::new(&(mix(row ^ self.seed) % places).to_be_bytes())
    }

    /// What a task makes of its unit. `side` has the rows of what it reads as whole stages, by
    /// edge; `streamed` those of its blocks.
    pub(super) fn run(
        &self,
        stage: StageId,
        input: &UnitInput,
        streamed: Rows,
        whole: &BTreeMap<u32, Rows>,
        range: &KeyRange,
    ) -> Rows {
        if matches!(input, UnitInput::Blocks(blocks) if blocks.is_empty()) {
            return self.for_nothing(stage);
        }
        let mut rows = streamed;
        let mut sum = 0_u64;
        for (edge, read) in whole {
            let edge = &self.spec.edges[*edge as usize];
            let partitions = self.spec.stages[stage.0 as usize].partitions;
            match (self.is_side_input(edge), input) {
                (true, _) => sum = sum.wrapping_add(summed(read)),
                (false, UnitInput::Partition(partition)) => {
                    let mine = |row: &&u64| partition_of(**row, partitions) == *partition;
                    rows.extend(read.iter().filter(mine));
                }
                (false, UnitInput::Range(_)) => {
                    let is_behind =
                        |row: &u64| range.to.as_ref().is_some_and(|to| self.key(*row) >= *to);
                    let is_before =
                        |row: &u64| range.from.as_ref().is_some_and(|from| self.key(*row) < *from);
                    rows.extend(read.iter().filter(|row| !is_before(row) && !is_behind(row)));
                }
                (false, _) => {}
            }
        }
        if let (UnitInput::Partition(partition), false) = (input, self.is_shuffled(stage)) {
            rows.extend(self.scan(stage, *partition));
        }
        rows.sort_unstable();
        self.compute(stage, &rows, sum)
    }

    /// Cuts an output into blocks: by its rows alone if that was promised, else by the attempt.
    pub(super) fn cut(&self, task: TaskId, rows: Rows) -> Vec<(BlockReport, Rows)> {
        let replayable = self.spec.stages[task.stage.0 as usize].replayable;
        let gives_runs = self.gives_runs(task.stage);
        let salt = if replayable { 0 } else { mix(u64::from(task.index) + 1) };
        let mut rows = rows;
        let key = |row: u64| gives_runs.then(|| self.key(row));
        rows.sort_by_cached_key(|row| (key(*row), mix(row ^ salt)));
        let mut blocks = vec![Rows::new()];
        for row in rows {
            if mix(row ^ salt ^ 7).is_multiple_of(3)
                && blocks.last().is_some_and(|last| !last.is_empty())
            {
                blocks.push(Rows::new());
            }
            if let Some(last) = blocks.last_mut() {
                last.push(row);
            }
        }
        blocks.retain(|block| !block.is_empty());
        // Of some blocks nobody knows where they begin.
        let key = |rows: &Rows| key(rows[0]).filter(|_| !rows[0].is_multiple_of(16));
        let last = blocks.len().saturating_sub(1);
        let run = |at: usize, rows: &Rows| {
            let end = Some(self.key(rows[rows.len() - 1])).filter(|_| at == last);
            key(rows).map(|key| RunBlock { key, end, digest: summed(rows) })
        };
        let deals = self.deals(task.stage);
        let report = |(at, rows): (usize, Rows)| {
            let run = run(at, &rows);
            let mut report = self.report(at as u32, &rows, run);
            if deals {
                let segments = segments(&rows);
                (report.bytes, report.segments) = (segments.file_bytes(), Some(segments));
            }
            (report, rows)
        };
        blocks.into_iter().enumerate().map(report).collect()
    }

    fn gives_runs(&self, stage: StageId) -> bool {
        self.spec.edges.iter().any(|edge| edge.from == stage && edge.kind == EdgeKind::Ranges)
    }

    fn deals(&self, stage: StageId) -> bool {
        self.spec.edges.iter().any(|edge| edge.from == stage && edge.kind == EdgeKind::Hash)
    }

    fn report(&self, seq: u32, rows: &Rows, run: Option<RunBlock>) -> BlockReport {
        let checksum = checksum(rows);
        let (bytes, rows) = (1 + checksum % 100, rows.len() as u64);
        BlockReport { seq, bytes, rows, checksum, run, segments: None }
    }
}

fn checksum(rows: &Rows) -> u64 {
    rows.iter().fold(1, |sum, row| mix(sum ^ row))
}

/// What a block has of each partition.
fn segments(rows: &Rows) -> Segments {
    let (mut all, mut at) = (vec![], 0);
    for partition in 0..DEALT {
        let mine: Rows =
            rows.iter().copied().filter(|row| partition_of(*row, DEALT) == partition).collect();
        if mine.is_empty() {
            continue;
        }
        let checksum = checksum(&mine) as u32;
        let (bytes, rows) = (1 + checksum % 40, mine.len() as u32);
        all.push(Segment { partition, at, bytes, rows, checksum });
        at += bytes;
    }
    Segments::new(&all)
}

fn summed(rows: &Rows) -> u64 {
    rows.iter().fold(0, |sum, row| sum.wrapping_add(mix(*row)))
}

/// A client of the last stage, which nobody else reads.
fn add_client(spec: &mut JobSpec, rng: &mut Random) {
    let (from, to) = (StageId(spec.stages.len() as u32 - 1), StageId(spec.stages.len() as u32));
    let granularity = if spec.stages[from.0 as usize].replayable {
        Granularity::Block
    } else {
        Granularity::Unit
    };
    let budget = [1, 150, 1000, u64::MAX][rng.index(4)];
    let edge = EdgeSpec::new(from, to, EdgeKind::Streaming(granularity));
    spec.edges.push(edge.with_budget_bytes(budget));
    spec.stages.push(StageSpec::client().with_group_bytes_max([1, 100, 500][rng.index(3)]));
}

fn add_stage(spec: &mut JobSpec, stage: u32, rng: &mut Random) {
    let to = StageId(stage);
    let mut kinds = vec![];
    if stage > 0 && rng.chance(15) {
        // What is sorted reads nothing else.
        kinds.push(EdgeKind::Ranges);
        spec.edges.push(EdgeSpec::new(StageId(stage - 1), to, EdgeKind::Ranges));
    } else if stage > 0 && rng.chance(85) {
        for _ in 0..rng.between(1, 3).min(rng.between(1, 3)) {
            // Mostly the stage before, so that chains are common.
            let from = if rng.chance(60) { stage - 1 } else { rng.below(stage.into()) as u32 };
            let kind = match rng.below(12) {
                0..=4 if spec.stages[from as usize].replayable => {
                    EdgeKind::Streaming(Granularity::Block)
                }
                0..=5 => EdgeKind::Streaming(Granularity::Unit),
                6 => EdgeKind::Streaming(Granularity::Units),
                7..=8 => EdgeKind::Blocking,
                9..=10 => EdgeKind::Hash,
                _ => EdgeKind::Broadcast,
            };
            kinds.push(kind);
            let budget = [1, 150, 1000, u64::MAX][rng.index(4)];
            let mut edge = EdgeSpec::new(StageId(from), to, kind).with_budget_bytes(budget);
            edge.is_pipelined = kind == EdgeKind::Hash && rng.chance(70);
            edge.lies_together = kind == EdgeKind::Hash && rng.chance(50);
            spec.edges.push(edge.with_partition_offset(100 * kinds.len() as u32));
        }
    }
    let streams = kinds.iter().any(|kind| !kind.is_blocking());
    let partitions = match (streams, kinds.contains(&EdgeKind::Blocking)) {
        _ if kinds.contains(&EdgeKind::Hash) => u64::from(DEALT),
        (true, true) => rng.below(3),
        (true, false) => rng.between(1, 2) * u64::from(rng.chance(15)),
        (false, _) if kinds.contains(&EdgeKind::Ranges) => 0,
        (false, _) => rng.below(5),
    };
    let mut need = Need::cpus([0, 500, 1000, 1000][rng.index(4)]);
    if rng.chance(if kinds.is_empty() { 5 } else { 45 }) {
        let share = AcceleratorNeed::try_new([500, 1000, 1000][rng.index(3)]).unwrap();
        need = need.with_accelerator(share);
    } else if need.cpus_milli == 0 {
        need.cpus_milli = 1000;
    }
    let mut found = StageSpec::new(format!("s{stage}"), need, partitions as u32)
        .with_group_bytes_max([1, 100, 500][rng.index(3)])
        .with_group_bytes_min([0, 0, 50, 500][rng.index(4)])
        .with_group_rows_max([1, 5, u64::MAX][rng.index(3)])
        .with_range_bytes([1, 50, 300, u64::MAX][rng.index(4)])
        .with_output_bytes_guess(rng.between(1, 200));
    found.units_together = [1, 1, 2, 3][rng.index(4)];
    found.replayable = rng.chance(70);
    found.runs_on_nothing = streams && rng.chance(50);
    spec.stages.push(found);
}
