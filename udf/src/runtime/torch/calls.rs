//! What the engine calls of a program: the calling thread computes, or a GPU does, and then through a lane.

use arrow::array::{Array, ArrayRef};
use tch::{TchError, Tensor};

use super::super::replica::{Device, Direct, Lane, Prepared, Replica, Usage};
use super::lane::{CudaStreams, Staged, TorchLane};
use super::library;
use super::pipeline::DEPTH;
use super::replica::TorchReplica;
use crate::error::RuntimeError;

/// Inputs of one forward pass. The tensors may be views of the columns, so they are dropped first.
struct Inputs {
    tensors: Vec<Tensor>,
    _columns: Vec<ArrayRef>,
}

impl TorchReplica {
    /// A lane for the calling thread, with streams of its own.
    fn on_cuda(&self, ordinal: u16) -> Result<TorchLane<'_, CudaStreams<'_>>, RuntimeError> {
        let streams = CudaStreams::enter(self, ordinal);
        let streams = streams.map_err(|e| library::device_problem(self.device, e))?;
        Ok(TorchLane::over(self, streams))
    }
}

impl Replica for TorchReplica {
    fn prepare(&self, columns: &[ArrayRef]) -> Result<Prepared, RuntimeError> {
        let rows = columns.first().map_or(0, |column| column.len());
        let failed = |error: TchError| self.failed(rows, &error.to_string());
        let (inputs, padded) = self.inputs(columns).map_err(failed)?;
        let padded = padded.unwrap_or(rows);
        if let Device::Cuda(_) = self.device {
            let staged = self.staged(&inputs).map_err(|message| self.failed(rows, &message))?;
            return Ok(Prepared { rows, padded, inputs: Box::new(Staged(staged)) });
        }
        let channels = self.channels(tch::Device::Cpu).map_err(failed)?;
        let tensors = self.arguments(&inputs, channels.as_ref()).map_err(failed)?;
        let inputs = Inputs { tensors, _columns: columns.to_vec() };
        Ok(Prepared { rows, padded, inputs: Box::new(inputs) })
    }

    fn forward(&self, batch: Prepared) -> Result<Vec<ArrayRef>, RuntimeError> {
        let rows = batch.rows;
        if let Device::Cuda(ordinal) = self.device {
            let mut lane = self.on_cuda(ordinal)?;
            lane.start(batch)?;
            let no_batch = || Err(self.failed(rows, "the batch was not started"));
            return lane.finish().unwrap_or_else(no_batch);
        }
        let Ok(inputs) = batch.inputs.downcast::<Inputs>() else {
            return Err(self.failed(rows, "the batch was prepared by another replica"));
        };
        let results = self.compute(&inputs.tensors);
        let results = results.map_err(|message| self.explained(rows, &message, &inputs.tensors))?;
        self.columns(rows, &results, &inputs.tensors)
    }

    fn depth(&self) -> usize {
        if let Device::Cuda(_) = self.device { DEPTH } else { 1 }
    }

    fn lane(&self) -> Result<Box<dyn Lane + '_>, RuntimeError> {
        let Device::Cuda(ordinal) = self.device else { return Ok(Box::new(Direct::new(self))) };
        let mut lane = self.on_cuda(ordinal)?;
        lane.warm_up(&self.made_up)?;
        Ok(Box::new(lane))
    }

    fn usage(&self, _rows: usize, padded: usize) -> Usage {
        self.taken(padded)
    }

    fn operations(&self, rows: usize, padded: usize) -> Option<f64> {
        self.work.map(|work| work.of(rows, padded))
    }
}
