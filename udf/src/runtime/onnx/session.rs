//! Sessions of a program: what computes.

use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr::{self, NonNull};

use ort::AsPointer;
use ort::ep::{CUDA, ExecutionProvider, ExecutionProviderDispatch, TensorRT};
use ort::session::Session;
use ort::value::{DynValue, Outlet};
use parking_lot::Mutex;

use super::super::replica::Device;
use super::library::{gpu_remedy, loaded};
use super::thread::THREADS;

/// Chooses TensorRT, which builds an engine when it first meets a size of batch.
const PROVIDER: &str = "FOREBAY_ONNXRUNTIME_PROVIDER";

/// A session of ONNX Runtime, which several threads may call.
#[derive(Debug)]
pub(super) struct Shared {
    session: Session,
    /// Only on CPUs may calls run at the same time.
    one_call: Option<Mutex<()>>,
}

/// Of one program on one device: one session for all threads that lease a core each, and for threads
/// that lease several one each, because a session has its threads for good.
#[derive(Debug)]
pub(super) struct Sessions {
    path: std::path::PathBuf,
    device: Device,
    shared: Option<Shared>,
    idle: Mutex<Vec<(usize, Shared)>>,
}

/// Why a session cannot be had.
pub(super) enum Unusable {
    Device(String),
    Program(String),
}

impl Sessions {
    /// With a first session, for so many threads.
    pub(super) fn load(path: &Path, device: Device, threads: usize) -> Result<Self, Unusable> {
        let first = Shared::load(path, device, threads)?;
        let (shared, idle) = match threads {
            1 => (Some(first), vec![]),
            _ => (None, vec![(threads, first)]),
        };
        Ok(Self { path: path.to_owned(), device, shared, idle: Mutex::new(idle) })
    }

    /// What `read` makes of the inputs and outputs of the program.
    pub(super) fn ports<T>(&self, read: impl FnOnce(&[Outlet], &[Outlet]) -> T) -> Option<T> {
        let idle = self.idle.lock();
        let first = self.shared.as_ref().or(idle.first().map(|(_, session)| session));
        first.map(|first| read(first.session.inputs(), first.session.outputs()))
    }

    /// Runs the program on the threads that the calling one leases.
    pub(super) fn run(
        &self,
        names: &[CString],
        inputs: &[DynValue],
        results: &[CString],
    ) -> Result<Vec<DynValue>, String> {
        let threads = THREADS.get();
        if let Some(shared) = self.shared.as_ref().filter(|_| threads == 1) {
            return shared.run(names, inputs, results);
        }
        let idle = {
            let mut idle = self.idle.lock();
            let at = idle.iter().position(|(count, _)| *count == threads);
            at.map(|at| idle.swap_remove(at).1)
        };
        let session = match idle {
            Some(session) => session,
            None => {
                Shared::load(&self.path, self.device, threads).map_err(|error| match error {
                    Unusable::Device(problem) | Unusable::Program(problem) => problem,
                })?
            }
        };
        let found = session.run(names, inputs, results);
        self.idle.lock().push((threads, session));
        found
    }
}

impl Shared {
    fn load(path: &Path, device: Device, threads: usize) -> Result<Self, Unusable> {
        let device_problem = |problem: String| Unusable::Device(problem);
        let environment = &loaded().map_err(|e| device_problem(e.to_string()))?.environment;
        let providers = providers(device).map_err(device_problem)?;
        let refuse = |message: &str| Unusable::Program(readable(message));
        let builder = Session::builder(environment).map_err(|e| refuse(e.message()))?;
        // Batches differ in size, so what is remembered of one does not fit the next; and threads that
        // wait for work would take the cores of others.
        let builder = builder.with_memory_pattern(false).map_err(|e| refuse(e.message()))?;
        let builder = builder.with_intra_op_spinning(false).map_err(|e| refuse(e.message()))?;
        let builder = builder.with_inter_threads(1).map_err(|e| refuse(e.message()))?;
        let builder = builder.with_intra_threads(threads).map_err(|e| refuse(e.message()))?;
        let mut builder = builder
            .with_execution_providers(providers)
            .map_err(|e| device_problem(format!("{}; {}", readable(e.message()), gpu_remedy())))?;
        let session = builder.commit_from_file(path).map_err(|e| refuse(e.message()))?;
        let one_call = (device != Device::Cpu).then(Mutex::default);
        Ok(Self { session, one_call })
    }

    fn run(
        &self,
        names: &[CString],
        inputs: &[DynValue],
        results: &[CString],
    ) -> Result<Vec<DynValue>, String> {
        let _alone = self.one_call.as_ref().map(Mutex::lock);
        let pointers = |names: &[CString]| -> Vec<*const c_char> {
            names.iter().map(|name| name.as_ptr()).collect()
        };
        let (names, result_names) = (pointers(names), pointers(results));
        let values: Vec<_> = inputs.iter().map(AsPointer::ptr).collect();
        let mut found = vec![ptr::null_mut(); results.len()];
        if names.len() != values.len() {
            return Err(format!("it takes {} inputs and was given {}", names.len(), values.len()));
        }
        // SAFETY: as many names as values and as places for results, all alive until it returns. ONNX
        // Runtime documents that several threads may call Run on one session. `ort` asks for `&mut`
        // instead, because providers of accelerators have broken that promise; for those a lock is held.
        let status = unsafe {
            (ort::api().Run)(
                self.session.ptr().cast_mut(),
                ptr::null(),
                names.as_ptr(),
                values.as_ptr(),
                values.len(),
                result_names.as_ptr(),
                result_names.len(),
                found.as_mut_ptr(),
            )
        };
        // SAFETY: the status is that of the call, and is given away here.
        unsafe { ort::Error::result_from_status(status) }.map_err(|e| e.message().to_owned())?;
        let value = |found: *mut ort::sys::OrtValue| {
            let found = NonNull::new(found).ok_or("it returned nothing for a result")?;
            // SAFETY: a value of its own that this session has made, by the allocator of its results.
            Ok(unsafe { DynValue::from_ptr(found, Some(self.session.allocator())) })
        };
        found.into_iter().map(value).collect()
    }
}

/// What a session uses a device by, all of which must work.
fn providers(device: Device) -> Result<Vec<ExecutionProviderDispatch>, String> {
    let ordinal = match device {
        Device::Cpu => return Ok(vec![]),
        Device::Cuda(ordinal) => i32::from(ordinal),
        Device::Emulated(_) => {
            return Err("emulated accelerators run emulated models only".to_owned());
        }
    };
    let has = |found: ort::Result<bool>, name: &str| match found {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("this ONNX Runtime was built without {name}; {}", gpu_remedy())),
        Err(error) => Err(format!("{}; {}", readable(error.message()), gpu_remedy())),
    };
    has(CUDA::is_available(), "CUDA")?;
    let mut providers = vec![];
    match std::env::var(PROVIDER).as_deref() {
        Ok("tensorrt") => {
            has(TensorRT::is_available(), "TensorRT")?;
            providers.push(TensorRT::default().with_device_id(ordinal).build().error_on_failure());
        }
        Ok("cuda" | "") | Err(_) => {}
        Ok(other) => return Err(format!("{PROVIDER} is '{other}', expected cuda or tensorrt")),
    }
    providers.push(CUDA::default().with_device_id(ordinal).build().error_on_failure());
    Ok(providers)
}

/// How many bytes of a text are a C++ function with its parameters: `void a::b(int, c (*)(d)) `.
fn signature_length(text: &str) -> usize {
    let Some(open) = text.find('(') else { return 0 };
    let name = &text[..open];
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_:~<>".contains(c);
    if name.split(' ').count() > 4 || !name.ends_with(is_part) {
        return 0;
    }
    let mut depth = 0_usize;
    for (at, c) in text.char_indices().skip_while(|(at, _)| *at < open) {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return (at + 2).min(text.len()),
            ')' => depth -= 1,
            _ => {}
        }
    }
    0
}

/// ONNX Runtime's message on one line, without the places and functions in its sources.
pub(super) fn readable(message: &str) -> String {
    let lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut text = lines.collect::<Vec<_>>().join(" ");
    // `/build/onnxruntime/core/…/file.cc:181 function(…) [with …] ` in front of what matters.
    while let Some(start) = text.find("/onnxruntime/") {
        let from = text[..start].rfind(' ').map_or(0, |at| at + 1);
        let to = text[start..].find(' ').map_or(text.len(), |at| start + at + 1);
        text.replace_range(from..to, "");
        let signature = signature_length(&text[from..]);
        text.replace_range(from..from + signature, "");
    }
    match text.char_indices().nth(400) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_no_place_or_function_of_the_sources() {
        for (message, expected) in [
            (
                "Load model from m.onnx failed:/build/onnxruntime/core/graph/model.cc:56 void \
                 onnxruntime::a::Check(const std::map<int, int>&, void (*)(int)) Opset 99 is new",
                "Load model from m.onnx Opset 99 is new",
            ),
            ("a/onnxruntime/core/b.cc:1 Node (Add) failed", "Node (Add) failed"),
            ("Non-zero status code\n  of a node", "Non-zero status code of a node"),
        ] {
            assert_eq!(readable(message), expected);
        }
        assert_eq!(signature_length("f(a"), 0);
    }
}
