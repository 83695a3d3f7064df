//! What always holds, by name. Each predicate derives it anew from the units, tasks and blocks,
//! at a cost that only tests can pay; the simulation asks all of them after every event.

use std::collections::BTreeMap;

use super::block::Place;
use super::ids::{BlockId, EdgeId};
use super::job::JobGraph;
use super::ready::ReadyItem;
use super::spec::{EdgeKind, Granularity};
use super::unit::{TaskState, UnitInput, UnitState};

/// Why an invariant does not hold: the values.
pub type Broken = String;

type Predicate = fn(&JobGraph) -> Result<(), Broken>;

/// Every invariant, with its name.
pub const INVARIANTS: &[(&str, Predicate)] = &[
    ("no block that is needed is lost for good", no_block_is_lost),
    ("no block is consumed twice", none_is_consumed_twice),
    ("what is ready can run, and what can run is ready", ready_is_exact),
    ("what lies together is listed where it lies", homes_are_known),
    ("one attempt of a unit runs", one_attempt_runs),
    ("nothing is deleted that somebody reads", nothing_in_use_is_gone),
    ("after the job nothing runs", over_means_nothing_runs),
    ("counts agree with what is counted", counts_agree),
    ("bytes agree with the blocks", bytes_agree),
    ("no more is kept than allowed", kept_within_its_maximum),
];

/// Asks all of [`INVARIANTS`].
pub fn check(graph: &JobGraph) -> Result<(), Broken> {
    INVARIANTS.iter().try_for_each(|(name, holds)| {
        holds(graph).map_err(|values| format!("invariant '{name}' is broken: {values}"))
    })
}

fn hold(condition: bool, values: impl FnOnce() -> String) -> Result<(), Broken> {
    if condition { Ok(()) } else { Err(values()) }
}

fn blocks(graph: &JobGraph) -> impl Iterator<Item = BlockId> {
    graph
        .unit_ids()
        .flat_map(|unit| graph.unit(unit).blocks.iter().map(move |(seq, _)| unit.block(seq)))
}

fn no_block_is_lost(graph: &JobGraph) -> Result<(), Broken> {
    if !graph.is_running_job() {
        return Ok(());
    }
    graph.unit_ids().try_for_each(|unit| {
        let (state, must_run) = (graph.unit(unit).state, graph.must_run(unit));
        hold(!must_run || !graph.unit(unit).is_done(), || {
            format!("unit {unit} is {state:?}, and a part of its output is needed and gone")
        })?;
        hold(must_run || state != UnitState::Pending, || {
            format!("unit {unit} is pending, and nobody needs it")
        })
    })
}

fn none_is_consumed_twice(graph: &JobGraph) -> Result<(), Broken> {
    let mut readers = BTreeMap::new();
    for unit in graph.unit_ids() {
        let found = graph.unit(unit);
        for block in graph.input_blocks(unit) {
            let earlier = readers.insert((found.edge, block), unit);
            hold(earlier.is_none(), || {
                format!("units {unit} and {earlier:?} both have block {block} as input")
            })?;
            let slot = found.edge.map_or(0, |edge| graph.edges[edge.at()].slot);
            let recorded = match &found.input {
                UnitInput::Blocks(_) => graph.block(block).readers[slot],
                _ => graph.unit(block.unit).readers[slot],
            };
            hold(recorded == Some(unit.index), || {
                format!("unit {unit} reads block {block}, whose reader is {recorded:?}")
            })?;
        }
    }
    Ok(())
}

fn ready_is_exact(graph: &JobGraph) -> Result<(), Broken> {
    if !graph.is_running_job() {
        return Ok(());
    }
    for id in graph.unit_ids() {
        let unit = graph.unit(id);
        let ready = &graph.stages[id.stage.at()].ready;
        let listed = ready.contains(ReadyItem::Unit(id.index));
        let waits = ready.is_delayed(id.index, unit.not_before);
        let can_run = unit.state == UnitState::Pending && graph.inputs_are_alive(id);
        hold(can_run == (listed || waits) && !(listed && waits), || {
            format!("unit {id}: can run {can_run}, is listed {listed}, waits {waits}")
        })?;
    }
    for id in graph.unit_ids() {
        for (edge, slot, kind, to) in graph.edges_of(&graph.stages[id.stage.at()].outputs) {
            let unit = graph.unit(id);
            let is_free = kind == EdgeKind::Streaming(Granularity::Units)
                && unit.is_sealed()
                && unit.readers[slot].is_none();
            let item = ReadyItem::Output { edge, unit: id };
            let listed = graph.stages[to.at()].ready.contains(item);
            hold(listed == is_free, || {
                format!("output of {id} on edge {edge}: free {is_free}, listed {listed}")
            })?;
        }
    }
    for id in blocks(graph) {
        for (edge, slot, kind, to) in graph.edges_of(&graph.stages[id.unit.stage.at()].outputs) {
            let block = graph.block(id);
            let is_free = kind == EdgeKind::Streaming(Granularity::Block)
                && block.is_alive()
                && block.readers[slot].is_none();
            let item = ReadyItem::Block { edge, block: id };
            let listed = graph.stages[to.at()].ready.contains(item);
            hold(listed == is_free, || {
                format!("block {id} on edge {edge}: free {is_free}, listed {listed}")
            })?;
        }
    }
    Ok(())
}

fn homes_are_known(graph: &JobGraph) -> Result<(), Broken> {
    graph.unit_ids().try_for_each(|id| {
        let UnitInput::Partition(partition) = graph.unit(id).input else { return Ok(()) };
        let home = graph.home_of_partition(id, partition);
        let listed = graph.stages[id.stage.at()].ready.home_of(ReadyItem::Unit(id.index));
        hold(listed.is_none_or(|listed| *listed == home), || {
            format!("unit {id} is listed at {listed:?}, and its home is {home:?}")
        })
    })
}

fn one_attempt_runs(graph: &JobGraph) -> Result<(), Broken> {
    for stage in &graph.stages {
        for (index, task) in stage.tasks.numbered() {
            let runs = task.state == TaskState::Running;
            let state = stage.units[task.unit as usize].state;
            let id = stage.id.task(index);
            hold(runs == (state == UnitState::Running(index)), || {
                format!("task {id} is {:?} and its unit is {state:?}", task.state)
            })?;
            hold(runs == stage.running.contains(&index), || format!("task {id} in running"))?;
            let seated = graph.slots.get(&task.worker).is_some_and(|tasks| tasks.contains(&id));
            hold(seated == task.holds_lease && (!runs || seated), || {
                format!("task {id} is seated {seated}, holds {}", task.holds_lease)
            })?;
        }
    }
    Ok(())
}

fn nothing_in_use_is_gone(graph: &JobGraph) -> Result<(), Broken> {
    let running =
        graph.unit_ids().filter(|id| matches!(graph.unit(*id).state, UnitState::Running(_)));
    for id in running {
        hold(graph.inputs_are_alive(id), || format!("unit {id} runs and its input is gone"))?;
        hold(graph.gate_is_open(id.stage) || graph.may_run_early(id.stage), || {
            format!("unit {id} runs and a stage that it reads is not complete")
        })?;
    }
    blocks(graph).filter(|_| graph.is_running_job()).try_for_each(|id| {
        let is_freed = graph.block(id).place == Place::Freed;
        hold(!is_freed || !graph.unit(id.unit).is_done() || !graph.is_needed(id), || {
            format!("block {id} is deleted and needed")
        })
    })
}

fn over_means_nothing_runs(graph: &JobGraph) -> Result<(), Broken> {
    let running = graph.stages.iter().map(|stage| stage.running.len()).sum::<usize>();
    let ready = graph.stages.iter().map(|stage| stage.ready.len()).sum::<usize>();
    hold(graph.is_running_job() || running + ready == 0, || {
        format!("the job is {:?}, {running} tasks run, {ready} are ready", graph.status)
    })
}

fn counts_agree(graph: &JobGraph) -> Result<(), Broken> {
    for stage in &graph.stages {
        let count = |holds: &dyn Fn(&super::unit::Unit) -> bool| {
            stage.units.iter().filter(|unit| holds(unit)).count()
        };
        let found = (
            count(&|unit| !unit.is_done()),
            count(&|unit| unit.finished.is_none()),
            count(&|unit| !unit.is_sealed()),
            count(&|unit| unit.is_done() && unit.absent > 0),
            stage.tasks.iter().map(|task| task.expected_left).sum::<u64>(),
        );
        let kept =
            (stage.undone, stage.undeclared, stage.unsealed, stage.gone.len(), stage.expected_left);
        hold(found == kept, || format!("stage {}: {found:?}, counted {kept:?}", stage.id))?;
        let written = (
            stage.tasks.iter().map(|task| task.bytes).sum::<u64>(),
            stage.tasks.iter().map(|task| task.rows).sum::<u64>(),
            stage.tasks.iter().filter_map(|task| task.ended).max(),
        );
        let kept = (stage.written_bytes, stage.written_rows, stage.last_ended);
        hold(written == kept, || format!("stage {}: {written:?}, counted {kept:?}", stage.id))?;
        for (index, unit) in stage.units.iter().enumerate() {
            let absent = unit.blocks.iter().filter(|(_, block)| !block.is_alive()).count();
            hold(absent == unit.absent as usize, || {
                format!("unit {}.{index}: {absent} absent, counted {}", stage.id, unit.absent)
            })?;
        }
    }
    Ok(())
}

fn bytes_agree(graph: &JobGraph) -> Result<(), Broken> {
    let mut unconsumed = vec![0; graph.edges.len()];
    let mut unassigned = vec![0; graph.edges.len()];
    let mut kept = 0;
    let mut held = BTreeMap::<_, (usize, u64, u64)>::new();
    for id in graph.unit_ids() {
        for (edge, slot, kind, _) in graph.edges_of(&graph.stages[id.stage.at()].outputs) {
            let is_units = kind == EdgeKind::Streaming(Granularity::Units);
            let is_free = graph.unit(id).readers[slot].is_none();
            unassigned[edge.at()] += usize::from(is_units && is_free);
        }
    }
    for id in blocks(graph) {
        let block = graph.block(id);
        for (edge, slot, kind, _) in graph.edges_of(&graph.stages[id.unit.stage.at()].outputs) {
            let is_block = kind == EdgeKind::Streaming(Granularity::Block);
            unassigned[edge.at()] += usize::from(is_block && block.readers[slot].is_none());
            if !kind.is_blocking() && block.is_alive() && !graph.reader_is_done(id, edge) {
                unconsumed[edge.at()] += block.bytes;
            }
        }
        if block.is_alive() {
            let there = held.entry(&block.worker).or_default();
            there.0 += 1;
            there.1 += block.bytes;
            there.2 += if block.kept.is_some() { block.bytes } else { 0 };
            let holds = graph.holdings.get(&block.worker);
            let holds = holds.is_some_and(|held| held.blocks.contains(&id));
            hold(holds, || format!("block {id} is not among those of worker {}", block.worker))?;
        }
        kept += if block.kept.is_some() { block.bytes } else { 0 };
        let is_kept = block.is_alive() && !graph.is_needed(id);
        hold(!graph.is_running_job() || block.kept.is_some() == is_kept, || {
            format!("block {id}: consumed {is_kept}, kept {:?}", block.kept)
        })?;
    }
    let listed = graph.holdings.iter();
    let listed = listed.map(|(on, held)| (on, (held.blocks.len(), held.bytes, held.kept_bytes)));
    let listed: BTreeMap<_, _> = listed.collect();
    hold(held == listed, || format!("blocks, bytes and kept: {held:?}, listed {listed:?}"))?;
    hold(kept == graph.kept.bytes, || format!("{kept} kept, counted {}", graph.kept.bytes))?;
    for (index, edge) in graph.edges.iter().enumerate() {
        let found = (unconsumed[index], unassigned[index]);
        let counted = (edge.unconsumed_bytes, edge.unassigned);
        hold(found == counted, || {
            format!("edge {}: {found:?}, counted {counted:?}", EdgeId(index as u32))
        })?;
    }
    Ok(())
}

fn kept_within_its_maximum(graph: &JobGraph) -> Result<(), Broken> {
    let (bytes, max) = (graph.kept.bytes, graph.limits.kept_bytes_max);
    hold(bytes <= max || !graph.is_running_job(), || format!("{bytes} kept of {max}"))
}
