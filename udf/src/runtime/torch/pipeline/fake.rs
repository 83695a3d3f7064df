//! A device that computes at once and says what would go wrong if it did not: its two streams count what they were
//! told, every buffer knows who used it last, and time is a number.
//!
//! It panics if something is read before it is certain to be written, or freed while a stream may still use it.
//! Its allocator has a limit and keeps what was freed for tensors of the same stream, as libtorch's does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::rc::Rc;

use super::super::shim::Failure;
use super::Streams;

const COPIES: usize = 0;
const COMPUTE: usize = 1;

/// How long the copy of an input takes, whatever its size; the program; the copy of a result.
pub(super) const TIMES: [u64; 3] = [10, 100, 5];

/// Memory that the program takes while it runs, as a multiple of its input.
const WORKSPACE: usize = 3;

/// What a call to the device may end in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    OutOfMemory,
    /// A batch that the program refuses.
    Program,
    /// A bug in the program or around it.
    Panic,
    /// The device fails, and from now on so does every call.
    Dead,
}

/// What the device has and knows.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The time.
    pub(super) now: u64,
    /// Until when each stream is busy with what it was told.
    busy_until: [u64; 2],
    /// How many things each stream was told.
    told: [u64; 2],
    /// By stream, how many of each stream's things are done before its next one begins.
    known: [[u64; 2]; 2],
    /// How many of each stream's things the CPU knows to be done.
    seen: [u64; 2],
    /// Bytes of tensors, and bytes that were freed and are kept for tensors of each stream.
    pub(super) used: usize,
    kept: [usize; 2],
    limit: usize,
    pub(super) pinned: usize,
    pub(super) pinned_peak: usize,
    pub(super) events: usize,
    pub(super) streams: usize,
    calls: usize,
    /// By the number of the call that they happen in.
    faults: BTreeMap<usize, Fault>,
    pub(super) dead: Option<Failure>,
}

type Shared = Rc<RefCell<State>>;

/// Its two streams.
pub(super) struct Fake(Shared);

/// What both sides of a copy have.
struct Buffer {
    values: Vec<u64>,
    /// By which stream it was written, as which of its things; `None` if by the CPU.
    written: Option<(usize, u64)>,
    /// The last thing of each stream that uses it.
    last: Cell<[u64; 2]>,
    device: Shared,
}

/// In pinned memory.
pub(super) struct Host(Buffer);

/// On the device; its memory is of one of the streams.
pub(super) struct Tensor(Buffer, usize);

pub(super) struct Event {
    seen: [u64; 2],
    at: u64,
    device: Shared,
}

/// What the program gives for a value.
pub(super) fn computed(value: u64) -> u64 {
    value.wrapping_mul(31).wrapping_add(7)
}

/// Device memory that a batch of so many values takes by itself.
pub(super) fn needed(values: usize) -> usize {
    (2 + WORKSPACE) * bytes(values)
}

fn bytes(values: usize) -> usize {
    values * size_of::<u64>()
}

impl State {
    /// Every call begins with it.
    fn call(&mut self, is_possible: impl Fn(Fault) -> bool) -> Result<(), Failure> {
        self.calls += 1;
        if let Some(message) = &self.dead {
            return Err(message.clone());
        }
        match self.faults.remove(&self.calls).filter(|fault| is_possible(*fault)) {
            None => Ok(()),
            Some(Fault::OutOfMemory) => Err(out_of_memory()),
            Some(Fault::Program) => Err("The size of tensor a (3) must match".to_owned()),
            // Without a word from the panic hook.
            Some(Fault::Panic) => resume_unwind(Box::new("a bug in a model")),
            Some(Fault::Dead) => {
                let message = "CUDA error: an illegal memory access was encountered".to_owned();
                self.dead = Some(message.clone());
                // Nothing runs on it any more.
                self.seen = self.told;
                Err(message)
            }
        }
    }

    /// Tells a stream one more thing; which one it is.
    fn tell(&mut self, stream: usize, time: u64) -> u64 {
        self.busy_until[stream] = self.busy_until[stream].max(self.now) + time;
        self.told[stream] += 1;
        self.known[stream][stream] = self.told[stream];
        self.told[stream]
    }

    fn allocate(&mut self, stream: usize, bytes: usize) -> Result<(), Failure> {
        let reused = self.kept[stream].min(bytes);
        if self.used + self.kept.iter().sum::<usize>() - reused + bytes > self.limit {
            return Err(out_of_memory());
        }
        self.kept[stream] -= reused;
        self.used += bytes;
        Ok(())
    }

    fn free(&mut self, stream: usize, bytes: usize) {
        self.used -= bytes;
        self.kept[stream] += bytes;
    }

    fn add_pinned(&mut self, bytes: usize) {
        self.pinned += bytes;
        self.pinned_peak = self.pinned_peak.max(self.pinned);
    }
}

fn out_of_memory() -> Failure {
    "CUDA out of memory. Tried to allocate 20.00 MiB.".to_owned()
}

impl Buffer {
    fn new(device: &Shared, values: Vec<u64>, written: Option<(usize, u64)>) -> Self {
        Self { values, written, last: Cell::default(), device: Rc::clone(device) }
    }

    /// `stream` uses it in its next thing, which is its `at`th.
    fn used_by(&self, stream: usize, at: u64) {
        let mut last = self.last.get();
        last[stream] = at;
        self.last.set(last);
    }

    fn assert_written_before(&self, stream: usize, state: &State) {
        let Some((by, at)) = self.written else { return };
        assert!(
            state.known[stream][by] >= at,
            "stream {stream} reads what {by} may not have written"
        );
    }

    fn assert_unused(&self, streams: &[usize]) {
        let state = self.device.borrow();
        for stream in streams {
            let is_used = self.last.get()[*stream] > state.seen[*stream];
            assert!(!is_used, "freed while stream {stream} may use it");
        }
    }
}

impl Host {
    /// As `prepare` makes it.
    pub(super) fn of(device: &Shared, values: Vec<u64>) -> Self {
        device.borrow_mut().add_pinned(bytes(values.len()));
        Self(Buffer::new(device, values, None))
    }

    pub(super) fn read(&self) -> &[u64] {
        let state = self.0.device.borrow();
        let is_written = self.0.written.is_none_or(|(by, at)| state.seen[by] >= at);
        assert!(is_written, "read before it is written");
        &self.0.values
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.0.assert_unused(&[COPIES, COMPUTE]);
        self.0.device.borrow_mut().pinned -= bytes(self.0.values.len());
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // What its own stream is told next comes after all that uses it.
        self.0.assert_unused(&[1 - self.1]);
        self.0.device.borrow_mut().free(self.1, bytes(self.0.values.len()));
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.device.borrow_mut().events -= 1;
    }
}

impl Fake {
    /// A device with so much memory, and what it is asked what it has by.
    pub(super) fn new(limit: usize, faults: BTreeMap<usize, Fault>) -> (Self, Shared) {
        let state = State { limit, faults, streams: 2, ..State::default() };
        let device = Rc::new(RefCell::new(state));
        (Self(Rc::clone(&device)), device)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.0.borrow_mut().streams -= 2;
    }
}

impl Streams for Fake {
    type Host = Host;
    type Tensor = Tensor;
    type Event = Event;

    fn copy_in(&self, input: &Host) -> Result<Tensor, Failure> {
        let mut state = self.0.borrow_mut();
        state.call(|fault| !matches!(fault, Fault::Program | Fault::Panic))?;
        state.allocate(COPIES, bytes(input.0.values.len()))?;
        let at = state.tell(COPIES, TIMES[0]);
        input.0.used_by(COPIES, at);
        let buffer = Buffer::new(&self.0, input.0.values.clone(), Some((COPIES, at)));
        buffer.used_by(COPIES, at);
        Ok(Tensor(buffer, COPIES))
    }

    fn await_copies(&self) -> Result<(), Failure> {
        let mut state = self.0.borrow_mut();
        state.call(|fault| matches!(fault, Fault::Dead))?;
        state.known[COMPUTE][COPIES] = state.told[COPIES];
        state.busy_until[COMPUTE] = state.busy_until[COMPUTE].max(state.busy_until[COPIES]);
        Ok(())
    }

    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        let mut results = Vec::new();
        let mut state = self.0.borrow_mut();
        for input in inputs {
            let size = bytes(input.0.values.len());
            let at = state.tell(COMPUTE, TIMES[1]);
            input.0.used_by(COMPUTE, at);
            input.0.assert_written_before(COMPUTE, &state);
            // It may fail with the device at work on it.
            state.call(|_| true)?;
            state.allocate(COMPUTE, WORKSPACE * size)?;
            let result = state.allocate(COMPUTE, size);
            state.free(COMPUTE, WORKSPACE * size);
            result?;
            let values = input.0.values.iter().map(|value| computed(*value)).collect();
            results.push(Tensor(Buffer::new(&self.0, values, Some((COMPUTE, at))), COMPUTE));
        }
        Ok(results)
    }

    fn copy_out(&self, result: &Tensor) -> Result<Host, Failure> {
        let mut state = self.0.borrow_mut();
        state.call(|fault| matches!(fault, Fault::Dead | Fault::OutOfMemory))?;
        let at = state.tell(COMPUTE, TIMES[2]);
        result.0.assert_written_before(COMPUTE, &state);
        result.0.used_by(COMPUTE, at);
        let host = Buffer::new(&self.0, result.0.values.clone(), Some((COMPUTE, at)));
        host.used_by(COMPUTE, at);
        state.add_pinned(bytes(host.values.len()));
        Ok(Host(host))
    }

    fn record(&self) -> Result<Event, Failure> {
        let mut state = self.0.borrow_mut();
        state.call(|fault| matches!(fault, Fault::Dead))?;
        state.events += 1;
        let (seen, at) = (state.known[COMPUTE], state.busy_until[COMPUTE]);
        Ok(Event { seen, at, device: Rc::clone(&self.0) })
    }

    fn wait(&self, event: &Event) -> Result<(), Failure> {
        let mut state = self.0.borrow_mut();
        state.call(|fault| matches!(fault, Fault::Dead))?;
        state.now = state.now.max(event.at);
        for stream in [COPIES, COMPUTE] {
            state.seen[stream] = state.seen[stream].max(event.seen[stream]);
        }
        Ok(())
    }

    fn synchronize(&self) -> Result<(), Failure> {
        let mut state = self.0.borrow_mut();
        state.call(|fault| matches!(fault, Fault::Dead))?;
        state.now = state.busy_until.into_iter().fold(state.now, u64::max);
        state.seen = state.told;
        Ok(())
    }

    fn free_unused(&self) -> Result<(), Failure> {
        let mut state = self.0.borrow_mut();
        state.call(|fault| matches!(fault, Fault::Dead))?;
        state.kept = [0; 2];
        Ok(())
    }
}
