//! What tasks write: blocks sealed in mid-task, and the commit at the end.

use super::action::JobFailure;
use super::block::{Block, Place};
use super::event::BlockReport;
use super::ids::{BlockId, EdgeId, Millis, TaskId, UnitId};
use super::job::JobGraph;
use super::lineage::Wave;
use super::row_key::RunBlock;
use super::segments::rows_by_partition;
use super::spec::{EdgeKind, Granularity};
use super::stage::Stage;
use super::unit::{TaskState, UnitState};

type Checked = Result<(), JobFailure>;

impl JobGraph {
    /// A running task has sealed a block. Of an output that is all or none it means nothing yet.
    pub(super) fn announced(&mut self, task: TaskId, report: BlockReport, now: Millis) {
        if !self.is_running(task) {
            self.history.stale_reports += 1;
        } else if self.stages[task.stage.at()].is_block_wise
            && let Err(reason) = self.seal(task, &report.bounded(), now)
        {
            self.fail(reason, now);
        }
    }

    /// A running task has ended well.
    pub(super) fn finished(&mut self, task: TaskId, blocks: Vec<BlockReport>, now: Millis) {
        let unit = task.stage.unit(self.task(task).unit);
        let blocks: Vec<_> = blocks.into_iter().map(BlockReport::bounded).collect();
        let committed = if self.stages[task.stage.at()].is_block_wise {
            self.commit_blocks(task, unit, &blocks, now)
        } else {
            self.commit_whole(task, unit, &blocks, now)
        };
        if let Err(reason) = committed {
            return self.fail(reason, now);
        }
        self.finished_tasks += 1;
        self.learn(task, unit, &blocks, now);
        self.end_task(task, TaskState::Finished, String::new(), now);
        self.declare(unit, task);
        self.set_state(unit, UnitState::Done(task.index));
        self.note_output(unit);
        self.note_homes(unit);
        // Blocks that it was told to skip may have been lost while it ran.
        let mut wave = Wave::new(self);
        wave.touch(unit, super::Cause::SkippedAndLost);
        self.recover(wave, now);
    }

    /// From now on the number of blocks is known.
    fn declare(&mut self, id: UnitId, task: TaskId) {
        let was_sealed = self.unit(id).is_sealed();
        if self.unit_mut(id).finished.replace(task.index).is_none() {
            self.stages[id.stage.at()].undeclared -= 1;
        }
        self.resealed(id, was_sealed);
    }

    fn learn(&mut self, task: TaskId, unit: UnitId, blocks: &[BlockReport], now: Millis) {
        let bytes_in = self.input_blocks(unit).into_iter().map(|block| self.block(block).bytes);
        let bytes_in = bytes_in.sum();
        let found = self.task_mut(task);
        found.bytes = blocks.iter().map(|block| block.bytes).sum();
        found.rows = blocks.iter().map(|block| block.rows).sum();
        let (bytes, rows, busy_ms) = (found.bytes, found.rows, now.since(found.started));
        let (skips, worker) = (!found.skip.is_empty(), found.worker.clone());
        let stage = &mut self.stages[task.stage.at()];
        stage.written_bytes += bytes;
        stage.written_rows += rows;
        // A re-run that skips blocks says nothing of the size of an output.
        if !skips {
            stage.learned.record(&worker, bytes_in, bytes, busy_ms);
        }
        let Some(edge) = self.unit(unit).edge else { return };
        for block in self.input_blocks(unit) {
            let lay_ms = now.since(self.block(block).sealed);
            self.edges[edge.at()].learn(lay_ms, now);
        }
    }

    /// Takes in one block of a running task. The same report may come any number of times.
    fn seal(&mut self, task: TaskId, report: &BlockReport, now: Millis) -> Checked {
        let unit = task.stage.unit(self.task(task).unit);
        let id = unit.block(report.seq);
        let Some(block) = self.unit(unit).blocks.get(report.seq) else {
            if self.unit(unit).finished.is_some() {
                return Err(self.differs(id, "the first run did not have it".to_owned()));
            }
            self.discover(id, task, report, now);
            self.spend_expected(task, report.bytes);
            return Ok(());
        };
        if let Some(difference) = block.difference(report) {
            return Err(self.differs(id, difference));
        }
        // Told before; or there, or needed by nobody, when the task began.
        if block.task == task.index || self.task(task).skip.contains(&report.seq) {
            return Ok(());
        }
        self.spend_expected(task, report.bytes);
        if let Some(block) = self.unit_mut(unit).blocks.get_mut(report.seq) {
            block.bytes = report.bytes;
        }
        self.mark_alive(id, task, now);
        Ok(())
    }

    /// Records a block that is seen for the first time.
    fn discover(&mut self, id: BlockId, task: TaskId, report: &BlockReport, now: Millis) {
        let edges = self.stages[id.unit.stage.at()].outputs.clone();
        let block = Block {
            bytes: report.bytes,
            rows: report.rows,
            checksum: report.checksum,
            run: report.run.clone().map(Box::new),
            segments: report.segments.clone(),
            task: task.index,
            worker: self.task(task).worker.clone(),
            place: Place::Lost,
            losses: 0,
            readers: vec![None; edges.len()].into(),
            kept: None,
            sealed: now,
        };
        let was_sealed = self.unit(id.unit).is_sealed();
        let unit = self.unit_mut(id.unit);
        unit.blocks.insert(id.seq, block);
        unit.absent += 1;
        self.resealed(id.unit, was_sealed);
        for edge in edges {
            let edge = &mut self.edges[edge.at()];
            if edge.spec.kind == EdgeKind::Streaming(Granularity::Block) {
                edge.unassigned += 1;
            }
        }
        self.mark_alive(id, task, now);
    }

    fn spend_expected(&mut self, task: TaskId, bytes: u64) {
        let found = self.task_mut(task);
        let spent = bytes.min(found.expected_left);
        found.expected_left -= spent;
        found.expected_here = found.expected_here.saturating_sub(bytes);
        let worker = found.worker.clone();
        self.stages[task.stage.at()].expected_left -= spent;
        self.changed_holdings.insert(worker);
    }

    /// All blocks of a replayable unit: those that are known must be among them.
    fn commit_blocks(
        &mut self,
        task: TaskId,
        unit: UnitId,
        reports: &[BlockReport],
        now: Millis,
    ) -> Checked {
        reports.iter().try_for_each(|report| self.seal(task, report, now))?;
        let mut told: Vec<_> = reports.iter().map(|report| report.seq).collect();
        told.extend(&self.task(task).skip);
        told.sort_unstable();
        let missing = self.unit(unit).blocks.iter().map(|(seq, _)| seq);
        match missing.into_iter().find(|seq| told.binary_search(seq).is_err()) {
            None => Ok(()),
            Some(seq) => Err(self.differs(unit.block(seq), "this run does not have it".to_owned())),
        }
    }

    /// The output replaces whatever an earlier attempt left: nobody reads that any more.
    fn commit_whole(
        &mut self,
        task: TaskId,
        unit: UnitId,
        reports: &[BlockReport],
        now: Millis,
    ) -> Checked {
        self.check_whole(unit, reports)?;
        let stale: Vec<_> = self.unit(unit).blocks.seqs();
        stale.into_iter().for_each(|seq| self.free(unit.block(seq)));
        let losses = self.unit(unit).blocks.iter().map(|(_, block)| block.losses).max();
        let was_sealed = self.unit(unit).is_sealed();
        let found = self.unit_mut(unit);
        found.blocks.clear();
        found.absent = 0;
        self.resealed(unit, was_sealed);
        for report in reports {
            // A report may name a block twice; the first counts.
            if self.unit(unit).blocks.get(report.seq).is_none() {
                self.discover(unit.block(report.seq), task, report, now);
                if let Some(block) = self.unit_mut(unit).blocks.get_mut(report.seq) {
                    block.losses = losses.unwrap_or(0);
                }
            }
        }
        Ok(())
    }

    /// A re-run must give the same blocks if that was promised. If not, it must at least give as
    /// many rows as those that a reader has used.
    fn check_whole(&self, unit: UnitId, reports: &[BlockReport]) -> Checked {
        let found = self.unit(unit);
        if found.finished.is_none() {
            return Ok(());
        }
        if self.stages[unit.stage.at()].spec.replayable {
            for report in reports {
                let id = unit.block(report.seq);
                let difference = match found.blocks.get(report.seq) {
                    None => Some("the first run did not have it".to_owned()),
                    Some(block) => block.difference(report),
                };
                difference.map_or(Ok(()), |difference| Err(self.differs(id, difference)))?;
            }
            let has = |seq: u32| reports.iter().any(|report| report.seq == seq);
            return match found.blocks.iter().find(|(seq, _)| !has(*seq)) {
                None => Ok(()),
                Some((seq, _)) => {
                    Err(self.differs(unit.block(seq), "this run does not have it".to_owned()))
                }
            };
        }
        let outputs = &self.stages[unit.stage.at()].outputs;
        if !outputs.iter().any(|edge| self.was_read(unit, *edge)) {
            return Ok(());
        }
        let rows: u64 = reports.iter().map(|report| report.rows).sum();
        let first: u64 = found.blocks.iter().map(|(_, block)| block.rows).sum();
        if rows != first {
            let found = format!("gave {rows} rows, and {first} at first, some of which were used");
            return Err(self.gave_others(unit, &found));
        }
        let again = rows_by_partition(reports.iter().map(|report| report.segments.as_ref()));
        let first =
            rows_by_partition(found.blocks.iter().map(|(_, block)| block.segments.as_ref()));
        if again.zip(first).is_some_and(|(again, first)| again != first) {
            return Err(self.gave_others(unit, OTHER_PARTITIONS));
        }
        let again = digest(reports.iter().map(|report| report.run.as_ref()));
        let first = digest(found.blocks.iter().map(|(_, block)| block.run.as_deref()));
        match again.zip(first).is_some_and(|(again, first)| again != first) {
            true => Err(self.gave_others(unit, OTHER_KEYS)),
            false => Ok(()),
        }
    }

    /// Whether some unit is done that read the output of `unit`, or a part of it.
    fn was_read(&self, unit: UnitId, edge: EdgeId) -> bool {
        let edge = &self.edges[edge.at()];
        let consumer = &self.stages[edge.spec.to.at()];
        match self.unit(unit).readers[edge.slot] {
            Some(reader) => consumer.units[reader as usize].is_done(),
            None => {
                let is_any_done = consumer.undone < consumer.units.len();
                edge.spec.kind.is_blocking() && (is_any_done || self.client_reads_of(consumer))
            }
        }
    }

    /// Whether the client has begun to read a stage. It may have read more than was heard of, and does not read that
    /// again.
    fn client_reads_of(&self, stage: &Stage) -> bool {
        let readers = stage.outputs.iter().map(|edge| self.edges[edge.at()].spec.to);
        let clients = readers.map(|to| &self.stages[to.at()]).filter(|to| to.spec.is_client);
        clients.flat_map(|client| &client.units).any(|unit| unit.attempts > 0)
    }

    /// A block of a unit that was proven to give the same ones each time.
    fn differs(&self, id: BlockId, difference: String) -> JobFailure {
        let remedy = "declare the function in it as volatile";
        self.not_deterministic(id.unit, format!("block {id}: {difference}"), remedy)
    }

    /// The rows of a unit of which nothing was proven.
    fn gave_others(&self, unit: UnitId, difference: &str) -> JobFailure {
        let outputs = &self.stages[unit.stage.at()].outputs;
        let is_range = |edge: &EdgeId| self.edges[edge.at()].spec.kind == EdgeKind::Ranges;
        let remedy = if outputs.iter().any(is_range) { NO_RANGES } else { "run the query again" };
        self.not_deterministic(unit, format!("unit {unit} {difference}"), remedy)
    }

    fn not_deterministic(
        &self,
        unit: UnitId,
        difference: String,
        remedy: &'static str,
    ) -> JobFailure {
        let name = self.stages[unit.stage.at()].spec.name.clone();
        let remedy = remedy.into();
        JobFailure::NotDeterministic { stage: unit.stage, name, difference, remedy }
    }
}

const OTHER_KEYS: &str =
    "gave other rows than at first, and ranges of those it gave at first are done";

const OTHER_PARTITIONS: &str =
    "dealt its rows out otherwise than at first, and some of those it dealt out at first were used";

const NO_RANGES: &str = "run the query again, or have one task merge all rows (SET forebay.range_bytes = 0): sums of \
    floats and what models give may differ when a task runs again";

/// The sum over the rows of a run. Nothing if it was not told of each block.
fn digest<'a>(blocks: impl IntoIterator<Item = Option<&'a RunBlock>>) -> Option<u64> {
    blocks.into_iter().try_fold(0, |sum: u64, block| Some(sum.wrapping_add(block?.digest)))
}
