//! The memory experiment of the streaming batch model (arXiv 2501.12407, figure 9) at a tenth, in virtual time:
//! 160 loads of 0.5 s, each of which then gives 500 rows of 100 kB within 250 ms; 50 ms of an accelerator per 100
//! rows; 8 cores and 4 accelerators. The cores alone need 15 s, the accelerators 10 s.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::*;
use crate::graph::{Action, BlockId, Limits};

const LOADS: u32 = 160;
const LOAD_MS: u64 = 500;
const BLOCKS: u32 = 5;
const BLOCK_BYTES: u64 = 10_000_000;
/// Of a core for each block, and of an accelerator.
const BLOCK_MS: u64 = 50;
const CPUS: u32 = 8;
const IDEAL_MS: u64 = 15_000;
/// What the loads that run hold themselves.
const LOADS_HOLD: u64 = 400_000_000;
const NEVER: u64 = 1_000_000;

/// Milliseconds that the job takes when blocks may take so many bytes, which a worker's disk has room for.
fn run(admission: Admission, bytes_max: u64) -> u64 {
    let mut cluster = Cluster::new(bytes_max);
    while cluster.graph.is_running_job() {
        cluster.place(admission);
        cluster.go_on();
    }
    cluster.now
}

struct Cluster {
    graph: JobGraph,
    paper: PaperBudget,
    fleet: Fleet,
    now: u64,
    /// When the next thing happens to a task.
    coming: BinaryHeap<Reverse<(u64, TaskId)>>,
    /// Blocks that a load has sealed.
    sealed: BTreeMap<TaskId, u32>,
    /// Blocks that lie on the disk; loads that wait until there is room for one.
    stored: BTreeMap<BlockId, u64>,
    waiting: VecDeque<TaskId>,
    bytes_max: u64,
}

impl Cluster {
    fn new(bytes_max: u64) -> Self {
        let load = StageSpec::new("load", Need::cpus(1000), LOADS)
            .with_replayable()
            .with_output_bytes_guess(bytes_max / 4);
        let infer = infer().with_group_rows_max(100);
        let edges = vec![EdgeSpec::new(StageId(0), StageId(1), BLOCK).with_budget_bytes(bytes_max)];
        let limits =
            Limits { buffered_bytes_max: 2 * bytes_max, kept_bytes_max: 0, ..Limits::default() };
        let spec = JobSpec { stages: vec![load, infer], edges, limits };
        Self {
            graph: JobGraph::try_new(spec).unwrap(),
            paper: PaperBudget::default(),
            fleet: fleet(&[worker("a", CPUS, 4).with_work_bytes(bytes_max)]),
            now: 0,
            coming: BinaryHeap::new(),
            sealed: BTreeMap::new(),
            stored: BTreeMap::new(),
            waiting: VecDeque::new(),
            bytes_max,
        }
    }

    fn place(&mut self, admission: Admission) {
        let job = Job { admission, ..job_of(&mut self.graph, &mut self.paper) };
        for binding in place(&mut [job], &mut self.fleet, Millis(self.now)) {
            let task = binding.bound.task;
            let takes = if task.stage.0 == 0 { LOAD_MS + BLOCK_MS } else { BLOCK_MS };
            self.coming.push(Reverse((self.now + takes, task)));
        }
    }

    fn go_on(&mut self) {
        // The paper's budget grows by the second.
        let next = self.coming.pop().unwrap_or(Reverse((self.now + 1000, StageId(2).task(0))));
        let Reverse((at, task)) = next;
        assert!(at < NEVER, "the job stands still");
        self.now = at;
        match task.stage {
            StageId(0) => self.seals(task),
            StageId(1) => {
                let report = BlockReport {
                    seq: 0,
                    bytes: 1000,
                    rows: 100,
                    checksum: 1,
                    run: None,
                    segments: None,
                };
                self.tell(Event::TaskFinished { task, blocks: vec![report] });
            }
            _ => {}
        }
    }

    fn seals(&mut self, task: TaskId) {
        if self.stored.values().sum::<u64>() + BLOCK_BYTES > self.bytes_max {
            self.waiting.push_back(task);
            return;
        }
        let seq = *self.sealed.entry(task).and_modify(|sealed| *sealed += 1).or_insert(1) - 1;
        let report = |seq| BlockReport {
            seq,
            bytes: BLOCK_BYTES,
            rows: 100,
            checksum: 1,
            run: None,
            segments: None,
        };
        self.stored.insert(task.stage.unit(self.graph_unit(task)).block(seq), BLOCK_BYTES);
        self.tell(Event::BlockSealed { task, block: report(seq) });
        if seq + 1 == BLOCKS {
            let blocks = (0..BLOCKS).map(report).collect();
            self.tell(Event::TaskFinished { task, blocks });
        } else {
            self.coming.push(Reverse((self.now + BLOCK_MS, task)));
        }
    }

    /// Without failures each unit has one attempt.
    fn graph_unit(&self, task: TaskId) -> u32 {
        let mut tasks = self.graph.task_rows();
        tasks.find(|row| row.id == task).unwrap().unit.index
    }

    fn tell(&mut self, event: Event) {
        for action in self.graph.apply(event, Millis(self.now)) {
            if let Action::FreeBlock { block, .. } = action {
                self.stored.remove(&block);
                let waiting = self.waiting.pop_front();
                self.coming.extend(waiting.map(|task| Reverse((self.now, task))));
            }
        }
    }
}

#[test]
fn under_any_limit_admission_costs_little_and_nothing_beside_none() {
    let limits = [600, 800, 1000, 1200, 1400, 1600];
    let found = limits.map(|limit_mb| {
        let bytes_max = limit_mb * 1_000_000 - LOADS_HOLD;
        let [own, paper, none] = [Admission::Reserve, Admission::Paper, Admission::Off]
            .map(|admission| run(admission, bytes_max) as f64 / IDEAL_MS as f64);
        (limit_mb, own, paper.min(none), format!("paper {paper:.2}, none {none:.2}"))
    });
    for (_, own, others, _) in &found {
        assert!(*own <= 1.33 && *own <= 1.05 * others, "{found:.2?}");
    }
}
