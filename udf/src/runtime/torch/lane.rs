//! The way of one thread into a program on a GPU: streams of its own, and batches enqueued ahead.

use std::collections::VecDeque;

use arrow::array::ArrayRef;
use tch::Tensor;

use super::super::replica::{Held, Lane, Prepared, Replica, Usage};
use super::pipeline::{Pipeline, Refused, Streams};
use super::replica::{Channels, TorchReplica};
use super::shim::{self, Failure};
use super::streams::{Event, Pinned, StreamPair};
use crate::error::RuntimeError;

/// What `prepare` makes for a device that copies its inputs by itself.
pub(super) struct Staged(pub(super) Vec<Pinned>);

/// A program and the streams that one thread runs it on.
pub(super) struct TorchLane<'a, S: Streams> {
    replica: &'a TorchReplica,
    pipeline: Pipeline<S>,
    /// How many rows each batch has that was started.
    rows: VecDeque<usize>,
}

impl<'a, S: Streams<Host = Pinned, Tensor = Tensor>> TorchLane<'a, S> {
    pub(super) fn over(replica: &'a TorchReplica, streams: S) -> Self {
        Self { replica, pipeline: Pipeline::new(streams), rows: VecDeque::new() }
    }

    /// Runs the program once on made-up rows: libraries make their handles, workspaces and plans for each thread
    /// and stream. A program that refuses made-up rows is none the worse for it; a device that is lost to them is.
    ///
    /// # Errors
    /// [`RuntimeError::DeviceLost`].
    pub(super) fn warm_up(&mut self, made_up: &[Vec<ArrayRef>]) -> Result<(), RuntimeError> {
        for columns in made_up {
            let batch = self.replica.prepare(columns);
            let warm =
                batch.and_then(|batch| self.start(batch)).and_then(|()| self.finish().transpose());
            match warm {
                Err(error @ RuntimeError::DeviceLost { .. }) => return Err(error),
                Err(error) => tracing::debug!("{error} while it was warmed up"),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    fn refused(&self, rows: usize, Refused { message, inputs }: Refused<S>) -> RuntimeError {
        let error = self.replica.explained_by_inputs(rows, &message, &inputs);
        // The program may have been tried with other numbers meanwhile.
        self.pipeline.streams().synchronize().ok();
        error
    }
}

impl<S: Streams<Host = Pinned, Tensor = Tensor>> Lane for TorchLane<'_, S> {
    fn start(&mut self, batch: Prepared) -> Result<(), RuntimeError> {
        let rows = batch.rows;
        let Ok(staged) = batch.inputs.downcast::<Staged>() else {
            return Err(self.replica.failed(rows, "the batch was prepared by another replica"));
        };
        self.pipeline.start(staged.0).map_err(|refused| self.refused(rows, refused))?;
        self.rows.push_back(rows);
        Ok(())
    }

    fn finish(&mut self) -> Option<Result<Vec<ArrayRef>, RuntimeError>> {
        let rows = self.rows.pop_front()?;
        let results = self.pipeline.finish()?;
        Some(results.map_err(|message| self.replica.failed(rows, &message)).and_then(|results| {
            let tensors: Vec<Tensor> =
                results.iter().map(|result| result.tensor().shallow_clone()).collect();
            // Told that they are inputs, whose memory is needed again, so columns have memory of their own.
            self.replica.columns(rows, &tensors, &tensors)
        }))
    }

    fn usage(&self, _rows: usize, padded: usize) -> Usage {
        self.replica.taken(padded)
    }

    fn held(&self) -> Option<Held> {
        self.replica.held()
    }
}

/// A GPU's streams, on which a program runs.
pub(super) struct CudaStreams<'a> {
    replica: &'a TorchReplica,
    /// On the device, where no batch waits for them.
    channels: Option<Channels>,
    pair: StreamPair,
}

impl<'a> CudaStreams<'a> {
    pub(super) fn enter(replica: &'a TorchReplica, ordinal: u16) -> Result<Self, Failure> {
        let pair = StreamPair::enter(ordinal)?;
        let device = tch::Device::Cuda(usize::from(ordinal));
        let channels = replica.channels(device).map_err(|error| error.to_string())?;
        Ok(Self { replica, channels, pair })
    }
}

impl Streams for CudaStreams<'_> {
    type Host = Pinned;
    type Tensor = Tensor;
    type Event = Event;

    fn copy_in(&self, input: &Pinned) -> Result<Tensor, Failure> {
        self.pair.copy_in(input)
    }

    fn await_copies(&self) -> Result<(), Failure> {
        self.pair.await_copies()
    }

    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        self.replica.run(inputs, self.channels.as_ref())
    }

    fn copy_out(&self, result: &Tensor) -> Result<Pinned, Failure> {
        self.pair.copy_out(result, self.replica.pinned())
    }

    fn record(&self) -> Result<Event, Failure> {
        self.pair.record()
    }

    fn wait(&self, event: &Event) -> Result<(), Failure> {
        event.wait()
    }

    fn synchronize(&self) -> Result<(), Failure> {
        self.pair.synchronize()
    }

    fn free_unused(&self) -> Result<(), Failure> {
        self.replica.kept_nothing();
        shim::empty_cache()
    }
}
