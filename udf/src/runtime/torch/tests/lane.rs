//! Batches through a lane, on a device that is the CPU.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use arrow::compute::filter;

use super::super::super::replica::{Lane, Prepared};
use super::super::lane::{Staged, TorchLane};
use super::super::pipeline::Streams;
use super::super::replica::{Channels, TorchReplica};
use super::super::streams::Pinned;
use super::super::tensor::Tokens;
use super::*;
use crate::model::TransformKind;

/// A device that is the CPU: what is enqueued is done at once.
struct OnHost<'a> {
    replica: &'a TorchReplica,
    channels: Option<Channels>,
}

impl Streams for OnHost<'_> {
    type Host = Pinned;
    type Tensor = Tensor;
    type Event = ();

    fn copy_in(&self, input: &Pinned) -> Result<Tensor, String> {
        Ok(input.tensor().copy())
    }

    fn await_copies(&self) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        self.replica.run(inputs, self.channels.as_ref())
    }

    fn copy_out(&self, result: &Tensor) -> Result<Pinned, String> {
        Pinned::of(&result.contiguous(), Device::Cpu, self.replica.pinned())
    }

    fn record(&self) -> Result<(), String> {
        Ok(())
    }

    fn wait(&self, (): &()) -> Result<(), String> {
        Ok(())
    }

    fn synchronize(&self) -> Result<(), String> {
        Ok(())
    }

    fn free_unused(&self) -> Result<(), String> {
        Ok(())
    }
}

fn on_host(replica: &TorchReplica) -> TorchLane<'_, OnHost<'_>> {
    let channels = replica.channels(tch::Device::Cpu).unwrap();
    TorchLane::over(replica, OnHost { replica, channels })
}

fn staged(replica: &TorchReplica, columns: &[ArrayRef]) -> Prepared {
    let (inputs, padded) = replica.inputs(columns).unwrap();
    let rows = columns[0].len();
    let inputs = Box::new(Staged(replica.staged(&inputs).unwrap()));
    Prepared { rows, padded: padded.unwrap_or(rows), inputs }
}

fn torch_replica(folder: &Path) -> (TorchReplica, ModelDeclaration, Package) {
    info().unwrap();
    let (mut model, package) = open(folder);
    model.allow_native = Some(true);
    let kernels = Ok(LinearKernels::Mkl);
    let replica = TorchReplica::load(&model, &package, Device::Cpu, kernels).unwrap();
    (replica, model, package)
}

#[test]
fn what_goes_through_a_lane_is_what_the_calling_thread_computes() {
    for folder in fs::read_dir(prepared("fixtures")).unwrap().map(|entry| entry.unwrap().path()) {
        if !folder.join("reference.json").exists() {
            continue;
        }
        let (replica, model, package) = torch_replica(&folder.join("package"));
        let inputs = reference(&folder, "inputs", &model.signature.inputs);
        let columns = transform::load(&model, &package).unwrap().apply(&inputs).unwrap().columns;
        let _thread = crate::runtime::enter_thread(&model, Device::Cpu).unwrap();
        let mut lane = on_host(&replica);
        let rows = columns[0].len();
        let first: Vec<ArrayRef> = columns.iter().map(|column| column.slice(0, 1)).collect();
        let rest: Vec<ArrayRef> = columns.iter().map(|column| column.slice(1, rows - 1)).collect();
        for batch in [&first, &rest] {
            lane.start(staged(&replica, batch)).unwrap();
        }
        assert!(replica.pinned().load(Ordering::Relaxed) > 0);
        let found = [(); 2].map(|()| lane.finish().unwrap().unwrap());
        assert!(lane.finish().is_none());
        // Columns have memory of their own.
        assert_eq!(replica.pinned().load(Ordering::Relaxed), 0);
        for (found, batch) in found.iter().zip([&first, &rest]) {
            let expected = run(&replica, batch).unwrap();
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found, expected, "{}", folder.display());
            }
        }
    }
}

/// Batches of `columns` whose rows are equally long, and one of all rows.
fn even_and_all(columns: &[ArrayRef]) -> Vec<Vec<ArrayRef>> {
    let lengths: Vec<usize> = columns[0].as_list::<i32>().offsets().lengths().collect();
    let mut batches = vec![columns.to_vec()];
    for length in lengths.iter().collect::<BTreeSet<_>>() {
        let is_kept: BooleanArray = lengths.iter().map(|other| Some(other == length)).collect();
        batches.push(columns.iter().map(|column| filter(column, &is_kept).unwrap()).collect());
    }
    batches
}

#[test]
fn batches_without_padding_go_without_a_mask_and_give_the_same() {
    let mut without = 0;
    for folder in fs::read_dir(prepared("fixtures")).unwrap().map(|entry| entry.unwrap().path()) {
        if !folder.join("reference.json").exists() {
            continue;
        }
        let (mut replica, model, package) = torch_replica(&folder.join("package"));
        let TransformKind::Tokenize { arguments, .. } = &model.transform else { continue };
        // Its kernels are packed for `forward` only, and those of the CPU always take a mask.
        assert!(!replica.omits_masks);
        let inputs = reference(&folder, "inputs", &model.signature.inputs);
        let columns = transform::load(&model, &package).unwrap().apply(&inputs).unwrap().columns;
        let batches = even_and_all(&columns);
        let _thread = crate::runtime::enter_thread(&model, Device::Cpu).unwrap();
        let expected: Vec<_> = batches.iter().map(|batch| run(&replica, batch).unwrap()).collect();
        replica.omit_masks(&model);
        without += usize::from(replica.omits_masks);
        let mut lane = on_host(&replica);
        lane.warm_up(&replica.made_up).unwrap();
        for (batch, expected) in batches.iter().zip(&expected) {
            let is_even = Tokens::of(&batch[0]).unwrap().is_even();
            let omitted = usize::from(is_even && replica.omits_masks);
            assert_eq!(replica.inputs(batch).unwrap().0.len(), arguments.len() - omitted);
            lane.start(staged(&replica, batch)).unwrap();
            let found = lane.finish().unwrap().unwrap();
            for (found, expected) in found.iter().zip(expected) {
                assert_same(found, expected, &folder.display().to_string());
            }
        }
    }
    assert!(without >= 15, "{without} programs can do without a mask");
}

#[test]
fn native_code_is_given_tensors_in_the_layout_that_it_was_made_for() {
    let folder = prepared("fixtures").join("compiled");
    let (replica, model, package) = torch_replica(&folder.join("package"));
    let inputs = reference(&folder, "inputs", &model.signature.inputs);
    let columns = transform::load(&model, &package).unwrap().apply(&inputs).unwrap().columns;
    let (tensors, _) = replica.inputs(&columns).unwrap();
    // The same numbers, column by column in memory.
    let turned: Vec<Tensor> = tensors.iter().map(|tensor| tensor.tr().contiguous().tr()).collect();
    assert!(turned.iter().all(|tensor| !tensor.is_contiguous()));
    let _thread = crate::runtime::enter_thread(&model, Device::Cpu).unwrap();
    let [expected, found] =
        [&tensors, &turned].map(|tensors| replica.run(tensors, None).unwrap().remove(0));
    assert!(expected.allclose(&found, 0.0, 1e-6, false), "{expected:?} {found:?}");
}

#[test]
fn what_a_lane_says_of_a_batch_is_what_the_calling_thread_says() {
    let (replica, ..) = torch_replica(table().path());
    let mut lane = on_host(&replica);
    let row =
        |n: i64| -> [ArrayRef; 2] { [Arc::new(Int64Array::from(vec![n])), vectors(&[[1.0, 2.0]])] };
    let (good, bad) = (row(1), row(7));
    lane.start(staged(&replica, &good)).unwrap();
    let error = lane.start(staged(&replica, &bad)).unwrap_err();
    let expected = run(&replica, &bad).unwrap_err();
    assert_eq!(error.to_string(), expected.to_string());
    assert_eq!(lane.finish().unwrap().unwrap(), run(&replica, &good).unwrap());
    assert!(lane.finish().is_none());
    let other = Prepared { rows: 1, padded: 1, inputs: Box::new(()) };
    assert!(lane.start(other).unwrap_err().to_string().contains("another replica"));
}
