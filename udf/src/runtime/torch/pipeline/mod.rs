//! Batches on their way through a device that computes by itself: the next one is enqueued before the one before
//! it is waited for.
//!
//! Which memory the device may still use is known here and nowhere else. A batch holds all of its own (pinned
//! inputs, their copies on the device, results, pinned results) until an event says that the device is done with
//! it, whatever becomes of it: it fails, a bug in a model unwinds through it, or nobody wants it any more. So no
//! buffer is used by two batches, and no stream has to be told of memory that another one uses.

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::mem::take;
use std::rc::Rc;

use super::super::device_failure::is_out_of_memory;
use super::shim::Failure;

/// Batches that the device has at a time: one computes, and the next is enqueued behind it.
pub(super) const DEPTH: usize = 2;

/// A device's two streams, as one thread uses them. Calls enqueue and return, except for those that wait.
///
/// Inputs are copied on a stream of their own, so that those of the next batch arrive while one computes. Results
/// are copied behind the program on its stream: on the other one they would hold up the next batch's inputs.
pub(super) trait Streams {
    /// A tensor in pinned memory, which the device copies without the CPU.
    type Host;
    /// A tensor on the device.
    type Tensor;
    /// Something that happens on the program's stream.
    type Event;

    /// Enqueues the copy of an input.
    fn copy_in(&self, input: &Self::Host) -> Result<Self::Tensor, Failure>;
    /// Has what is enqueued for the program from now on wait for the copies of inputs that are enqueued by now.
    fn await_copies(&self) -> Result<(), Failure>;
    /// Enqueues the program.
    fn run(&self, inputs: &[Self::Tensor]) -> Result<Vec<Self::Tensor>, Failure>;
    /// Enqueues the copy of a result, behind the program.
    fn copy_out(&self, result: &Self::Tensor) -> Result<Self::Host, Failure>;
    /// What happens once all that is enqueued for the program by now is done.
    fn record(&self) -> Result<Self::Event, Failure>;
    /// Waits until it has happened, without using the CPU.
    fn wait(&self, event: &Self::Event) -> Result<(), Failure>;
    /// Waits until both streams are empty.
    fn synchronize(&self) -> Result<(), Failure>;
    /// Gives memory that no tensor uses back to the device.
    fn free_unused(&self) -> Result<(), Failure>;
}

/// What one thread has started on its streams.
pub(super) struct Pipeline<S: Streams> {
    // The first is the oldest.
    flights: VecDeque<Flight<S>>,
    streams: Rc<S>,
}

/// A batch that was not started.
pub(super) struct Refused<S: Streams> {
    pub(super) message: Failure,
    /// Its inputs on the device, which does not use them any more; empty if they did not get there.
    pub(super) inputs: Vec<S::Tensor>,
}

impl<S: Streams> Pipeline<S> {
    pub(super) fn new(streams: S) -> Self {
        Self { flights: VecDeque::with_capacity(DEPTH), streams: Rc::new(streams) }
    }

    pub(super) fn streams(&self) -> &S {
        &self.streams
    }

    /// Enqueues a batch; once more if memory is missing that batches before it, or nobody, uses: libtorch keeps
    /// what was freed for tensors of its own, and cuBLAS and cuDNN allocate by themselves.
    pub(super) fn start(&mut self, inputs: Vec<S::Host>) -> Result<(), Refused<S>> {
        let mut flight = Flight::new(Rc::clone(&self.streams), inputs);
        let mut started = flight.enqueue();
        if started.as_ref().is_err_and(|message| is_out_of_memory(message)) {
            started = self.make_room(&mut flight).and_then(|()| flight.enqueue());
        }
        match started {
            Ok(()) => {
                self.flights.push_back(flight);
                Ok(())
            }
            Err(message) => Err(flight.refused(message)),
        }
    }

    /// Waits for the oldest batch: its results. `None` if there is no batch.
    pub(super) fn finish(&mut self) -> Option<Result<Vec<S::Host>, Failure>> {
        let mut flight = self.flights.pop_front()?;
        Some(flight.settle().map(|()| take(&mut flight.outputs)))
    }

    fn make_room(&mut self, flight: &mut Flight<S>) -> Result<(), Failure> {
        for earlier in &mut self.flights {
            // What became of it is told when it is finished.
            let _ = earlier.settle();
        }
        flight.undo()?;
        self.streams.free_unused()
    }
}

/// One batch, and all memory that the device may use for it.
struct Flight<S: Streams> {
    inputs: Vec<S::Host>,
    copied: Vec<S::Tensor>,
    results: Vec<S::Tensor>,
    outputs: Vec<S::Host>,
    event: Option<S::Event>,
    /// What became of it, once the device uses none of its memory.
    outcome: Option<Result<(), Failure>>,
    streams: Rc<S>,
}

impl<S: Streams> Flight<S> {
    fn new(streams: Rc<S>, inputs: Vec<S::Host>) -> Self {
        let (copied, results, outputs) = (Vec::new(), Vec::new(), Vec::new());
        Self { inputs, copied, results, outputs, event: None, outcome: None, streams }
    }

    fn enqueue(&mut self) -> Result<(), Failure> {
        for input in &self.inputs {
            self.copied.push(self.streams.copy_in(input)?);
        }
        self.streams.await_copies()?;
        self.results = self.streams.run(&self.copied)?;
        for result in &self.results {
            self.outputs.push(self.streams.copy_out(result)?);
        }
        self.event = Some(self.streams.record()?);
        Ok(())
    }

    /// Waits until it is done, and frees all but its results.
    fn settle(&mut self) -> Result<(), Failure> {
        if let Some(outcome) = &self.outcome {
            return outcome.clone();
        }
        let outcome = match &self.event {
            Some(event) => self.streams.wait(event),
            None => self.streams.synchronize(),
        };
        self.outcome = Some(outcome.clone());
        self.inputs.clear();
        self.copied.clear();
        self.results.clear();
        self.event = None;
        outcome
    }

    /// As before it was enqueued.
    fn undo(&mut self) -> Result<(), Failure> {
        self.streams.synchronize()?;
        self.copied.clear();
        self.results.clear();
        self.outputs.clear();
        self.event = None;
        Ok(())
    }

    fn refused(mut self, message: Failure) -> Refused<S> {
        self.outcome = Some(self.streams.synchronize());
        Refused { message, inputs: take(&mut self.copied) }
    }
}

impl<S: Streams> Drop for Flight<S> {
    /// The device must be done before the memory is somebody else's. If waiting fails, the device has failed and
    /// uses none.
    fn drop(&mut self) {
        if self.outcome.is_none() {
            self.streams.synchronize().ok();
        }
    }
}
